"""Batches for the tests of the objective, in float64, and the configurations of conf/algo."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from omegaconf import OmegaConf
from torch import Tensor

from minirl.algo.algorithm import PolicyGradient, build
from minirl.compose import choices, load
from minirl.config import AlgoConfig
from minirl.streams import stream
from minirl.types import LossTerms, OldPolicy, Rewards, RolloutBatch, Routes, TrainBatch, select

METHODS = sorted(choices("algo"))
VOCABULARY = 9


@cache
def algo_config(name: str, *overrides: str) -> AlgoConfig:
    """conf/algo/<name>.yaml, composed in the full configuration; overrides as a person types them."""
    if not overrides:
        return load([f"algo={name}"]).algo
    changes = OmegaConf.from_dotlist([override.removeprefix("algo.") for override in overrides])
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(algo_config(name)), changes))
    assert isinstance(config, AlgoConfig)
    return config


def algorithm(name: str, *overrides: str) -> PolicyGradient:
    return build(algo_config(name, *overrides))


def pack(
    response_lengths: list[int],
    *,
    rollout_logprobs: Tensor,
    old_logprobs: Tensor,
    rewards: Tensor,
    group_size: int,
    prompt_lengths: list[int] | None = None,
    truncated: Tensor | None = None,
    valid: Tensor | None = None,
    graded: Tensor | None = None,
    present: Tensor | None = None,
) -> TrainBatch:
    """Response tokens one after another ([R] logprobs) -> a packed batch with prompts of the given lengths (1 each).

    `present` [T]: the engine's routes exist and these tokens have one.
    """
    num_responses = len(response_lengths)
    prompts = prompt_lengths or [1] * num_responses
    mask = torch.cat([torch.arange(p + r) >= p for p, r in zip(prompts, response_lengths, strict=True)])
    lengths = torch.tensor([p + r for p, r in zip(prompts, response_lengths, strict=True)])
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    routes = None
    if present is not None:
        routes = Routes(torch.zeros(len(mask), 1, 2, dtype=torch.uint8), present, layers=(0,), num_experts=4)
    rollouts = RolloutBatch(
        tokens=torch.zeros(len(mask), dtype=torch.int64),
        cu_seqlens=cu_seqlens,
        response_mask=mask,
        rollout_logprobs=spread(rollout_logprobs, mask),
        truncated=torch.zeros(num_responses, dtype=torch.bool) if truncated is None else truncated,
        valid=torch.ones(num_responses, dtype=torch.bool) if valid is None else valid,
        positions=torch.arange(num_responses) // group_size,
        routes=routes,
        group_size=group_size,
        version=0,
    )
    graded = torch.ones(num_responses, dtype=torch.bool) if graded is None else graded
    old = OldPolicy(spread(old_logprobs, mask), torch.zeros(len(mask), dtype=old_logprobs.dtype), routes)
    return TrainBatch(rollouts, Rewards(rewards, graded), torch.zeros_like(rewards), old, mask, mask, None)


def spread(response_values: Tensor, mask: Tensor) -> Tensor:
    """[R] values of response tokens -> [T], 0 elsewhere; differentiable."""
    return torch.zeros(len(mask), dtype=response_values.dtype).masked_scatter(mask, response_values)


def prepared(algo: PolicyGradient, batch: TrainBatch) -> TrainBatch:
    """The batch as one mini-batch of one rank, with every field filled."""
    batch = replace(batch, advantages=algo.advantage(batch.rewards, batch.rollouts.group_size))
    batch = algo.reject(batch)
    return algo.coefficients(batch, algo.counts(batch))


def gradient(
    algo: PolicyGradient, batch: TrainBatch, logprobs: Tensor, on_policy: bool = False
) -> tuple[Tensor, LossTerms]:
    """(d loss / d log pi_theta [T], the terms) of a prepared batch."""
    leaf = logprobs.detach().clone().requires_grad_()
    terms = algo.loss(leaf, batch, on_policy)
    return torch.autograd.grad(terms.loss, leaf)[0], terms


def cut_gradient(algo: PolicyGradient, batch: TrainBatch, logprobs: Tensor, pieces: list[Tensor]) -> Tensor:
    """The same, accumulated over micro-batches of the given responses, in the batch's own token order."""
    total = torch.zeros_like(logprobs)
    for responses in pieces:
        tokens = torch.isin(batch.rollouts.sequence_ids, responses).nonzero().squeeze(1)
        total[tokens] += gradient(algo, select(batch, responses), logprobs[tokens])[0]
    return total


@dataclass(frozen=True)
class Draw:
    """One random batch: sampled from mu, scored by three softmax policies over nine words, no two alike.

    theta_logits [R, 9] is a leaf; `choices` [R] are the sampled words; matrices for the published objectives are
    padded to [B, longest].
    """

    batch: TrainBatch
    theta_logits: Tensor
    choices: Tensor
    lengths: Tensor

    def response_logprobs(self) -> Tensor:
        """[R] log pi_theta, differentiable in theta_logits."""
        return self.theta_logits.log_softmax(-1).gather(1, self.choices[:, None]).squeeze(1)

    def logprobs(self) -> Tensor:
        """[T] log pi_theta, packed."""
        return spread(self.response_logprobs(), self.batch.rollouts.response_mask)

    @property
    def mask(self) -> Tensor:
        """[B, longest] bool."""
        return torch.arange(int(self.lengths.max())) < self.lengths[:, None]

    def padded(self, packed: Tensor) -> Tensor:
        """[T] -> [B, longest], 0 in the padding."""
        return self.unpacked(packed[self.batch.rollouts.response_mask])

    def unpacked(self, response_values: Tensor) -> Tensor:
        """[R] -> [B, longest]."""
        mask = self.mask
        return torch.zeros(mask.shape, dtype=response_values.dtype).masked_scatter(mask, response_values)


def draw(seed: int, num_groups: int = 12, group_size: int = 8, longest: int = 14) -> Draw:
    """The noise recipe under which every branch of every method is met: a noise scale per response, log-uniform."""
    random = stream(seed, "objective oracle")
    num_responses = num_groups * group_size
    lengths = random.integers(1, longest + 1, num_responses)
    rows = np.repeat(np.arange(num_responses), lengths)
    mu = random.normal(size=(len(rows), VOCABULARY))
    to_old = 10 ** random.uniform(-4.5, 0.6, num_responses)[rows, None]
    old = mu + to_old * random.normal(size=mu.shape)
    to_theta = 10 ** random.uniform(-4.5, 0.3, num_responses)[rows, None]
    theta = old + to_theta * random.normal(size=mu.shape)
    rewards = random.integers(0, 2, (num_groups, group_size)).astype(float)
    rewards[0], rewards[1] = 0.0, 1.0
    words = torch.tensor((mu + random.gumbel(size=mu.shape)).argmax(1))
    mu_logprobs, old_logprobs = (
        torch.tensor(logits).log_softmax(-1).gather(1, words[:, None]).squeeze(1) for logits in (mu, old)
    )
    batch = pack(
        lengths.tolist(),
        rollout_logprobs=mu_logprobs,
        old_logprobs=old_logprobs,
        rewards=torch.tensor(rewards).flatten(),
        group_size=group_size,
        prompt_lengths=random.integers(1, 4, num_responses).tolist(),
        truncated=torch.tensor(random.random(num_responses) < 0.1),
    )
    return Draw(batch, torch.tensor(theta).requires_grad_(), words, torch.tensor(lengths))
