"""What else differs between arms than their names say, as far as configurations, records and metrics tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median
from typing import Any

from minirl.config import GradientClip
from minirl.report.differences import Difference, shown
from minirl.report.read import Arm, Sweep
from minirl.report.wording import counted

CLIPPED_APART = 0.1  # shares of clipped updates further apart than this confound a comparison
SCALE_KEYS = ("algo.aggregation.kind", "algo.aggregation.scale", "algo.aggregation.length")


@dataclass(frozen=True, slots=True)
class Caution:
    """text: what a reader must know · pairs: arms whose comparison is, because of it, one of more than their names
    say (none: it is only to be known)."""

    text: str
    pairs: tuple[tuple[str, str], ...] = ()


def cautions(sweep: Sweep, found: Sequence[Difference]) -> list[Caution]:
    """All of them, the confounding ones first."""
    everything = [
        *clipped_apart(sweep),
        *loss_scales(sweep, found),
        *several_coldstarts(sweep),
        *surroundings(found),
        *inherited_evaluation(sweep),
        *mixed_arms(found),
        *several_revisions(sweep),
        *unequal_seeds(sweep),
    ]
    return sorted(everything, key=lambda caution: not caution.pairs)


def confounded(names: Sequence[str], everything: Sequence[Caution]) -> list[Caution]:
    """Those that concern a comparison of any two of the named arms."""
    return [caution for caution in everything if any(set(pair) <= set(names) for pair in caution.pairs)]


def clipped_apart(sweep: Sweep) -> list[Caution]:
    """Gradient clipping acts on one arm more than on the other: their step sizes differ too."""
    shares = {arm.name: share for arm in sweep.distinct_arms if (share := _mean(arm, "optim/clipped")) is not None}
    pairs = tuple(pair for pair in combinations(shares, 2) if abs(shares[pair[0]] - shares[pair[1]]) > CLIPPED_APART)
    seen = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    text = f"the share of updates whose gradient is clipped differs by more than {CLIPPED_APART} ({seen})"
    return [Caution(text, pairs)] if pairs else []


def loss_scales(sweep: Sweep, found: Sequence[Difference]) -> list[Caution]:
    """Another aggregation is another loss scale; a threshold on the gradient norm makes that another step size."""
    scaled = [difference for difference in found if difference.key in SCALE_KEYS]
    clip = [arm for arm in sweep.distinct_arms if arm.config.get("train.optim.clip") == GradientClip.global_norm]
    pairs = tuple(
        (left.name, right.name)
        for left, right in combinations(clip, 2)
        if any(difference.values.get(left.name) != difference.values.get(right.name) for difference in scaled)
    )
    norms = {arm.name: norm for arm in clip if (norm := _median(arm, "optim/grad_norm")) is not None}
    seen = ", ".join(f"{name} {norm:.3g}" for name, norm in norms.items())
    text = (
        f"{', '.join(difference.key for difference in scaled)} differs, and with it the loss scale, under a threshold "
        f"on the gradient norm (median norm before clipping: {seen or 'not recorded'})"
    )
    return [Caution(text, pairs)] if pairs else []


def several_coldstarts(sweep: Sweep) -> list[Caution]:
    """Arms that did not start from the same checkpoint."""
    starts: dict[str, list[str]] = {}
    for arm in sweep.distinct_arms:
        for run in arm.runs:
            content = (run.record.get("coldstart") or {}).get("content")
            if content and arm.name not in starts.setdefault(content, []):
                starts[content].append(arm.name)
    if len(starts) < 2:
        return []
    groups = "; ".join(f"{content[:10]}: {', '.join(arms)}" for content, arms in starts.items())
    return [Caution(f"the arms start from {len(starts)} different cold starts ({groups})")]


def surroundings(found: Sequence[Difference]) -> list[Caution]:
    """Settings that are no part of the experiment, yet are not the same for all arms (the horizon, the evaluation)."""
    cautions = []
    for difference in (one for one in found if not one.in_identity):
        seen = ", ".join(f"{arm} {' and '.join(values)}" for arm, values in difference.values.items())
        alters = difference.key == "num_updates" or difference.key.startswith("eval.")
        apart = [
            pair for pair in combinations(difference.values, 2) if len({difference.values[arm] for arm in pair}) > 1
        ]
        cautions.append(
            Caution(f"{difference.key} is not the same for all arms: {seen}", tuple(apart) if alters else ())
        )
    return cautions


def inherited_evaluation(sweep: Sweep) -> list[Caution]:
    """Arms that are sampled differently are evaluated differently where eval.* is null, that is, as sampling."""
    found = []
    for name in ("temperature", "max_response_tokens"):
        taken = {arm.name: _evaluated_at(arm, name) for arm in sweep.distinct_arms if arm.config}
        pairs = [pair for pair in combinations(taken, 2) if taken[pair[0]][0] != taken[pair[1]][0]]
        pairs = [pair for pair in pairs if any(inherits for _, inherits in (taken[arm] for arm in pair))]
        if pairs:
            seen = ", ".join(f"{arm} {shown(value)}" for arm, (value, _) in taken.items())
            text = f"eval.{name}=null follows sampling.{name}, so the arms are not evaluated alike: {seen}"
            found.append(Caution(text, tuple(pairs)))
    return found


def _evaluated_at(arm: Arm, name: str) -> tuple[Any, bool]:
    """The value that takes effect, and whether it is inherited."""
    own = arm.config.get(f"eval.{name}")
    return (arm.config.get(f"sampling.{name}"), True) if own is None else (own, False)


def mixed_arms(found: Sequence[Difference]) -> list[Caution]:
    """Seeds of one arm that were not run with one configuration."""
    return [
        Caution(
            f"the seeds of {arm} do not agree in {difference.key}: {' and '.join(difference.values[arm])}",
            tuple((arm, other) for other in difference.values if other != arm),
        )
        for difference in found
        if difference.in_identity
        for arm in difference.mixed_arms
    ]


def several_revisions(sweep: Sweep) -> list[Caution]:
    """Runs made by different versions of the code or of what it stands on."""
    texts = []
    found = Counter(code for run in sweep.runs for code in run.codes)
    if len(found) > 1:
        made = ", ".join(f"{code} ({counted(count, 'run')})" for code, count in found.items())
        mixed = ", ".join(f"{arm.name} s{run.seed}" for arm in sweep.distinct_arms for run in arm.runs if run.codes[1:])
        both = f"; it changed in the middle of {mixed}" if mixed else ""
        texts.append(f"the runs were made by {len(found)} versions of the code: {made}{both}")
    packages = {tuple(sorted((run.record.get("packages") or {}).items())) for run in sweep.runs} - {()}
    changed = sorted({name for one, other in combinations(packages, 2) for name, _ in set(one) ^ set(other)})
    if changed:
        texts.append(f"the runs were made with different versions of {', '.join(changed)}")
    return [Caution(text) for text in texts]


def unequal_seeds(sweep: Sweep) -> list[Caution]:
    """Planned seeds without a result."""
    return [
        Caution(f"{arm.name} has a result for {len(arm.results)} of {counted(len(arm.runs), 'seed')}")
        for arm in sweep.distinct_arms
        if len(arm.results) < len(arm.runs)
    ]


def _mean(arm: Arm, metric: str) -> float | None:
    values = [float(run.curves[metric].values.mean()) for run in arm.runs if metric in run.curves]
    return fmean(values) if values else None


def _median(arm: Arm, metric: str) -> float | None:
    values = [float(value) for run in arm.runs if metric in run.curves for value in run.curves[metric].values]
    return median(values) if values else None
