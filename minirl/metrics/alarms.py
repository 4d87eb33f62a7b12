"""Which metric left its usual range, and when. Warnings, never verdicts. Works on rows of metrics.jsonl, without torch.

Ranges are relative to the run's own early level and to the noise of its early steps, so that one table serves every
scale. Each of them also trips in some healthy runs: docs/collapse.md has the rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

SMOOTHED_STEPS = 5  # a warning looks at the mean of this many rollout batches,
EARLY_STEPS = 10  # against the first this many (fewer in runs of under 40: a quarter of them)
NOISE = 6.0  # and at a distance that many standard deviations of a smoothed value at least

Row = Mapping[str, float]


def trailing_mean(values: Sequence[float], window: int) -> np.ndarray:
    """mean of values[i - window + 1 .. i]; of what there is for the first window - 1 entries."""
    upto = np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])
    ends = np.arange(1, len(upto))
    starts = np.maximum(ends - window, 0)
    return (upto[ends] - upto[starts]) / (ends - starts)


def noise(values: Sequence[float]) -> float:
    """1.4826 median |x_i - x_(i-1)| / sqrt 2: the standard deviation of white noise on a slow curve, whatever the
    curve does and however far a few values stray. 0 for fewer than three values."""
    if len(values) < 3:
        return 0.0
    return 1.4826 * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)


@dataclass(frozen=True)
class Band:
    """low = min(low_factor * level, level - fall, level - d); None: no lower bound
    high = max(high_factor * level, level + rise, level + d, floor); None: no upper bound

    level: mean of the early steps · d: NOISE standard deviations of a smoothed value · floor: anything below it is
    harmless (three times nothing is no alarm).
    """

    low_factor: float | None = None
    fall: float = 0.0
    high_factor: float | None = None
    rise: float = 0.0
    floor: float = -math.inf

    def range(self, level: float, distance: float) -> tuple[float, float]:
        low, high = -math.inf, math.inf
        if self.low_factor is not None:
            low = min(self.low_factor * level, level - self.fall, level - distance)
        if self.high_factor is not None:
            high = max(self.high_factor * level, level + self.rise, level + distance, self.floor)
        return low, high

    def __str__(self) -> str:
        parts = []
        if self.low_factor is not None:
            parts.append(f"below {_times(self.low_factor)}" + (f" - {self.fall:g}" if self.fall else ""))
        if self.high_factor is not None:
            parts.append(f"above {_times(self.high_factor)}" + (f" + {self.rise:g}" if self.rise else ""))
            parts[-1] += f" and above {self.floor:g}" if math.isfinite(self.floor) else ""
        return "; ".join(parts)


def _times(factor: float) -> str:
    return "its early level" if factor == 1 else f"{factor:g} times its early level"


# Entropy and KL: arXiv 2512.01374, read off its figures. extreme_tokens: arXiv 2510.11370. ESS: below 0.3 is verl's
# alert. Correct responses that the trainer finds unlikely: measured on toy models, 3 to 11 updates before the reward
# falls. The others: measured on toy models (docs/collapse.md).
BANDS: dict[str, Band] = {
    "mismatch/seq_log_ratio_correct": Band(low_factor=1.0, fall=0.3),
    "mismatch/kl_k1": Band(high_factor=3.0, floor=1e-3),
    "mismatch/extreme_tokens": Band(high_factor=10.0, floor=0.1),
    "staleness/kl_k3": Band(high_factor=5.0, floor=0.1),
    "is_weight/ess": Band(low_factor=0.5),
    "entropy/mean": Band(low_factor=0.5, high_factor=1.5),
    "optim/grad_norm": Band(low_factor=0.1, high_factor=5.0),
    "length/mean": Band(low_factor=0.5, high_factor=2.0),
    "length/repetition": Band(high_factor=1.0, rise=0.3),
    "length/truncated": Band(high_factor=1.0, rise=0.3),
}
REWARD = "reward/mean"
WATCHED = (*BANDS, REWARD, "eval/avg", "eval/se")  # all that warnings and verdicts look at


@dataclass(frozen=True)
class Alarm:
    """`metric` left its band at `version`, with this (smoothed) value. direction: above | below · bound: the one
    that was passed (the other may be infinite, which JSON cannot hold) · lasts: it is still outside at the end."""

    metric: str
    version: int
    value: float
    direction: str
    bound: float
    lasts: bool

    def __str__(self) -> str:
        place = f"{self.direction} its band since update {self.version}"
        return f"{self.metric} {place}: {self.value:.3g}, the bound is {self.bound:.3g}"


def by_step(rows: Sequence[Row], metric: str) -> tuple[list[int], list[float]]:
    """(versions, values) of a metric, one per rollout batch: what is logged at each of its N updates is averaged,
    because it grows with the staleness within a batch. Rows without the metric, or with null, are skipped."""
    versions, sums, counts = list[int](), list[float](), list[int]()
    started = True
    for row in rows:
        started |= row.get(REWARD) is not None
        value = row.get(metric)
        if value is None:
            continue
        if started:
            versions.append(int(row["version"]))
            sums.append(0.0)
            counts.append(0)
        started = False
        sums[-1] += float(value)
        counts[-1] += 1
    return versions, [total / count for total, count in zip(sums, counts, strict=True)]


def early_steps(num_steps: int) -> int:
    """How many rollout batches of a run of `num_steps` say what is usual for it."""
    return min(EARLY_STEPS, max(1, num_steps // 4))


def alarm(rows: Sequence[Row], metric: str, early: int) -> Alarm | None:
    """The first time that the smoothed metric leaves its band after the early steps, if it does."""
    versions, values = by_step(rows, metric)
    if len(values) <= early:
        return None
    window = min(SMOOTHED_STEPS, early)
    smoothed = trailing_mean(values, window)[early:]
    distance = NOISE * noise(values[:early]) / math.sqrt(window)
    low, high = BANDS[metric].range(float(np.mean(values[:early])), distance)
    return _first(metric, versions[early:], smoothed, np.full(len(smoothed), low), np.full(len(smoothed), high))


def _first(metric: str, versions: Sequence[int], values: np.ndarray, low: np.ndarray, high: np.ndarray) -> Alarm | None:
    """The beginning of the unbroken stretch outside that ends the run; of a metric that came back, of its first."""
    outside = (values < low) | (values > high)
    if not outside.any():
        return None
    lasts = bool(outside[-1])
    place = len(outside) - int(np.argmin(outside[::-1])) if lasts and not outside.all() else int(np.argmax(outside))
    direction, bound = ("above", high) if values[place] > high[place] else ("below", low)
    return Alarm(metric, versions[place], float(values[place]), direction, float(bound[place]), lasts)


def reward_drop(rows: Sequence[Row], margin: float, early: int) -> Alarm | None:
    """The training reward, smoothed, more than `margin` standard errors of a difference below its own peak so far."""
    versions, values = by_step(rows, REWARD)
    window = min(SMOOTHED_STEPS, max(early, 2))
    if len(values) <= window:
        return None
    smoothed = trailing_mean(values, window)
    smoothed[: window - 1] = smoothed[window - 1]  # a mean of fewer is no peak
    low = np.maximum.accumulate(smoothed) - margin * noise(values) * math.sqrt(2 / window)
    return _first(REWARD, versions, smoothed, low, np.full(len(low), math.inf))


def alarms(rows: Sequence[Row], early: int) -> list[Alarm]:
    """All metrics that left their band, the first one first; of those that left together, in the order of BANDS."""
    raised = [found for metric in BANDS if (found := alarm(rows, metric, early)) is not None]
    return sorted(raised, key=lambda found: found.version)
