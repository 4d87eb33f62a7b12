"""What one algorithm makes of a mini-batch without taking a step: its loss, its gradient group by group, its masks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minirl.algo.algorithm import PolicyGradient
from minirl.batches import Sampled
from minirl.config import Routing
from minirl.policy.fsdp import FsdpPolicy
from minirl.policy.sharding import whole
from minirl.types import LossTerms, Rewards, TrainBatch, select


@dataclass(frozen=True)
class Probe:
    """gradients [groups, parameters] fp32: d loss of each prompt's responses, by the denominators of the whole
    mini-batch, so that their sum is the gradient. kept, is_weight [tokens]: M_t and the final weight of the response
    tokens, the same order for every algorithm · accepted [tokens]: what the rejection has left."""

    loss: float
    gradients: Tensor
    kept: Tensor
    is_weight: Tensor
    accepted: Tensor

    @property
    def gradient(self) -> Tensor:
        return self.gradients.sum(0)


@dataclass(frozen=True)
class Apportioned:
    """An algorithm whose denominators are settled: `coefficients` are those that the batch has already. Keeps the
    terms of every loss. pi_old is the recorded one even where N = 1."""

    inner: PolicyGradient
    seen: list[LossTerms]
    masks: list[Tensor]

    @property
    def routing(self) -> Routing:
        return self.inner.routing

    def advantage(self, rewards: Rewards, group_size: int) -> Tensor:
        return self.inner.advantage(rewards, group_size)

    def reject(self, batch: TrainBatch) -> TrainBatch:
        return self.inner.reject(batch)

    def counts(self, mini_batch: TrainBatch) -> Tensor:
        return self.inner.counts(mini_batch)

    def coefficients(self, mini_batch: TrainBatch, counts: Tensor) -> TrainBatch:
        return mini_batch

    def loss(self, logprobs: Tensor, micro_batch: TrainBatch, on_policy: bool) -> LossTerms:
        terms = self.inner.loss(logprobs, micro_batch, on_policy=False)
        self.seen.append(terms)
        self.masks.append(micro_batch.rollouts.response_mask)
        return terms


def prepared(algo: PolicyGradient, sampled: Sampled) -> TrainBatch:
    """The batch with the advantages and the rejection of the algorithm, before it is split."""
    mask = sampled.rollouts.response_mask
    advantages = algo.advantage(sampled.rewards, sampled.rollouts.group_size)
    batch = TrainBatch(sampled.rollouts, sampled.rewards, advantages, sampled.old, mask, mask, None)
    return algo.reject(batch)


def probe(policy: FsdpPolicy, algo: PolicyGradient, mini_batch: TrainBatch) -> Probe:
    """The policy's weights are left as they were."""
    whole_batch = algo.coefficients(mini_batch, algo.counts(mini_batch))
    watched = Apportioned(algo, [], [])
    size = mini_batch.rollouts.group_size
    loss, gradients = 0.0, []
    for group in torch.arange(len(mini_batch)).split(size):
        part, _ = policy.accumulate(select(whole_batch, group), watched)
        loss += part
        gradients.append(taken_gradient(policy))
    return Probe(
        loss=loss,
        gradients=torch.stack(gradients),
        kept=_of_responses(watched, "kept"),
        is_weight=_of_responses(watched, "is_weight"),
        accepted=mini_batch.accepted[mini_batch.rollouts.response_mask],
    )


def taken_gradient(policy: FsdpPolicy) -> Tensor:
    """The gradient of all trained parameters as one vector in fp32 on the CPU; the policy has none afterwards."""
    parts = [
        torch.zeros(parameter.numel()) if parameter.grad is None else whole(parameter.grad).flatten().float().cpu()
        for parameter in policy.trained
    ]
    policy.optimizer.zero_grad()
    return torch.cat(parts)


def _of_responses(watched: Apportioned, name: str) -> Tensor:
    parts = zip(watched.seen, watched.masks, strict=True)
    return torch.cat([getattr(terms, name).detach()[mask].cpu() for terms, mask in parts])


def replaced_old(sampled: Sampled, policy: FsdpPolicy, routing: Routing) -> Sampled:
    """pi_old under another routing; the policy must hold the weights that sampled."""
    return replace(sampled, old=replace(policy.recompute(sampled.rollouts, routing), scores=None))
