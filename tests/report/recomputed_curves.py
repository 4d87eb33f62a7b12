"""Curves, bands, costs and routing profiles of a sweep once more, straight from its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from recomputed import Points, Run, Truth
from recomputed_claims import INTERVAL, mean

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
PHASES = ("sync", "rollout", "reward", "old", "live", "update", "eval", "save")


@dataclass(frozen=True)
class Band:
    """Over the seeds of an arm: mean, and one standard deviation to either side from three seeds on; of logarithms on a
    logarithmic axis."""

    versions: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    num_seeds: int
    stretch: list[int]  # of each point, how many versions without a mean lie before it


def is_of_updates(truth: Truth, metric: str) -> bool:
    """Whether some run has the metric for every update, and not only once for each rollout batch."""
    runs = [(run, run.config.get("num_mini_batches", 1)) for run in truth.runs if metric in run.metrics]
    return any((run.metrics[metric][0] % num).any() for run, num in runs)


def by_batch(points: Points, num_mini_batches: int) -> Points:
    """The mean over the updates of each rollout batch, at the batch's first version."""
    starts = points[0] // num_mini_batches * num_mini_batches
    versions = np.unique(starts)
    return versions, np.array([points[1][starts == version].mean() for version in versions])


def drawn(truth: Truth, run: Run, metric: str, points: Points) -> Points:
    """What a plot shows of the run's points."""
    num = truth.config(run.arm).get("num_mini_batches", 1)
    return by_batch(points, num) if is_of_updates(truth, metric) else points


def curve(truth: Truth, run: Run, metric: str) -> Points:
    return drawn(truth, run, metric, run.metrics[metric])


def band(truth: Truth, arm: str, metric: str, *, log: bool) -> Band | None:
    """Over the runs with a result, or over all where none has one; at the versions that all of them have."""
    runs = truth.results(arm) or truth.arms[arm]
    return over_seeds([drawn(truth, run, metric, points) for run, points in abreast(runs, metric)], log=log)


def abreast(runs: Sequence[Run], metric: str) -> list[tuple[Run, Points]]:
    """Every run that has the metric; one that stopped keeps its last value wherever another one was measured."""
    known = {run: points for run in runs if (points := run.points(metric)) is not None}
    everywhere = sorted({version for versions, _ in known.values() for version in versions.tolist()})
    for run in (run for run in known if run.counts and run.last < run.horizon):
        versions, values = run.metrics[metric]
        later = [version for version in everywhere if version > versions[-1]]
        known[run] = np.append(versions, later).astype(int), np.append(values, [values[-1]] * len(later))
    return list(known.items())


def over_seeds(curves: Sequence[Points], *, log: bool) -> Band | None:
    if not curves:
        return None
    tables = [dict(zip(versions.tolist(), values.tolist(), strict=True)) for versions, values in curves]
    shared = everywhere = sorted(set.intersection(*(set(table) for table in tables)))
    if log:
        shared = [version for version in shared if all(table[version] > 0 for table in tables)]
    if not shared:
        return None
    values = np.array([[table[version] for version in shared] for table in tables])
    values = np.log(values) if log else values
    center = values.mean(axis=0)
    spread = values.std(axis=0, ddof=1) if len(tables) >= INTERVAL else 0.0 * center
    middle, low, high = (np.exp(part) if log else part for part in (center, center - spread, center + spread))
    missing = [version for version in everywhere if version not in shared]
    stretch = [sum(gap < version for gap in missing) for version in shared]
    return Band(np.array(shared), middle, low, high, len(tables), stretch)


def decoded(text: str) -> np.ndarray:
    """Shares from 0 to 1: three letters each, base 64."""
    codes = [DIGITS.index(letter) for letter in text]
    table = np.array(codes, float).reshape(-1, 3)
    return table @ [64**2, 64, 1] / (64**3 - 1)


def values_of(shares: np.ndarray, low: float, high: float, *, log: bool) -> np.ndarray:
    """The numbers between low and high that the shares stand for; docs: minirl/report/series.py."""
    if not log:
        return low + shares * (high - low)
    half = 64**3 // 2
    steps = np.rint(shares * (64**3 - 1)) - half
    sizes = 10 ** (low + (np.abs(steps) - 1) / (half - 2) * (high - low))
    return np.where(steps == 0, 0.0, np.sign(steps) * sizes)


# --- costs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """Means over the runs of an arm that have rows. seconds: by phase of the loop, in its order."""

    seconds: dict[str, float]
    cpu_seconds: float
    updates: float
    tokens: dict[str, float]


def costs(runs: Sequence[Run]) -> Costs | None:
    """Sums over all rows of metrics.jsonl."""
    begun = [run for run in runs if run.rows]
    if not begun:
        return None
    names = {name for run in begun for name in run.metrics if name.startswith("time/")}
    wall = [name.removeprefix("time/") for name in names if not name.endswith("_cpu")]
    order = sorted(wall, key=lambda name: PHASES.index(name) if name in PHASES else len(PHASES))
    return Costs(
        {name: float(np.mean([run.total(f"time/{name}") for run in begun])) for name in order},
        sum(float(np.mean([run.total(name) for run in begun])) for name in names if name.endswith("_cpu")),
        float(np.mean([sum("optim/grad_norm" in row for row in run.rows) for run in begun])),
        {kind: float(np.mean([run.total(f"tokens/{kind}") for run in begun])) for kind in ("prompt", "response")},
    )


def sampled(truth: Truth, arm: str) -> list[Points]:
    """Tokens over versions, of the runs that the page's axis of tokens is made of."""
    return [run.tokens for run in (truth.results(arm) or truth.arms[arm]) if run.tokens is not None]


# --- routing ------------------------------------------------------------------------------------------------------


def differing(truth: Truth, arm: str, family: str) -> list[dict[str, float]]:
    """Of each run with a result: place -> share of experts that differ, at the end."""
    found = []
    for run in sorted(truth.results(arm), key=lambda run: run.seed):
        places = [name.removeprefix(family) for name in run.metrics if name.startswith(family)]
        ends = {place: run.figure(family + place, "end") for place in places}
        found.append({place: 1 - end for place, end in ends.items() if end is not None})
    return [places for places in found if places]


def interval(values: Sequence[float]) -> tuple[float, ...]:
    """(mean, low, high): the 95 % t interval from three seeds on; (mean,) below, or where all are equal."""
    if len(values) < INTERVAL or len(set(values)) == 1:
        return (float(np.mean(values)),)
    one = mean(values)
    return (one.value, *one.interval())
