"""Collapse and warnings on synthetic curves, and that the module needs no torch."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from minirl.metrics.collapse import BANDS, SMOOTHED_EVALUATIONS, alarm, alarms, collapse_onset, trailing_mean


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


def test_trailing_mean() -> None:
    assert trailing_mean([1, 2, 3, 4], 2).tolist() == [1.0, 1.5, 2.5, 3.5]
    assert trailing_mean([], 3).tolist() == []


Curves = dict[str, list[float]]


def rows(curves: Curves) -> list[dict[str, float]]:
    length = max(map(len, curves.values()))
    return [{"version": i} | {k: v[i] for k, v in curves.items() if i < len(v)} for i in range(length)]


def ramp(start: float, end: float, at: int, num: int = 60) -> list[float]:
    """Constant until update `at`, then straight to `end` over ten updates."""
    return [start + (end - start) * min(max(i - at, 0) / 10, 1.0) for i in range(num)]


HEALTHY = {
    "entropy/mean": ramp(0.3, 0.25, 20),
    "mismatch/kl_k1": ramp(3.5e-3, 5e-3, 20),
    "mismatch/extreme_tokens": ramp(1e-4, 3e-4, 20),
    "mismatch/seq_log_ratio_correct": ramp(-0.02, 0.02, 20),
    "length/repetition": ramp(0.02, 0.05, 20),
    "length/truncated": ramp(0.05, 0.1, 20),
}


def test_a_healthy_run_raises_no_alarm() -> None:
    assert alarms(rows(HEALTHY)) == []


@pytest.mark.parametrize(
    ("metric", "end", "direction"),
    [
        ("entropy/mean", 0.05, "below"),
        ("entropy/mean", 0.8, "above"),  # entropy that rises is an alarm too
        ("mismatch/kl_k1", 2e-2, "above"),
        ("mismatch/extreme_tokens", 0.3, "above"),
        ("mismatch/seq_log_ratio_correct", -1.0, "below"),
        ("length/repetition", 0.95, "above"),  # "!!!!"
        ("length/truncated", 0.9, "above"),
    ],
)
def test_each_band_is_left_in_its_direction(metric: str, end: float, direction: str) -> None:
    found = alarms(rows(HEALTHY | {metric: ramp(HEALTHY[metric][0], end, 30)}))
    assert [(raised.metric, raised.direction) for raised in found] == [(metric, direction)]
    assert 30 < found[0].version < 45 and not found[0].low <= found[0].value <= found[0].high


def test_every_band_has_its_test() -> None:
    assert set(BANDS) == set(HEALTHY)


def test_the_first_metric_to_leave_its_band_is_named_first() -> None:
    late = HEALTHY | {"entropy/mean": ramp(0.3, 0.02, 40), "mismatch/kl_k1": ramp(3e-3, 3e-2, 22)}
    first, second = alarms(rows(late))
    assert (first.metric, second.metric) == ("mismatch/kl_k1", "entropy/mean") and first.version < second.version


def test_three_times_nothing_is_no_excursion() -> None:
    """An exact engine: k1 is rounding noise of either sign."""
    curve = [1e-9 * (-1) ** i * (1 + i) for i in range(60)]
    assert alarm(rows({"mismatch/kl_k1": curve}), "mismatch/kl_k1") is None


def test_rows_without_the_metric_are_skipped() -> None:
    sparse = rows({"entropy/mean": ramp(0.3, 0.02, 30)})
    for row in sparse:
        if row["version"] % 4:
            del row["entropy/mean"]  # rollout figures exist once per rollout batch
    sparse.append({"version": 60, "entropy/mean": None})  # a figure that was not finite
    found = alarm(sparse, "entropy/mean")
    assert found is not None and found.version % 4 == 0 and found.version > 30


@pytest.mark.parametrize("num", [0, 1, 2, 5])
def test_short_runs_are_handled(num: int) -> None:
    assert alarms(rows({"entropy/mean": [0.3] * num}) if num else []) == []


def test_no_torch() -> None:
    code = "import sys, minirl.metrics.collapse; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
