"""How a mini-batch is cut into micro-batches, and how a micro-batch is laid out for a forward.

Rows are padded on the right and attention is causal, so padding is never attended to and needs no mask. The last
token of a sequence predicts nothing here and is not fed. Neither a gradient nor a metric depends on the cut.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from minirl.types import RolloutBatch

Stage = TypeVar("Stage")

FIXED_COST_TOKENS = 256  # a micro-batch costs as much as this many more tokens (the tiny MoE, one core: 200 to 400)


def micro_batches(lengths: Tensor, *, max_tokens: int) -> list[Tensor]:
    """Response indices of each micro-batch: sorted by length, then cut where the sum over micro-batches of

        rows * (longest - 1) + FIXED_COST_TOKENS

    is least, with rows * (longest - 1) <= max_tokens, so short responses do not pay for long ones. A response longer
    than the budget is a micro-batch of its own. lengths [B], prompt included. Exact, by dynamic programming.
    """
    order = torch.argsort(lengths, stable=True)
    widths = (lengths[order].cpu().numpy() - 1).clip(min=1)
    best, cut = np.zeros(len(widths) + 1), np.zeros(len(widths) + 1, dtype=int)
    for end in range(1, len(widths) + 1):
        areas = np.arange(end, 0, -1) * widths[end - 1]  # of the micro-batch start .. end, for each start
        costs = np.where(areas <= max_tokens, best[:end] + areas + FIXED_COST_TOKENS, np.inf)
        if areas[-1] > max_tokens:
            costs[-1] = best[end - 1] + areas[-1] + FIXED_COST_TOKENS
        cut[end] = int(costs.argmin())
        best[end] = costs[cut[end]]
    parts, end = [], len(widths)
    while end:
        parts.append(order[cut[end] : end])
        end = int(cut[end])
    return parts[::-1]


@dataclass(frozen=True, slots=True)
class Padded:
    """A micro-batch as the model sees it. n = fed tokens, R = response tokens.

    tokens [rows, time] · fed [T] bool: every token but each sequence's last · slots [n]: where in the flattened
    tokens each fed token stands · sources [R]: the slot whose output predicts each response token · targets [R].
    """

    tokens: Tensor
    fed: Tensor
    slots: Tensor
    sources: Tensor
    targets: Tensor

    def spread(self, values: Tensor) -> Tensor:
        """[T, ...] -> [rows * time, ...]: zeros where nothing is fed."""
        flat = values.new_zeros(self.tokens.numel(), *values.shape[1:])
        flat[self.slots] = values[self.fed]
        return flat

    def collect(self, values: Tensor) -> Tensor:
        """[rows * time, ...] -> [T, ...]: zeros at the tokens that are not fed."""
        packed = values.new_zeros(self.fed.shape[0], *values.shape[1:])
        packed[self.fed] = values[self.slots]
        return packed


def padded(rollouts: RolloutBatch) -> Padded:
    """The layout of a micro-batch; of no responses: one token that predicts nothing, so that every rank has a
    forward and a backward to take part in."""
    sequences, starts = rollouts.sequence_ids, rollouts.cu_seqlens[:-1]
    offsets = torch.arange(rollouts.tokens.shape[0], device=rollouts.tokens.device) - starts[sequences]
    if bool((rollouts.response_mask & (offsets == 0)).any()):
        raise ValueError("a response token stands first in its sequence: nothing predicts it, prompts cannot be empty")
    rows, time = max(len(rollouts), 1), max(int(rollouts.lengths.max()) - 1, 1) if len(rollouts) else 1
    fed = offsets < rollouts.lengths[sequences] - 1
    places = sequences * time + offsets
    tokens = rollouts.tokens.new_zeros(rows * time)
    tokens[places[fed]] = rollouts.tokens[fed]
    mask = rollouts.response_mask
    return Padded(tokens.view(rows, time), fed, places[fed], places[mask] - 1, rollouts.tokens[mask])


def moved(stage: Stage, device: torch.device) -> Stage:
    """The same stage with all its tensors on `device`: one micro-batch at a time, so that routes of a whole batch
    never fill the accelerator."""
    if not is_dataclass(stage):
        return stage
    changed: dict[str, Any] = {}
    for spec in fields(stage):
        part: Any = getattr(stage, spec.name)
        if isinstance(part, Tensor):
            changed[spec.name] = part.to(device)
        elif is_dataclass(part):
            changed[spec.name] = moved(part, device)
    return replace(stage, **changed)  # type: ignore[type-var]
