"""Groups of responses change ranks so that every rank has as many tokens to train on: all wait for the longest.

How long a response gets is known only when it is there, so this happens between rollout and reward. Mini-batches keep
their groups, and groups stay whole: neither a gradient nor a metric changes but by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from minirl.types import Prompt, RolloutBatch, select
from minirl.world import World


def balanced(
    prompts: Sequence[Prompt], rollouts: RolloutBatch, num_mini_batches: int, world: World
) -> tuple[list[Prompt], RolloutBatch]:
    """This rank's prompts and their groups after the exchange: as many as before in each mini-batch, in its order."""
    if world.size == 1:
        return list(prompts), rollouts
    mine = rollouts.lengths.view(len(prompts), -1).sum(1).tolist()
    gathered = world.gather((list(prompts), mine, rollouts.lengths.tolist()))
    costs = [each[1] for each in gathered]
    homes = destinations(costs, num_mini_batches)
    received = exchanged(rollouts, [each[2] for each in gathered], homes, world)
    places = [(rank, group) for rank in range(world.size) for group in range(len(prompts))]
    arrived = [(group, rank) for rank, group in places if homes[rank][group] == world.rank]
    size = len(prompts) // num_mini_batches
    order = sorted(range(len(arrived)), key=lambda i: (arrived[i][0] // size, arrived[i][1], arrived[i][0]))
    members = torch.arange(len(received), device=received.tokens.device).view(len(prompts), -1)
    return [gathered[arrived[i][1]][0][arrived[i][0]] for i in order], select(received, members[order].flatten())


def destinations(costs: Sequence[Sequence[int]], num_mini_batches: int) -> list[list[int]]:
    """costs[rank][group] -> the rank that each group goes to: of every mini-batch as many to each rank as it had. The
    dearest group first, each to the rank with least so far that has room: the same on all ranks."""
    num_ranks, size = len(costs), len(costs[0]) // num_mini_batches
    homes = [[0] * len(costs[0]) for _ in costs]
    for begin in range(0, len(costs[0]), size):
        loads, room, part = [0] * num_ranks, [size] * num_ranks, range(begin, begin + size)
        groups = sorted((-costs[rank][group], rank, group) for rank in range(num_ranks) for group in part)
        for cost, rank, group in groups:
            home = min((each for each in range(num_ranks) if room[each]), key=lambda each: (loads[each], each != rank))
            homes[rank][group] = home
            loads[home] -= cost
            room[home] -= 1
    return homes


def exchanged(
    rollouts: RolloutBatch, lengths: Sequence[Sequence[int]], homes: Sequence[Sequence[int]], world: World
) -> RolloutBatch:
    """The groups whose home is this rank, by the rank they came from, then in its order. lengths[rank][response]."""
    size, device = rollouts.group_size, rollouts.tokens.device
    leaving = sorted(range(len(homes[world.rank])), key=lambda group: homes[world.rank][group])
    members = torch.arange(len(rollouts), device=device).view(-1, size)
    outgoing = select(rollouts, members[leaving].flatten())

    def responses(source: int, home: int) -> list[int]:
        """Their lengths."""
        groups = [group for group, each in enumerate(homes[source]) if each == home]
        return [length for group in groups for length in lengths[source][group * size : (group + 1) * size]]

    out = [responses(world.rank, rank) for rank in range(world.size)]
    into = [responses(rank, world.rank) for rank in range(world.size)]
    splits = {
        "response": ([len(each) for each in out], [len(each) for each in into]),
        "token": ([sum(each) for each in out], [sum(each) for each in into]),
    }
    ends = torch.tensor([0, *(length for each in into for length in each)], device=device).cumsum(0)
    return _sent(outgoing, splits, ends, world)


def _sent(stage: Any, splits: dict[str, tuple[list[int], list[int]]], ends: Tensor, world: World) -> Any:
    """The stage that arrives where `stage` is sent away: each field along its own axis."""
    changed: dict[str, Any] = {}
    for spec in fields(stage):
        part, axis = getattr(stage, spec.name), spec.metadata.get("axis")
        if axis in splits and part is not None:
            changed[spec.name] = world.exchange(part, *splits[axis])
        elif axis == "boundaries":
            changed[spec.name] = ends
        elif is_dataclass(part):
            changed[spec.name] = _sent(part, splits, ends, world)
    return replace(stage, **changed)
