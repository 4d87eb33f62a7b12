"""Group baselines by hand, with responses that no verifier could grade."""

from __future__ import annotations

import math

import pytest
import torch
from algo_cases import algorithm
from hypothesis import given
from hypothesis import strategies as st

from minirl.algo.advantages import mixed_groups
from minirl.config import ConfigError
from minirl.types import Rewards


def advantage(kind: str, values: list[float], group_size: int, ungraded: tuple[int, ...] = ()) -> list[float]:
    graded = torch.ones(len(values), dtype=torch.bool)
    graded[list(ungraded)] = False
    rewards = Rewards(torch.tensor(values, dtype=torch.float64) * graded, graded)
    return algorithm("minirl", f"algo.advantage={kind}").advantage(rewards, group_size).tolist()


# two groups of different spread: means 1/2 and 2, sample variances 1/3 and 8/3
GROUPS = [0.0, 1.0, 0.0, 1.0, 0.0, 2.0, 2.0, 4.0]


def test_group_mean() -> None:
    assert advantage("group_mean", GROUPS, 4) == [-0.5, 0.5, -0.5, 0.5, -2.0, 0.0, 0.0, 2.0]


def test_group_mean_std_is_per_group_and_of_the_sample() -> None:
    """std = sqrt(1/3) and sqrt(8/3): neither the batch's nor the population's."""
    first, second = math.sqrt(1 / 3) + 1e-6, math.sqrt(8 / 3) + 1e-6
    expected = [-0.5 / first, 0.5 / first] * 2 + [-2 / second, 0, 0, 2 / second]
    assert advantage("group_mean_std", GROUPS, 4) == pytest.approx(expected, rel=1e-12)


def test_leave_one_out() -> None:
    """R_i minus the mean of the three others."""
    expected = [-2 / 3, 2 / 3, -2 / 3, 2 / 3, -8 / 3, 0, 0, 8 / 3]
    assert advantage("leave_one_out", GROUPS, 4) == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.floats(-10, 10), min_size=8, max_size=8))
def test_leave_one_out_is_group_mean_times_a_constant(values: list[float]) -> None:
    expected = [4 / 3 * a for a in advantage("group_mean", values, 4)]
    assert advantage("leave_one_out", values, 4) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("group_mean", [-2 / 3, 1 / 3, 0.0, 1 / 3]), ("leave_one_out", [-1.0, 0.5, 0.0, 0.5]),
     ("group_mean_std", [a / (math.sqrt(1 / 3) + 1e-6) for a in (-2 / 3, 1 / 3, 0.0, 1 / 3)])],
)  # fmt: skip
def test_a_verifier_error_is_no_reward(kind: str, expected: list[float]) -> None:
    """Rewards 0, 1, unknown, 1: statistics over three, A = 0 for the unknown one."""
    assert advantage(kind, [0.0, 1.0, 7.0, 1.0], 4, ungraded=(2,)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", ["group_mean", "group_mean_std", "leave_one_out"])
@pytest.mark.parametrize("ungraded", [(), (1,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_equal_rewards_give_exactly_zero(kind: str, ungraded: tuple[int, ...], reward: float) -> None:
    """Also where the mean of equal numbers is not that number, or only one response (or none) was graded."""
    values = torch.full((3,), reward)
    graded = torch.tensor([index not in ungraded for index in range(3)])
    algo = algorithm("minirl", f"algo.advantage={kind}")
    assert algo.advantage(Rewards(values * graded, graded), 3).tolist() == [0.0] * 3


def test_mixed_groups_look_at_graded_rewards_only() -> None:
    values = torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    graded = torch.tensor([True, True, True, True, False, True, False, False])
    assert mixed_groups(values, graded, 2).tolist() == [True, False, False, False]


@pytest.mark.parametrize("kind", ["group_mean", "group_mean_std", "leave_one_out"])
def test_a_group_of_one_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match="group_size=1"):
        advantage(kind, [0.0, 1.0], 1)


def test_groups_must_be_whole() -> None:
    with pytest.raises(ValueError, match="5 responses"):
        advantage("group_mean", [0.0, 1.0, 0.0, 1.0, 0.0], 2)


def test_axes_are_not_confused_when_groups_and_members_are_equally_many() -> None:
    """Four groups of four: the baseline is along the group."""
    values = [0.0, 0.0, 0.0, 4.0] + [1.0] * 4 + [2.0] * 4 + [3.0] * 4
    assert advantage("group_mean", values, 4) == [-1.0, -1.0, -1.0, 3.0] + [0.0] * 12
