"""Warnings on synthetic curves, in both directions, and that they need no torch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from minirl.metrics.alarms import BANDS, Alarm, alarm, alarms, by_step, early_steps, noise, reward_drop, trailing_mean


def test_trailing_mean() -> None:
    assert trailing_mean([1, 2, 3, 4], 2).tolist() == [1.0, 1.5, 2.5, 3.5]
    assert trailing_mean([], 3).tolist() == []


def test_noise_is_that_around_a_slow_curve() -> None:
    random = np.random.default_rng(0)
    curve = np.linspace(0, 1, 2000) + random.normal(scale=0.03, size=2000)
    assert noise(curve.tolist()) == pytest.approx(0.03, rel=0.05)
    curve[::50] += 5  # a few that stray
    assert noise(curve.tolist()) == pytest.approx(0.03, rel=0.1)
    assert noise([1.0, 9.0]) == 0.0


Curves = dict[str, list[float]]
Rows = list[dict[str, float]]


def rows(curves: Curves) -> Rows:
    """N = 1: every update has a rollout batch of its own."""
    length = max(map(len, curves.values()))
    return [
        {"version": i, "reward/mean": 0.5} | {k: v[i] for k, v in curves.items() if i < len(v)} for i in range(length)
    ]


def raised(seen: Rows, metric: str) -> Alarm | None:
    return alarm(seen, metric, early_steps(len(seen)))


def all_raised(seen: Rows) -> list[Alarm]:
    return alarms(seen, early_steps(len(seen)))


def ramp(start: float, end: float, at: int, num: int = 60) -> list[float]:
    """Constant until update `at`, then straight to `end` over ten updates."""
    return [start + (end - start) * min(max(i - at, 0) / 10, 1.0) for i in range(num)]


HEALTHY = {
    "entropy/mean": ramp(0.3, 0.25, 20),
    "mismatch/kl_k1": ramp(3.5e-3, 5e-3, 20),
    "mismatch/extreme_tokens": ramp(1e-4, 3e-4, 20),
    "mismatch/seq_log_ratio_correct": ramp(-0.02, 0.02, 20),
    "staleness/kl_k3": ramp(1e-2, 3e-2, 20),
    "is_weight/ess": ramp(0.9, 0.8, 20),
    "optim/grad_norm": ramp(2.0, 5.0, 20),
    "length/mean": ramp(20.0, 15.0, 20),
    "length/repetition": ramp(0.02, 0.05, 20),
    "length/truncated": ramp(0.05, 0.1, 20),
}


def test_a_healthy_run_raises_no_alarm() -> None:
    assert all_raised(rows(HEALTHY)) == []


@pytest.mark.parametrize(
    ("metric", "end", "direction"),
    [
        ("entropy/mean", 0.05, "below"),
        ("entropy/mean", 0.8, "above"),  # entropy that rises is an alarm too
        ("mismatch/kl_k1", 2e-2, "above"),
        ("mismatch/extreme_tokens", 0.3, "above"),
        ("mismatch/seq_log_ratio_correct", -1.0, "below"),
        ("staleness/kl_k3", 1.0, "above"),
        ("is_weight/ess", 0.2, "below"),
        ("optim/grad_norm", 0.0, "below"),  # all groups are wrong alike: nothing is learned any more
        ("optim/grad_norm", 20.0, "above"),
        ("length/mean", 5.0, "below"),
        ("length/mean", 60.0, "above"),
        ("length/repetition", 0.95, "above"),  # "!!!!"
        ("length/truncated", 0.9, "above"),
    ],
)
def test_each_band_is_left_in_its_direction(metric: str, end: float, direction: str) -> None:
    found = all_raised(rows(HEALTHY | {metric: ramp(HEALTHY[metric][0], end, 30)}))
    assert [(one.metric, one.direction, one.lasts) for one in found] == [(metric, direction, True)]
    assert 30 < found[0].version < 45
    assert (found[0].value > found[0].bound) == (direction == "above")


def test_every_band_has_its_test() -> None:
    assert set(BANDS) == set(HEALTHY)


def test_the_first_metric_to_leave_its_band_is_named_first() -> None:
    late = HEALTHY | {"entropy/mean": ramp(0.3, 0.02, 40), "mismatch/kl_k1": ramp(3e-3, 3e-2, 22)}
    first, second = all_raised(rows(late))
    assert (first.metric, second.metric) == ("mismatch/kl_k1", "entropy/mean") and first.version < second.version


def test_three_times_nothing_is_no_excursion() -> None:
    """An exact engine: k1 is rounding noise of either sign."""
    curve = [1e-9 * (-1) ** i * (1 + i) for i in range(60)]
    assert raised(rows({"mismatch/kl_k1": curve}), "mismatch/kl_k1") is None


def test_a_noisy_metric_has_a_wide_band() -> None:
    """Long responses: the log ratio of a response is tens of nats and scatters by several of them."""
    random = np.random.default_rng(3)
    steady = (-30 + 4 * random.standard_normal(200)).tolist()
    assert raised(rows({"mismatch/seq_log_ratio_correct": steady}), "mismatch/seq_log_ratio_correct") is None
    falling = [*steady[:100], *(value - 60 for value in steady[100:])]
    found = raised(rows({"mismatch/seq_log_ratio_correct": falling}), "mismatch/seq_log_ratio_correct")
    assert found is not None and 100 <= found.version < 105


def test_a_metric_that_comes_back_is_told_as_such() -> None:
    found = raised(rows({"entropy/mean": [0.3] * 20 + [0.05] * 10 + [0.3] * 30}), "entropy/mean")
    assert found is not None and not found.lasts and 20 <= found.version < 30


def test_updates_of_one_rollout_batch_are_one_step() -> None:
    """Staleness grows within a batch: a mean over five rows would rise and fall with it."""
    seen: Rows = []
    for version in range(64):
        seen.append({"version": version, "staleness/kl_k3": 0.03 * (version % 8)})
        if version % 8 == 0:
            seen[-1]["reward/mean"] = 0.5
    versions, values = by_step(seen, "staleness/kl_k3")
    assert versions == list(range(0, 64, 8)) and values == pytest.approx([0.03 * 3.5] * 8)


def test_rows_without_the_metric_are_skipped() -> None:
    sparse = rows({"entropy/mean": ramp(0.3, 0.02, 30)})
    for row in sparse:
        if row["version"] % 4:
            del row["entropy/mean"], row["reward/mean"]  # rollout figures exist once per rollout batch
    sparse.append({"version": 60, "entropy/mean": None})  # a figure that was not finite
    found = raised(sparse, "entropy/mean")
    assert found is not None and found.version % 4 == 0 and found.version > 30


@pytest.mark.parametrize("num", [0, 1, 2, 5])
def test_short_runs_are_handled(num: int) -> None:
    assert all_raised(rows({"entropy/mean": [0.3] * num}) if num else []) == []
    assert reward_drop([{"version": i, "reward/mean": 0.5} for i in range(num)], 4.0, 10) is None


def test_a_drop_of_the_reward_is_measured_in_its_own_noise() -> None:
    random = np.random.default_rng(5)
    still = [{"version": i, "reward/mean": 0.5 + 0.03 * float(x)} for i, x in enumerate(random.standard_normal(80))]
    assert reward_drop(still, 4.0, 10) is None
    fallen = still[:60] + [row | {"reward/mean": row["reward/mean"] - 0.15} for row in still[60:]]
    found = reward_drop(fallen, 4.0, 10)
    assert found is not None and found.lasts and 60 <= found.version < 68 and found.direction == "below"


def test_no_torch() -> None:
    code = "import sys, minirl.metrics.collapse; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
