"""The figures of arms at matched response tokens: after equal work of the engine instead of equal updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from minirl.report.curves import AT, Curve, figure_at
from minirl.report.figures import BySeed
from minirl.report.read import Arm, Run
from minirl.report.series import sampled_tokens

APART = 0.01  # arms whose tokens differ by less than this share are matched already


def budgets(arms: Sequence[Arm], at: str) -> dict[int, float] | None:
    """seed -> the response tokens that the most frugal of the arms had sampled at its figure (`at`), for seeds that all
    arms share. A run that stopped early has no say: its last value stands for all that was planned.

    None where a run has not recorded its tokens, or where no two arms are apart.
    """
    shared = set.intersection(*({run.seed for run in arm.results} for arm in arms))
    found, apart = {}, False
    for seed in sorted(shared):
        spent = [_spent(run, at) for arm in arms for run in arm.results if run.seed == seed and _complete(run)]
        if not spent or any(tokens is None for tokens in spent):
            return None
        known = [tokens for tokens in spent if tokens is not None]
        found[seed] = min(known)
        apart |= max(known) > (1 + APART) * min(known)
    return found if apart else None


def _complete(run: Run) -> bool:
    """Whether the run got to its planned end; rows stand at the version from which an update starts."""
    return run.version >= run.horizon - 1


def _spent(run: Run, at: str) -> float | None:
    total, until = sampled_tokens(run), _last_version(run, at)
    return None if total is None else float(np.interp(until, *total))


def _last_version(run: Run, at: str) -> int:
    match = AT.fullmatch(at.strip())
    return int(match[1]) if match and match[1] else run.horizon


def figures_at(arm: Arm, metric: str, at: str, tokens: Mapping[int, float]) -> BySeed:
    """seed -> the figure, as if the run had been planned to end where it had sampled tokens[seed]."""
    found = {}
    for run in arm.results:
        curve = run.curve(metric)
        if curve is not None and run.seed in tokens:
            found[run.seed] = _figure(curve, _reached(run, tokens[run.seed], at), at)
    return {seed: value for seed, value in sorted(found.items()) if value is not None}


def _reached(run: Run, tokens: float, at: str) -> int:
    """The version at which the run had sampled `tokens`; of a run that stopped early, the version asked for."""
    total, until = sampled_tokens(run), _last_version(run, at)
    if total is None or not _complete(run):
        return until
    versions, sums = total
    return min(int(np.interp(tokens, sums, versions)), until)


def _figure(curve: Curve, version: int, at: str) -> float | None:
    """The figure of the curve up to `version`. Its value there lies on the line between the two recorded beside it:
    the last one before, taken alone, would be of an arm that had sampled less."""
    inside = curve.versions < version
    if version < curve.versions[0]:
        return None
    value = float(np.interp(version, curve.versions, curve.values))
    cut = Curve(np.append(curve.versions[inside], version), np.append(curve.values[inside], value))
    return value if at.startswith("update") else figure_at(at)(cut, version)
