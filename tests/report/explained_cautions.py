"""What else differs between arms than their names say, once more, from the files of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
from explained_verdicts import plural, quoted
from ledger import Number, Part, count, exact, listed
from recomputed import Truth

Pairs = Sequence[tuple[str, str]]


def shown(value: Any) -> str:
    """As typed on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if type(value) is float else str(value)


def differing(truth: Truth) -> list[str]:
    """Keys that are not the same in all runs; seed, names, places and tracker are none of the experiment's."""
    configs = [run.config for run in truth.runs if run.config]
    keys = dict.fromkeys(key for config in configs for key in config)
    own = ("seed", "algo.name", "model.name")
    kept = [key for key in keys if key not in own and not key.startswith(("run.", "tracker."))]
    return [key for key in kept if len({repr(config.get(key, "absent")) for config in configs}) > 1]


def seen(truth: Truth, arm: str, key: str) -> list[str]:
    """The values that the runs of an arm have, as text."""
    return list(dict.fromkeys(shown(run.config.get(key, "absent")) for run in truth.arms[arm] if run.config))


def cautions(truth: Truth) -> list[tuple[list[Part], Pairs]]:
    """All that the files give reason for, each with the arms whose comparison it confounds."""
    kinds = (clipping, loss_scale, cold_starts, keys, evaluation, codes, packages, lacking)
    return [caution for kind in kinds for caution in kind(truth)]


def on_page(caution: tuple[list[Part], Pairs]) -> list[Part]:
    """With its mark, and whom it concerns."""
    parts, pairs = caution
    if not pairs:
        return [*parts, "."]
    named = ", ".join(" with ".join(map(quoted, pair)) for pair in pairs)
    return ["confounded ", *parts, f"; concerns {named}."]


def clipping(truth: Truth) -> list[tuple[list[Part], Pairs]]:
    """The gradients of one arm are clipped more often."""
    shares: dict[str, float] = {}
    for arm, runs in truth.arms.items():
        clipped = [run.metrics["optim/clipped"][1].mean() for run in runs if "optim/clipped" in run.metrics]
        shares |= {arm: float(np.mean(clipped))} if clipped else {}
    pairs = [pair for pair in combinations(shares, 2) if abs(shares[pair[0]] - shares[pair[1]]) > 0.1]
    words = "the share of updates whose gradient is clipped differs by more than "
    each = listed(([f"{arm} ", Number(share, decimals=2)] for arm, share in shares.items()), ", ")
    return [([words, exact(0.1), " (", *each, ")"], pairs)] if pairs else []


def loss_scale(truth: Truth) -> list[tuple[list[Part], Pairs]]:
    """Another loss scale under a threshold on the gradient norm."""
    scales = [key for key in differing(truth) if key.startswith("algo.aggregation.")]
    limited = [arm for arm in truth.arms if truth.config(arm).get("train.optim.clip") == "global_norm"]
    pairs = [
        (a, b) for a, b in combinations(limited, 2) if any(seen(truth, a, key) != seen(truth, b, key) for key in scales)
    ]
    norms: dict[str, float] = {}
    for arm in limited:
        runs = [run for run in truth.arms[arm] if "optim/grad_norm" in run.metrics]
        values = [float(value) for run in runs for value in run.metrics["optim/grad_norm"][1]]
        norms |= {arm: median(values)} if values else {}
    each = listed(([f"{arm} ", Number(norm)] for arm, norm in norms.items()), ", ")
    words = f"{', '.join(scales)} differs, and with it the loss scale, under a threshold on the gradient norm "
    return [([words, "(median norm before clipping: ", *each, ")"], pairs)] if pairs else []


def cold_starts(truth: Truth) -> list[tuple[list[Part], Pairs]]:
    starts: dict[str, list[str]] = {}
    for run in truth.runs:
        content = (run.record.get("coldstart") or {}).get("content")
        if content and run.arm not in starts.setdefault(content, []):
            starts[content].append(run.arm)
    groups = "; ".join(f"{content[:10]}: {', '.join(names)}" for content, names in starts.items())
    words: list[Part] = ["the arms start from ", count(len(starts)), f" different cold starts ({groups})"]
    return [(words, [])] if len(starts) > 1 else []


def keys(truth: Truth) -> list[tuple[list[Part], Pairs]]:
    """Keys beside the experiment that differ between arms, and keys of it that differ between seeds of one arm."""
    known, found = [arm for arm in truth.arms if truth.config(arm)], list[tuple[list[Part], Pairs]]()
    for key in differing(truth):
        texts = {arm: seen(truth, arm, key) for arm in known}
        if key == "num_updates" or key.startswith("eval."):
            pairs = [(a, b) for a, b in combinations(known, 2) if texts[a] != texts[b]]
            each = ", ".join(f"{arm} {' and '.join(values)}" for arm, values in texts.items())
            found.append(([f"{key} is not the same for all arms: {each}"], pairs))
            continue
        for arm in (arm for arm, values in texts.items() if len(values) > 1):
            words: list[Part] = [f"the seeds of {arm} do not agree in {key}: {' and '.join(texts[arm])}"]
            found.append((words, [(arm, other) for other in known if other != arm]))
    return found


def evaluation(truth: Truth) -> list[tuple[list[Part], Pairs]]:
    """Arms that are sampled differently and evaluated as they are sampled."""
    found: list[tuple[list[Part], Pairs]] = []
    for name in ("temperature", "max_response_tokens"):
        configs = {arm: truth.config(arm) for arm in truth.arms if truth.config(arm)}
        own = {arm: config.get(f"eval.{name}") for arm, config in configs.items()}
        taken = {
            arm: config.get(f"sampling.{name}") if own[arm] is None else own[arm] for arm, config in configs.items()
        }
        apart = [(a, b) for a, b in combinations(taken, 2) if taken[a] != taken[b] and None in (own[a], own[b])]
        each = ", ".join(f"{arm} {shown(value)}" for arm, value in taken.items())
        words = f"eval.{name}=null follows sampling.{name}, so the arms are not evaluated alike: {each}"
        found += [([words], apart)] if apart else []
    return found


def worked(record: dict[str, Any]) -> list[str]:
    """The versions of the code that a record names; of one that keeps no history, the one of its end."""
    git = record.get("git")
    last = [git["sha"][:8] + (f"+{git.get('changes') or '?'}" if git.get("dirty") else "")] if git else []
    release = [(record.get("packages") or {})["minirl"]] if not git and record.get("packages") else []
    return record.get("codes") or last or release


def codes(truth: Truth) -> list[tuple[list[Part], Pairs]]:
    tally = Counter(code for run in truth.runs for code in worked(run.record))
    made = listed(([f"{code} (", count(n), f" {plural(n, 'run')})"] for code, n in tally.items()), ", ")
    mixed = [f"{run.arm} s{run.seed}" for run in truth.runs if len(worked(run.record)) > 1]
    both = [f"; it changed in the middle of {', '.join(mixed)}"] if mixed else []
    parts = ["the runs were made by ", count(len(tally)), " versions of the code: ", *made, *both]
    return [(parts, [])] if len(tally) > 1 else []


def packages(truth: Truth) -> list[tuple[list[Part], Pairs]]:
    every = [run.record["packages"] for run in truth.runs if run.record.get("packages")]
    names = sorted({name for known in every for name in known})
    changed = [name for name in names if len({known.get(name) for known in every}) > 1]
    return [([f"the runs were made with different versions of {', '.join(changed)}"], [])] if changed else []


def lacking(truth: Truth) -> list[tuple[list[Part], Pairs]]:
    """Planned seeds without a result."""
    short = [(arm, len(truth.results(arm)), len(runs)) for arm, runs in truth.arms.items()]
    return [
        ([f"{arm} has a result for ", count(there), " of ", count(planned), f" {plural(planned, 'seed')}"], [])
        for arm, there, planned in short
        if there < planned
    ]
