"""A metric over updates: one run's curve, the number that a claim takes from it, and the picture of an arm.

The axis is `version`: how many updates the measured weights have had.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minirl.config import ConfigError

END_SHARE = 0.1  # "end" is the mean over this last share of the planned updates
AT = re.compile(r"end|peak|area|update (\d+)")


@dataclass(frozen=True, slots=True)
class Curve:
    """versions [n] int64, ascending · values [n] float64, all finite."""

    versions: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return self.versions.size

    def until(self, version: int) -> float | None:
        """The last value recorded at or before `version`."""
        place = int(np.searchsorted(self.versions, version, side="right"))
        return float(self.values[place - 1]) if place else None


def carried_forward(curve: Curve, horizon: int) -> Curve:
    """The curve of a run that stopped, with its last value repeated in its own rhythm up to the planned `horizon`."""
    if not len(curve) or curve.versions[-1] >= horizon:
        return curve
    rhythm = int(np.median(np.diff(curve.versions))) if len(curve) > 1 else horizon
    later = np.arange(curve.versions[-1] + rhythm, horizon, max(rhythm, 1), dtype=np.int64)
    later = np.append(later, horizon)
    return Curve(
        np.concatenate([curve.versions, later]),
        np.concatenate([curve.values, np.full(later.size, curve.values[-1])]),
    )


def carried_along(curve: Curve, versions: NDArray[np.int64]) -> Curve:
    """The same at those of `versions` that lie behind the curve's end: for a run that stopped before its rhythm showed,
    or out of step with the runs beside it."""
    later = versions[versions > curve.versions[-1]] if len(curve) else versions[:0]
    values = np.append(curve.values, np.full(later.size, curve.values[-1] if len(curve) else 0.0))
    return Curve(np.append(curve.versions, later), values)


def end(curve: Curve, horizon: int) -> float | None:
    """Mean of the values recorded in the last tenth of the planned updates; the last one before, if there are none."""
    inside = curve.versions >= horizon - END_SHARE * horizon
    return float(curve.values[inside].mean()) if inside.any() else curve.until(horizon)


def peak(curve: Curve, horizon: int) -> float | None:
    """The largest recorded value, unsmoothed."""
    return float(curve.values.max()) if len(curve) else None


def area(curve: Curve, horizon: int) -> float | None:
    """The mean height: the integral of the curve (trapezoids) divided by the updates that it spans."""
    if not len(curve):
        return None
    span = int(curve.versions[-1] - curve.versions[0])
    return float(np.trapezoid(curve.values, curve.versions) / span) if span else float(curve.values[0])


def figure_at(at: str) -> Callable[[Curve, int], float | None]:
    """The function that takes `end`, `peak`, `area` or `update K` from a curve, given the planned updates."""
    match = AT.fullmatch(at.strip())
    if match is None:
        raise ConfigError(f"at: {at!r} is unknown: use end, peak, area or 'update K' with K counted in updates")
    if match[1] is not None:
        version = int(match[1])
        return lambda curve, horizon: curve.until(version) if version <= horizon else None
    return {"end": end, "peak": peak, "area": area}[match[0]]


def batch_means(curve: Curve, num_mini_batches: int) -> Curve:
    """The mean over the updates of each rollout batch, placed at the batch's first version.

    Off-policy, staleness and clipping climb within every batch and start again; the saw would hide the trend.
    """
    if num_mini_batches == 1 or not len(curve):
        return curve
    batches, member = np.unique(curve.versions // num_mini_batches, return_inverse=True)
    means = np.bincount(member, weights=curve.values) / np.bincount(member)
    return Curve(batches * num_mini_batches, means)


def extremes(values: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """The places of at most `most` of the values that keep what the eye sees of all of them: the first, the last, and
    the lowest and the highest of each of most // 2 - 1 blocks of neighbours, so that no spike is lost. For drawing."""
    if values.size <= most:
        return np.arange(values.size)
    blocks = np.array_split(np.arange(values.size), most // 2 - 1)
    kept = {int(block[pick(values[block])]) for block in blocks for pick in (np.argmin, np.argmax)}
    return np.array(sorted(kept | {0, values.size - 1}), dtype=np.int64)


def thinned(curve: Curve, most: int) -> Curve:
    """The curve at its `extremes`."""
    kept = extremes(curve.values, most)
    return Curve(curve.versions[kept], curve.values[kept])


@dataclass(frozen=True, slots=True)
class Band:
    """An arm over its seeds: versions [m] · mean [m] · low, high [m]: mean -/+ one standard deviation over seeds
    (equal to the mean below three seeds) · num_seeds · stretch [m]: how much is missing before the point. On a
    logarithmic axis all three are of log values; where they are not defined is a gap, which no line may cross."""

    versions: NDArray[np.int64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    num_seeds: int
    stretch: NDArray[np.int64]

    def stretches(self) -> list[NDArray[np.int64]]:
        """The places of the points between gaps."""
        return [np.flatnonzero(self.stretch == number) for number in np.unique(self.stretch)]


def band(curves: Sequence[Curve], *, logarithmic: bool) -> Band | None:
    """Mean and spread at the versions that every curve has; None where there are none.

    On a logarithmic axis the mean is geometric, at the versions at which all values are positive.
    """
    if not curves or not all(len(curve) for curve in curves):
        return None
    versions = curves[0].versions
    for curve in curves[1:]:
        versions = np.intersect1d(versions, curve.versions)
    table = np.array([curve.values[np.isin(curve.versions, versions)] for curve in curves])
    stretch = np.zeros(versions.size, dtype=np.int64)
    if logarithmic:
        positive = (table > 0).all(axis=0)
        stretch = np.cumsum(~positive).astype(np.int64)[positive]  # equal for neighbours, and for these alone
        versions, table = versions[positive], np.log(table[:, positive])
    if not versions.size:
        return None
    mean = table.mean(axis=0)
    spread = table.std(axis=0, ddof=1) if len(curves) >= 3 else np.zeros_like(mean)
    parts = (mean, mean - spread, mean + spread)
    center, low, high = (np.exp(part) if logarithmic else part for part in parts)
    return Band(versions, center, low, high, len(curves), stretch)


def thinned_band(whole: Band, most: int) -> Band:
    """The band at the `extremes` of its mean."""
    kept = extremes(whole.mean, most)
    parts = (whole.versions[kept], whole.mean[kept], whole.low[kept], whole.high[kept])
    return Band(*parts, whole.num_seeds, whole.stretch[kept])


def collect(rows: Sequence[Mapping[str, object]]) -> dict[str, Curve]:
    """Every number of the rows by metric name. What is absent, null or not finite is a gap, never a zero."""
    points: dict[str, tuple[list[int], list[float]]] = {}
    for row in rows:
        version = row["version"]
        assert isinstance(version, int)
        for name, value in row.items():
            if name == "version" or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if np.isfinite(value):
                versions, values = points.setdefault(name, ([], []))
                versions.append(version)
                values.append(float(value))
    return {
        name: Curve(np.array(versions, dtype=np.int64), np.array(values, dtype=np.float64))
        for name, (versions, values) in points.items()
    }
