"""The numbers that claims are made of: one figure per seed of an arm, and whether a run collapsed."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np

from minirl.metrics.collapse import collapse_onset
from minirl.record import State
from minirl.report.curves import figure_at
from minirl.report.read import Arm, Run
from minirl.report.statistics import Location, difference_of_means, location

BySeed = Mapping[int, float]


def figures(arm: Arm, metric: str, at: str) -> dict[int, float]:
    """seed -> the figure, of the runs that have a result and the metric."""
    figure = figure_at(at)
    curves = {run.seed: (run.curve(metric), run.horizon) for run in arm.results}
    found = {seed: figure(curve, horizon) for seed, (curve, horizon) in curves.items() if curve is not None}
    return {seed: value for seed, value in sorted(found.items()) if value is not None}


def starts(arm: Arm, metric: str) -> dict[int, float]:
    """seed -> the first recorded value of the metric."""
    curves = {run.seed: run.curve(metric) for run in arm.results}
    return {seed: float(curve.values[0]) for seed, curve in sorted(curves.items()) if curve is not None and len(curve)}


def onset(run: Run) -> int | None:
    """The version from which the run has collapsed, by the one definition of collapse on its own evaluations; None
    where it has not. A diverged run counts too, from its end: nothing of it is left to recover."""
    if run.state == State.diverged:
        return run.version
    scores, errors = run.curves.get("eval/avg"), run.curves.get("eval/se")
    margin = run.config.get("metrics.collapse_margin")
    if scores is None or errors is None or margin is None:
        return run.version if run.state == State.collapsed else None
    both = np.intersect1d(scores.versions, errors.versions)
    avg, se = (curve.values[np.isin(curve.versions, both)].tolist() for curve in (scores, errors))
    return collapse_onset(both.tolist(), avg, se, margin=float(margin))


def collapsed(run: Run) -> bool:
    """Whether the run has an onset of collapse."""
    return onset(run) is not None


def within_run_error(arms: Mapping[str, BySeed], runs: Mapping[str, Run]) -> float | None:
    """sqrt of the sum over arms of eval/se^2 at the end of their one run: what problems and samples alone leave open.
    None where a run has no standard error."""
    errors = [runs[name].curve("eval/se") for name in arms]
    known = [error.values[-1] for error in errors if error is not None and len(error)]
    return sqrt(sum(float(error) ** 2 for error in known)) if len(known) == len(errors) else None


def compared(left: BySeed, right: BySeed) -> Location | float:
    """left - right: paired over shared seeds, by Welch where none is shared. Of a single pair, just the number."""
    shared = sorted(left.keys() & right.keys())
    if shared:
        differences = [left[seed] - right[seed] for seed in shared]
        return location(differences) if len(shared) > 1 else differences[0]
    first, second = list(left.values()), list(right.values())
    if min(len(first), len(second)) < 2:
        return float(np.mean(first) - np.mean(second))
    return difference_of_means(first, second)


def left_out(arm: Arm) -> list[str]:
    """Which seeds of the arm do not count, and why."""
    if arm.excluded is not None:
        return [f"{arm.name} has no runs here: {arm.excluded}"]
    states: dict[str, list[int]] = {}
    for run in arm.runs:
        if not run.has_result:
            states.setdefault(run.state, []).append(run.seed)
    return [
        f"{arm.name}: {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))} {state}, not counted"
        for state, seeds in states.items()
    ]
