"""The gradient of the expected reward itself, by enumeration of the responses to each prompt of a batch.

    grad J(x) = sum_y pi_theta(y | x) (R(x, y) - b) grad log pi_theta(y | x)           arXiv 2512.01374 eq 1-2

exact for every b where all responses are enumerated. Continuations of a probability below a floor are left out; what
they weigh is reported, and b = the mean reward of the others keeps the error that they leave small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minirl.algo.algorithm import PolicyGradient
from minirl.config import ConfigError
from minirl.interfaces import Task
from minirl.policy.fsdp import FsdpPolicy
from minirl.policy.packing import padded
from minirl.rescore.probe import Apportioned, taken_gradient
from minirl.types import OldPolicy, Prompt, Rewards, RolloutBatch, TrainBatch

MOST_RESPONSES = 20_000  # to one prompt: beyond that a task is not one of short answers


@dataclass(frozen=True)
class Exact:
    """gradients [prompts, parameters], of the loss - J / prompts · mass: the least share of probability enumerated for
    a prompt · num_responses: of all prompts."""

    gradients: Tensor
    mass: float
    num_responses: int


@dataclass(frozen=True)
class Tree:
    """Complete responses to a prompt and their log-probabilities."""

    responses: list[tuple[int, ...]]
    logprobs: list[float]

    @property
    def mass(self) -> float:
        return float(torch.tensor(self.logprobs, dtype=torch.float64).exp().sum())


def exact_gradient(
    policy: FsdpPolicy, task: Task, prompts: Sequence[Prompt], reinforce: PolicyGradient, *, longest: int, floor: float
) -> Exact:
    """floor: continuations below this probability are not followed. reinforce: an algorithm without weight or mask."""
    gradients, masses, count = [], [], 0
    for prompt in prompts:
        tree = enumerated(policy, prompt, eos=task.eos, longest=longest, floor=floor)
        rewards = torch.tensor([task.grade(prompt, response) for response in tree.responses], dtype=torch.float64)
        weights = torch.tensor(tree.logprobs, dtype=torch.float64).exp()
        baseline = (weights * rewards).sum() / weights.sum()
        batch = _batch(prompt, tree, (weights * (rewards - baseline) / len(prompts)).float())
        policy.accumulate(batch, Apportioned(reinforce, [], []))
        gradients.append(taken_gradient(policy))
        masses.append(tree.mass)
        count += len(tree.responses)
    return Exact(torch.stack(gradients), min(masses), count)


@torch.no_grad()
def enumerated(policy: FsdpPolicy, prompt: Prompt, *, eos: int, longest: int, floor: float) -> Tree:
    """All responses of at most `longest` tokens whose prefixes are likelier than `floor`, level by level."""
    tree, level = Tree([], []), [((), 0.0)]
    for length in range(1, longest + 1):
        following = next_logprobs(policy, prompt, [prefix for prefix, _ in level])
        totals = following + torch.tensor([logprob for _, logprob in level])[:, None]
        grown = []
        for row, word in (totals >= _log(floor)).nonzero().tolist():
            response = (*level[row][0], word)
            if word == eos or length == longest:
                tree.responses.append(response)
                tree.logprobs.append(float(totals[row, word]))
            else:
                grown.append((response, float(totals[row, word])))
        level = grown
        if len(level) + len(tree.responses) > MOST_RESPONSES:
            raise ConfigError(
                f"more than {MOST_RESPONSES} responses to one prompt are likelier than --exact {floor:g}: use a larger "
                "one; the exact gradient is for small vocabularies and short answers"
            )
        if not level:
            break
    return tree


def _log(probability: float) -> float:
    return float(torch.tensor(probability).log())


def next_logprobs(policy: FsdpPolicy, prompt: Prompt, prefixes: Sequence[tuple[int, ...]]) -> Tensor:
    """[prefixes, vocabulary] log pi_theta of the token that follows each prefix (all of one length)."""
    rows = [(*prompt.tokens, *prefix, 0) for prefix in prefixes]
    width = len(rows[0])
    size = max(policy.train.max_tokens_per_micro_batch // width, 1)
    parts = []
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        mask = torch.zeros(len(some), width, dtype=torch.bool)
        mask[:, -1] = True
        batch = _rollouts(torch.tensor(some).flatten(), torch.full((len(some),), width), mask.flatten())
        parts.append(policy.likelihood(padded(batch), _all_logprobs).cpu())
    return torch.cat(parts)


def _all_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.log_softmax(-1)


def _rollouts(tokens: Tensor, lengths: Tensor, mask: Tensor) -> RolloutBatch:
    count = len(lengths)
    return RolloutBatch(
        tokens=tokens,
        cu_seqlens=torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
        response_mask=mask,
        rollout_logprobs=torch.zeros(len(tokens)),
        truncated=torch.zeros(count, dtype=torch.bool),
        valid=torch.ones(count, dtype=torch.bool),
        positions=torch.zeros(count, dtype=torch.int64),
        routes=None,
        group_size=count,
        version=0,
    )


def _batch(prompt: Prompt, tree: Tree, advantages: Tensor) -> TrainBatch:
    """The enumerated responses as one mini-batch, every token with the coefficient 1."""
    start = len(prompt.tokens)
    lengths = torch.tensor([start + len(response) for response in tree.responses])
    tokens = torch.tensor([token for response in tree.responses for token in (*prompt.tokens, *response)])
    mask = torch.cat([torch.arange(int(length)) >= start for length in lengths])
    rollouts = _rollouts(tokens, lengths, mask)
    zeros = torch.zeros(len(tokens))
    rewards = Rewards(torch.zeros(len(lengths)), torch.ones(len(lengths), dtype=torch.bool))
    return TrainBatch(rollouts, rewards, advantages, OldPolicy(zeros, zeros, None), mask, mask, mask.float())
