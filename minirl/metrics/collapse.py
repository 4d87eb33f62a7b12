"""Has a run collapsed, and which metric left its usual range first? Works on rows of metrics.jsonl, without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

SMOOTHED_EVALUATIONS = 3
SMOOTHED_ROWS = 5  # a warning looks at the mean of this many rows,
EARLY_ROWS = 10  # against the mean of the first this many (fewer in runs of under 40 rows: a quarter of them)


def trailing_mean(values: Sequence[float], window: int) -> np.ndarray:
    """mean of values[i - window + 1 .. i]; of what there is for the first window - 1 entries."""
    upto = np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])
    ends = np.arange(1, len(upto))
    starts = np.maximum(ends - window, 0)
    return (upto[ends] - upto[starts]) / (ends - starts)


def collapse_onset(
    versions: Sequence[int], scores: Sequence[float], errors: Sequence[float], *, margin: float
) -> int | None:
    """The version from which the smoothed evaluation stays more than `margin` standard errors below its own peak until
    the end of the run; None where it does not end there (a dip that has recovered is no collapse).

    scores, errors: mean and standard error of each evaluation, in the order of versions. Smoothed is the trailing mean
    of 3 evaluations, shorter at the start, so that a fall right after the cold start is seen. One standard error stands
    for all of them, the root of their mean square: an evaluation that is all wrong has a standard error of 0, which
    must not turn the smallest difference into a collapse. Fewer than 3 evaluations cannot tell a collapse from one bad
    evaluation: None.
    """
    if len(scores) < SMOOTHED_EVALUATIONS:
        return None
    smoothed = trailing_mean(scores, SMOOTHED_EVALUATIONS)
    peak = int(np.argmax(smoothed))
    error = math.sqrt(float(np.mean(np.square(errors))))
    below = smoothed < smoothed[peak] - margin * error
    below[: peak + 1] = False
    if not below[-1]:
        return None
    onset = len(below) - int(np.argmin(below[::-1]))  # the first of the unbroken stretch that ends the run
    return int(versions[onset])


Range = tuple[float, float]


def within(low: float, high: float) -> Callable[[float], Range]:
    """The same range for every run."""
    return lambda early: (low, high)


def scaled(low: float, high: float) -> Callable[[float], Range]:
    """A range in multiples of the run's early level."""
    return lambda early: (low * early, high * early)


def above_by(rise: float) -> Callable[[float], Range]:
    """At most `rise` above the run's early level."""
    return lambda early: (-math.inf, early + rise)


def below_multiple(factor: float, floor: float) -> Callable[[float], Range]:
    """At most `factor` times the early level, and anything below `floor`: three times nothing is no alarm."""
    return lambda early: (-math.inf, max(factor * early, floor))


# Warnings, not verdicts: each of them also trips in some healthy runs (entropy falls in every run that sharpens).
# Entropy and KL: arXiv 2512.01374, read off its figures. extreme_tokens: arXiv 2510.11370. Correct responses that the
# trainer finds unlikely: measured on toy models, 3 to 11 updates before the reward falls.
BANDS: dict[str, Callable[[float], Range]] = {
    "mismatch/seq_log_ratio_correct": within(-0.3, math.inf),
    "mismatch/kl_k1": below_multiple(3.0, 1e-3),
    "mismatch/extreme_tokens": within(-math.inf, 0.1),
    "entropy/mean": scaled(0.5, 1.5),
    "length/repetition": above_by(0.3),
    "length/truncated": above_by(0.3),
}


@dataclass(frozen=True)
class Alarm:
    """`metric` left [low, high] at `version`, with this (smoothed) value."""

    metric: str
    version: int
    value: float
    low: float
    high: float

    @property
    def direction(self) -> str:
        return "above" if self.value > self.high else "below"


def alarm(rows: Sequence[Mapping[str, float]], metric: str) -> Alarm | None:
    """The first time that the 5-row mean of `metric` leaves its band after the early rows, if it does.

    Rows without the metric are skipped. Whatever is out of an absolute band from the start is reported at once.
    """
    seen = [(int(row["version"]), float(row[metric])) for row in rows if row.get(metric) is not None]
    num_early = min(EARLY_ROWS, max(1, len(seen) // 4))
    if len(seen) <= num_early:
        return None
    smoothed = trailing_mean([value for _, value in seen], min(SMOOTHED_ROWS, num_early))
    early = float(np.mean([value for _, value in seen[:num_early]]))
    low, high = BANDS[metric](early)
    for (version, _), value in list(zip(seen, smoothed.tolist(), strict=True))[num_early - 1 :]:
        if not low <= value <= high:
            return Alarm(metric, version, value, low, high)
    return None


def alarms(rows: Sequence[Mapping[str, float]]) -> list[Alarm]:
    """All metrics that left their band, the first one first; of those that left together, in the order of BANDS."""
    raised = [found for metric in BANDS if (found := alarm(rows, metric)) is not None]
    return sorted(raised, key=lambda found: found.version)
