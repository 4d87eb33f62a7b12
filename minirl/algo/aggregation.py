"""a_it: what one token weighs in the loss of a mini-batch.

B responses, T tokens and P groups are totals of *counted* responses over all ranks, known before the first backward;
T_i is the counted length of response i. So neither micro-batches nor ranks can change a gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from minirl.algo.equations import broadcast, segment_sum
from minirl.config import AggregationConfig, AggregationKind, ConfigError
from minirl.types import TrainBatch


class Totals(NamedTuple):
    """Counted responses B, tokens T and groups P of a mini-batch: scalars, float64."""

    responses: Tensor
    tokens: Tensor
    groups: Tensor


class Lengths(NamedTuple):
    """Counted tokens of each token's response (T_i) and of its whole group: [T] float64 each."""

    response: Tensor
    group: Tensor


def seq_mean_token_sum(lengths: Lengths, totals: Totals) -> Tensor:
    """1 / B (MiniRL, arXiv 2512.01374 eq 7: a sum over tokens, an expectation over responses)."""
    return (1 / totals.responses).expand_as(lengths.response)


def seq_mean_token_mean(lengths: Lengths, totals: Totals) -> Tensor:
    """1 / (B T_i) (GRPO; the length-normalised MiniRL)."""
    return 1 / (totals.responses * lengths.response)


def token_mean(lengths: Lengths, totals: Totals) -> Tensor:
    """1 / T (DAPO and CISPO as their codes have it)."""
    return (1 / totals.tokens).expand_as(lengths.response)


def group_token_mean(lengths: Lengths, totals: Totals) -> Tensor:
    """1 / (P sum_{j in group} T_j) (DAPO and CISPO as their papers have it)."""
    return 1 / (totals.groups * lengths.group)


def token_sum_norm(lengths: Lengths, totals: Totals, *, length: int) -> Tensor:
    """1 / (B L), L a constant (Dr.GRPO)."""
    return (1 / (totals.responses * length)).expand_as(lengths.response)


def lengths(batch: TrainBatch) -> tuple[Tensor, Tensor]:
    """Counted tokens per response [B] and per group [P], float64."""
    per_response = segment_sum(batch.counted.double(), batch.rollouts.cu_seqlens)
    groups = torch.arange(len(batch), device=per_response.device) // batch.rollouts.group_size
    num_groups = -(-len(batch) // batch.rollouts.group_size)
    return per_response, per_response.new_zeros(num_groups).index_add_(0, groups, per_response)


def counts(batch: TrainBatch) -> Tensor:
    """(B, T, P) of the counted tokens here, float64 [3]: adds up over ranks, which hold whole groups."""
    per_response, per_group = lengths(batch)
    return torch.stack([(per_response > 0).sum(), per_response.sum(), (per_group > 0).sum()]).double()


@dataclass(frozen=True)
class Aggregation:
    """a_it = scale * kind."""

    kind: Callable[[Lengths, Totals], Tensor]
    scale: float

    def __call__(self, batch: TrainBatch, totals: Tensor) -> Tensor:
        """[T] a_it of a whole mini-batch, 0 for tokens that are not accepted. totals: `counts` summed over ranks."""
        cu_seqlens = batch.rollouts.cu_seqlens
        per_response, per_group = lengths(batch)
        group = per_group.repeat_interleave(batch.rollouts.group_size)[: len(batch)]
        own = Lengths(broadcast(per_response, cu_seqlens), broadcast(group, cu_seqlens))
        weight = self.scale * self.kind(own, Totals(*totals.double()))
        # what is accepted is counted: a denominator can be 0 only where the weight is not used
        return torch.where(batch.accepted, weight, 0.0).to(batch.old.logprobs.dtype)


KINDS: dict[AggregationKind, Callable[[Lengths, Totals], Tensor]] = {
    AggregationKind.seq_mean_token_sum: seq_mean_token_sum,
    AggregationKind.seq_mean_token_mean: seq_mean_token_mean,
    AggregationKind.token_mean: token_mean,
    AggregationKind.group_token_mean: group_token_mean,
}


def build(cfg: AggregationConfig) -> Aggregation:
    """The aggregation of a configuration."""
    if cfg.kind is not AggregationKind.token_sum_norm:
        return Aggregation(KINDS[cfg.kind], cfg.scale)
    if cfg.length is None:
        raise ConfigError(
            "algo.aggregation.length=null: algo.aggregation.kind=token_sum_norm divides by a constant number of "
            "tokens, for example ${sampling.max_response_tokens}"
        )
    return Aggregation(partial(token_sum_norm, length=cfg.length), cfg.scale)
