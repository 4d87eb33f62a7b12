"""How long responses are, whether they end, and whether they repeat themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from minirl.metrics.statistics import Estimators, Max, Mean
from minirl.types import RolloutBatch


def mean(rollouts: RolloutBatch) -> Mean:
    """mean over responses of T_i, sampled tokens including EOS.
    [arXiv 2512.01374 §4.5]"""
    return Mean.of(rollouts.response_lengths)


def longest(rollouts: RolloutBatch) -> Max:
    """max over responses of T_i, tokens.
    [ours]"""
    return Max.of(rollouts.response_lengths)


def truncated(rollouts: RolloutBatch) -> Mean:
    """share of responses ended by the length limit instead of by EOS.
    [ours]"""
    return Mean.of(rollouts.truncated)


def repetition(rollouts: RolloutBatch) -> Mean:
    """mean over responses of 4 tokens or more of 1 - (distinct 4-grams) / (4-grams): 0 where nothing repeats, near 1
    for "!!!!!!!!".
    [ours]"""
    positions = rollouts.response_mask.nonzero().squeeze(1)
    owners = rollouts.sequence_ids[positions]
    ids, owners = four_grams(rollouts.tokens[positions], owners)
    total = torch.bincount(owners, minlength=len(rollouts))
    # an id belongs to one kind of 4-gram; (response, id) pairs that differ are the distinct ones
    pairs = torch.unique(owners * (len(ids) + 1) + ids)
    distinct = torch.bincount(pairs // (len(ids) + 1), minlength=len(rollouts))
    return Mean.of(1 - distinct[total > 0] / total[total > 0].double())


def four_grams(tokens: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
    """([m] ids, [m] owners) of all 4-grams inside one owner; equal ids mean equal 4-grams.

    Doubling: a 2-gram is a pair of ranks of tokens, a 4-gram a pair of ranks of 2-grams. Ranks are below the number of
    tokens, so the pair codes are exact in int64 and nothing is hashed.
    """
    ids = torch.unique(tokens, return_inverse=True)[1]
    for reach in (1, 2):
        inside = owners[:-reach] == owners[reach:]
        codes = (ids[:-reach] * (len(ids) + 1) + ids[reach:])[inside]
        ids, owners = torch.unique(codes, return_inverse=True)[1], owners[:-reach][inside]
    return ids, owners


ESTIMATORS: Estimators[RolloutBatch] = {"mean": mean, "max": longest, "truncated": truncated, "repetition": repetition}
