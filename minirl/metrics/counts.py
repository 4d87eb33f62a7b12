"""Shares and totals of a rollout batch. Denominators are taken before any rejection: 25 % rejected reads 0.25."""

from __future__ import annotations

from minirl.metrics.log_ratio import ResponseTokens
from minirl.metrics.statistics import Estimators, Mean, Sum
from minirl.types import RolloutBatch, TrainBatch


def reject_fraction(batch: TrainBatch) -> Mean:
    """(response tokens that are not accepted) / (all response tokens). 1 ends the run as degenerate.
    [MIS blog; verl, rollout correction]"""
    return Mean.of(~batch.accepted[batch.rollouts.response_mask])


def nan_logprobs(rollouts: RolloutBatch) -> Sum:
    """number of responses for which the engine returned a non-finite logprob; they are rejected but stay counted.
    [ours]"""
    return Sum.of(~rollouts.valid)


def response_tokens(rollouts: RolloutBatch) -> Sum:
    """number of sampled tokens.
    [ours]"""
    return Sum.of(rollouts.response_mask)


def prompt_tokens(rollouts: RolloutBatch) -> Sum:
    """number of prompt tokens, counted once per response.
    [ours]"""
    return Sum.of(~rollouts.response_mask)


def entropy(batch: TrainBatch) -> Mean:
    """m(-sum_w pi_old(w) log pi_old(w)), nats per token, over the full vocabulary on prefixes that mu sampled.
    [arXiv 2512.01374 §4.2]"""
    return Mean.of(batch.old.entropy[ResponseTokens.of(batch.rollouts).positions])


REJECT: Estimators[TrainBatch] = {"fraction": reject_fraction}
ROLLOUT: Estimators[RolloutBatch] = {"nan_logprobs": nan_logprobs}
TOKENS: Estimators[RolloutBatch] = {"response": response_tokens, "prompt": prompt_tokens}
ENTROPY: Estimators[TrainBatch] = {"mean": entropy}
