"""Advantages from the rewards of a group (the responses to one prompt), per response.

Statistics are over the graded responses of the group; a response whose verifier failed has no reward, hence A = 0.
A group whose graded rewards are all equal gives exactly 0, not the rounding of a mean (which `group_mean_std` would
divide by its epsilon).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from minirl.config import Advantage, ConfigError

# keeps the standardised advantage finite; the papers name no value, this is verl's
STD_EPSILON = 1e-6


def by_group(values: Tensor, group_size: int) -> Tensor:
    """[B] -> [groups, group_size] float64. Raises where there is no group to compare with."""
    if group_size < 2:
        raise ConfigError(f"group_size={group_size}: a group baseline needs at least 2 responses per prompt")
    if len(values) % group_size:
        raise ValueError(f"{len(values)} responses are not a multiple of group_size={group_size}")
    return values.double().view(-1, group_size)


def mixed_groups(values: Tensor, graded: Tensor, group_size: int) -> Tensor:
    """max R > min R over the graded responses of each group. [groups] bool."""
    rewards, known = by_group(values, group_size), graded.view(-1, group_size)
    highest = rewards.masked_fill(~known, -torch.inf).amax(1)
    lowest = rewards.masked_fill(~known, torch.inf).amin(1)
    return highest > lowest


def group_mean(rewards: Tensor, known: Tensor) -> Tensor:
    """A_i = R_i - mean_group R (arXiv 2512.01374 §4.1). [groups, group_size]."""
    count = known.sum(1, keepdim=True).clamp(min=1)
    return rewards - (rewards * known).sum(1, keepdim=True) / count


def group_mean_std(rewards: Tensor, known: Tensor) -> Tensor:
    """A_i = (R_i - mean_group R) / (std_group R + 1e-6), sample standard deviation (GRPO). [groups, group_size]."""
    centred = group_mean(rewards, known)
    freedom = (known.sum(1, keepdim=True) - 1).clamp(min=1)
    variance = (centred.square() * known).sum(1, keepdim=True) / freedom
    return centred / (variance.sqrt() + STD_EPSILON)


def leave_one_out(rewards: Tensor, known: Tensor) -> Tensor:
    """A_i = R_i - mean_{j != i} R_j (RLOO) = n / (n - 1) (R_i - mean_group R), n graded. [groups, group_size]."""
    count = known.sum(1, keepdim=True)
    return group_mean(rewards, known) * count / (count - 1).clamp(min=1)


Baseline = Callable[[Tensor, Tensor], Tensor]

BASELINES: dict[Advantage, Baseline] = {
    Advantage.group_mean: group_mean,
    Advantage.group_mean_std: group_mean_std,
    Advantage.leave_one_out: leave_one_out,
}


def advantages(values: Tensor, graded: Tensor, group_size: int, baseline: Baseline) -> Tensor:
    """A_i of every response, [B] in the dtype of the rewards; 0 where not graded or where the group is all equal."""
    rewards, known = by_group(values, group_size), graded.view(-1, group_size)
    teaches = known & mixed_groups(values, graded, group_size)[:, None]
    return torch.where(teaches, baseline(rewards, known), 0.0).view(-1).to(values.dtype)
