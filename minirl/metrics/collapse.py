"""Has a run collapsed, since when, and which metric left its usual range first? Works on rows of metrics.jsonl, without
torch. Every threshold is in standard errors of the run's own figures: one code for every scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minirl.metrics.alarms import Alarm, Row, alarms, reward_drop, trailing_mean

SMOOTHED_EVALUATIONS = 3
PATIENCE = 3  # evaluations in a row, not smoothed, that must be below before a run is stopped


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
    below = _below(scores, errors, margin)
    if len(scores) < SMOOTHED_EVALUATIONS or not below[-1]:
        return None
    return int(versions[_stretch(below)])


def _below(scores: Sequence[float], errors: Sequence[float], margin: float) -> np.ndarray:
    """[n] bool: after the peak, and more than `margin` standard errors below it."""
    if not len(scores):
        return np.zeros(0, dtype=bool)
    smoothed = trailing_mean(scores, SMOOTHED_EVALUATIONS)
    peak = int(np.argmax(smoothed))
    below = smoothed < smoothed[peak] - margin * _error(errors)
    below[: peak + 1] = False
    return below


def _error(errors: Sequence[float]) -> float:
    return math.sqrt(float(np.mean(np.square(errors))))


def _stretch(below: np.ndarray) -> int:
    """Where the unbroken stretch begins that ends the run; the peak is never below, so there is one."""
    return len(below) - int(np.argmin(below[::-1]))


@dataclass(frozen=True)
class Collapse:
    """onset: version of the first evaluation of the fall · first: the metric that left its band first and was still
    outside at the onset, None where none was · last_good: version of the last evaluation before the fall that was
    within one standard error of the peak · confirmed: long enough and in the training reward too."""

    onset: int
    first: Alarm | None
    last_good: int
    confirmed: bool

    def __str__(self) -> str:
        before = f"first out of its band: {self.first}" if self.first is not None else "no metric left its band before"
        return f"collapsed at update {self.onset}; {before}; last good evaluation at update {self.last_good}"


def collapse(rows: Sequence[Row], *, margin: float, early: int) -> Collapse | None:
    """What the rows so far say; early: steps that tell what is usual (`alarms.early_steps`)."""
    versions, scores, errors = evaluations(rows)
    onset = collapse_onset(versions, scores, errors, margin=margin)
    if onset is None:
        return None
    drop = reward_drop(rows, margin, early)
    return Collapse(
        onset=onset,
        first=first_out(rows, onset, early),
        last_good=last_good(versions, scores, errors, before=onset),
        confirmed=_lasts(scores, errors, margin) and drop is not None and drop.lasts,
    )


def _lasts(scores: Sequence[float], errors: Sequence[float], margin: float) -> bool:
    """Whether the last PATIENCE evaluations, each by itself, are below: a smoothed curve is still low when a short dip
    is over."""
    bound = float(trailing_mean(scores, SMOOTHED_EVALUATIONS).max()) - margin * _error(errors)
    return len(scores) >= PATIENCE and max(scores[-PATIENCE:]) < bound


def evaluations(rows: Sequence[Row]) -> tuple[list[int], list[float], list[float]]:
    """(versions, scores, standard errors) of the rows that have an evaluation."""
    seen = [row for row in rows if row.get("eval/avg") is not None and row.get("eval/se") is not None]
    return [int(row["version"]) for row in seen], [row["eval/avg"] for row in seen], [row["eval/se"] for row in seen]


def first_out(rows: Sequence[Row], onset: int, early: int) -> Alarm | None:
    """Of the metrics that are outside their band at the onset, the one that has been so for longest."""
    lasting = [raised for raised in alarms([row for row in rows if row["version"] <= onset], early) if raised.lasts]
    return min(lasting, key=lambda raised: raised.version, default=None)


def last_good(versions: Sequence[int], scores: Sequence[float], errors: Sequence[float], *, before: int) -> int:
    """The last version before `before` whose smoothed evaluation is within one standard error of the peak until
    then; of equal ones the newest."""
    count = sum(version < before for version in versions)
    if not count:
        return versions[0]
    smoothed = trailing_mean(scores[:count], SMOOTHED_EVALUATIONS)
    good = np.flatnonzero(smoothed >= smoothed.max() - _error(errors))
    return versions[int(good[-1])]
