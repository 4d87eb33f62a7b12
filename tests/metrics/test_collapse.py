"""Collapse of synthetic evaluations, its onset, what left its band first, and what is still good."""

from __future__ import annotations

import math

import numpy as np
import pytest

from minirl.metrics.collapse import PATIENCE, SMOOTHED_EVALUATIONS, Collapse, collapse, collapse_onset, last_good


def onset(scores: list[float], *, margin: float = 4.0, error: float = 0.02) -> int | None:
    return collapse_onset([8 * i for i in range(len(scores))], scores, [error] * len(scores), margin=margin)


RISE = [0.5, 0.6, 0.7, 0.75, 0.8, 0.8]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (RISE, None),
        ([0.8] * 6, None),
        ([*RISE, 0.2, 0.1, 0.0, 0.0], 48),
        ([*RISE, 0.2, 0.1, 0.6, 0.8, 0.8, 0.8], None),  # a dip that recovers
        ([*RISE, 0.1, 0.1, 0.8, 0.8, 0.8, 0.1, 0.0, 0.0], 88),  # the onset is that of the fall it ends in
        ([*RISE, 0.78, 0.76, 0.75], None),  # 2 standard errors
        ([*RISE, *np.linspace(0.8, 0.3, 12).tolist()], 72),  # slow: from where the smoothed curve stays below
        ([0.5, 0.0, 0.0, 0.0], 8),  # right after the cold start
        ([0.5, 0.9, 0.0], 16),  # as few as there may be
    ],
)
def test_onset(scores: list[float], expected: int | None) -> None:
    assert onset(scores) == expected


@pytest.mark.parametrize("scores", [[], [0.9], [0.9, 0.0]])
def test_fewer_evaluations_than_one_window_cannot_tell(scores: list[float]) -> None:
    assert len(scores) < SMOOTHED_EVALUATIONS and onset(scores) is None


def test_the_margin_is_in_standard_errors() -> None:
    scores = [*RISE, 0.7, 0.7, 0.7]  # the smoothed peak is 0.783 and the end 0.7
    assert onset(scores, margin=4.0, error=0.02) == 64
    assert onset(scores, margin=4.0, error=0.025) is None
    assert onset(scores, margin=5.0, error=0.02) is None


def test_an_evaluation_that_is_all_wrong_does_not_shrink_the_error_to_nothing() -> None:
    scores = [0.02, 0.02, 0.0, 0.0, 0.0, 0.0]
    errors = [0.02, 0.02, 0.0, 0.0, 0.0, 0.0]
    assert collapse_onset(range(6), scores, errors, margin=4.0) is None


def test_noise_around_a_level_seldom_counts_as_a_collapse() -> None:
    """13 evaluations of 128 problems x 2 samples at a constant accuracy of 0.7, margin 4: below 1 % of null runs."""
    generator = np.random.default_rng(0)
    error = math.sqrt(0.7 * 0.3 / 256)
    runs = 0.7 + error * generator.standard_normal((2000, 13))
    assert sum(collapse_onset(range(13), run, [error] * 13, margin=4.0) is not None for run in runs) < 20


Rows = list[dict[str, float]]


def run(scores: list[float], rewards: list[float], **curves: list[float]) -> Rows:
    """A row per update, an evaluation at every second one."""
    rows = [{"version": float(i), "reward/mean": reward} for i, reward in enumerate(rewards)]
    for i, score in enumerate(scores):
        rows[2 * i] |= {"eval/avg": score, "eval/se": 0.02}
    for metric, values in curves.items():
        for row, value in zip(rows, values, strict=False):
            row[metric.replace("__", "/")] = value
    return rows


def wobbling(values: list[float]) -> list[float]:
    """A training reward with a noise of 0.02 about each of two rows per value."""
    noise = np.random.default_rng(1).normal(scale=0.02, size=2 * len(values))
    return (np.repeat(values, 2) + noise).tolist()


FALL = [*RISE, 0.2, 0.1, 0.05, 0.05, 0.05]


def judged(rows: Rows) -> Collapse | None:
    return collapse(rows, margin=4.0, early=4)


def test_a_fall_is_confirmed_once_it_lasts_and_the_reward_shows_it() -> None:
    """Never on the first evaluation below: a run would be stopped that comes back."""
    told = [judged(run(FALL[:n], wobbling(FALL[:n]))) for n in range(1, len(FALL) + 1)]
    since = [found.confirmed if found else None for found in told]
    assert since == [None] * len(RISE) + [False] * (PATIENCE - 1) + [True] * (len(FALL) - len(RISE) - PATIENCE + 1)
    assert {found.onset for found in told if found} == {2 * len(RISE)}
    assert {type(found.confirmed) for found in told if found} == {bool}  # run.json holds it; numpy's own is no JSON


def test_an_evaluation_that_falls_alone_stops_nothing() -> None:
    """Broken grading of the held-out problems, say: the training reward goes on rising."""
    found = judged(run(FALL, wobbling([0.5 + 0.02 * i for i in range(len(FALL))])))
    assert found is not None and not found.confirmed


def test_what_left_its_band_first_is_named() -> None:
    rewards = wobbling(FALL)
    calm, early, late = [0.3] * 22, [0.3] * 8 + [0.01] * 14, [3e-3] * 11 + [3e-2] * 11
    found = judged(run(FALL, rewards, entropy__mean=early, mismatch__kl_k1=late))
    assert found is not None and found.first is not None
    assert (found.first.metric, found.first.direction) == ("entropy/mean", "below")
    assert 8 <= found.first.version < found.onset
    assert "entropy/mean below its band" in str(found)
    quiet = judged(run(FALL, rewards, entropy__mean=calm))
    assert quiet is not None and quiet.first is None


def test_what_has_come_back_before_the_fall_is_not_named() -> None:
    back = [0.3] * 6 + [0.05] * 2 + [0.3] * 14
    found = judged(run(FALL, wobbling(FALL), entropy__mean=back))
    assert found is not None and found.first is None


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.5, 0.6, 0.7], 16),
        ([0.5, 0.7, 0.69, 0.69], 24),  # within one standard error of the best: the newest of them
        ([0.5, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4], 24),
        ([0.5], 0),
    ],
)
def test_the_last_good_evaluation(scores: list[float], expected: int) -> None:
    versions = [8 * i for i in range(len(scores))]
    assert last_good(versions, scores, [0.02] * len(scores), before=1000) == expected


def test_the_last_good_evaluation_is_one_before_the_onset() -> None:
    found = judged(run(FALL, wobbling(FALL)))
    assert found is not None and found.last_good == 2 * (len(RISE) - 1) < found.onset
