"""Where two runs part: the first update from which a difference is more than noise, and stays so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minirl.metrics.alarms import trailing_mean
from minirl.report.curves import Curve
from minirl.report.read import Run

UNCOMPARED = ("time/", "tokens/")  # these differ between any two runs
SMOOTHED = 3  # a difference is looked at as the mean of this many points,
EARLY_SHARE, MOST_EARLY, LEAST_EARLY = 0.25, 10, 4  # against its spread over the first quarter of them,
BAND = 5.0  # and is outside beyond this many standard deviations,
FLOOR = 0.01  # each at least this share of the metric's early level;
SEED_BAND = 4.0  # or, where there are seeds, beyond this many standard deviations of the difference of two of them
LEAST_SEEDS = 3


@dataclass(frozen=True, slots=True)
class Parting:
    """From `version` on, until the end, the difference in `metric` to the first run stays outside of noise. num_seeds:
    by whose spread noise was judged besides the early one; 0 where there are no other seeds."""

    metric: str
    version: int
    first: float
    other: float
    num_seeds: int


def partings(first: Run, other: Run, seeds: Sequence[Sequence[Run]]) -> list[Parting]:
    """What parts, the earliest first. seeds: for each of the two, all runs of its arm, itself included."""
    found = []
    for metric in common((first, other)):
        versions, (left, right) = aligned((first.curves[metric], other.curves[metric]))
        noise, num_seeds = seed_noise(metric, versions, seeds)
        level = float(np.abs(left[:MOST_EARLY]).mean()) if left.size else 0.0
        place = parts_at(right - left, level=level, noise=noise)
        if place is not None:
            found.append(Parting(metric, int(versions[place]), float(left[place]), float(right[place]), num_seeds))
    return sorted(found, key=lambda parting: (parting.version, parting.metric))


def parts_at(difference: NDArray[np.float64], *, level: float, noise: NDArray[np.float64] | None = None) -> int | None:
    """The first index from which the smoothed difference stays outside of noise to the very end; None where it comes
    back, or where there are too few points to tell.

    noise [n]: the standard deviation at each point of the difference between two seeds of one arm; outside is
    |difference| > max(SEED_BAND noise, FLOOR level). Without seeds: |difference - its early mean| > BAND max(early
    deviation, FLOOR level).
    """
    early = max(LEAST_EARLY, min(MOST_EARLY, int(EARLY_SHARE * difference.size)))
    if difference.size < 2 * early:
        return None
    smooth = trailing_mean(difference.tolist(), SMOOTHED)
    if noise is not None:
        outside = np.abs(smooth) > np.maximum(SEED_BAND * noise, FLOOR * level)
    else:
        begin = difference[:early]
        outside = np.abs(smooth - begin.mean()) > BAND * max(float(begin.std(ddof=1)), FLOOR * level)
    place = int(difference.size - np.argmin(outside[::-1])) if not outside.all() else 0
    return place if outside[-1] and difference.size - place >= SMOOTHED else None


def seed_noise(
    metric: str, versions: NDArray[np.int64], arms: Sequence[Sequence[Run]]
) -> tuple[NDArray[np.float64] | None, int]:
    """(sqrt 2 times the deviation over seeds of the smoothed metric at `versions`, how many seeds), of the arm in which
    it is smaller on the whole: an arm that collapses in some seeds only says nothing of what noise is."""
    candidates = []
    for runs in arms:
        curves = [run.curves[metric] for run in runs if metric in run.curves]
        table = [smooth for curve in curves if (smooth := _smoothed_at(curve, versions)) is not None]
        if len(table) >= LEAST_SEEDS:
            candidates.append((np.sqrt(2) * np.std(table, axis=0, ddof=1), len(table)))
    return min(candidates, key=lambda one: float(one[0].mean())) if candidates else (None, 0)


def _smoothed_at(curve: Curve, versions: NDArray[np.int64]) -> NDArray[np.float64] | None:
    inside = np.isin(curve.versions, versions)
    if int(inside.sum()) != versions.size:
        return None  # it stopped earlier
    return trailing_mean(curve.values[inside].tolist(), SMOOTHED)


def common(runs: Iterable[Run]) -> list[str]:
    """The metrics that all runs have and that can be compared."""
    names = set.intersection(*(set(run.curves) for run in runs))
    return sorted(name for name in names if not name.startswith(UNCOMPARED))


def aligned(curves: Sequence[Curve]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(versions [m] that all have, values [curves, m])."""
    versions = curves[0].versions
    for curve in curves[1:]:
        versions = np.intersect1d(versions, curve.versions)
    return versions, np.array([curve.values[np.isin(curve.versions, versions)] for curve in curves])
