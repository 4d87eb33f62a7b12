"""The theorem by enumeration: the token surrogate has the true gradient at pi_theta = mu, and nearly so nearby.

A tabular policy over three words (0 ends a response) and at most three tokens: every response is enumerated, so an
expectation over mu is a sum and nothing is sampled. The expectation enters through the advantages, mu(y) B R(y).
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from algo_cases import algorithm, pack, spread
from torch import Tensor

from minirl.algo.algorithm import PolicyGradient
from minirl.types import TrainBatch

WORDS, LONGEST = 3, 3
RESPONSES = sorted(
    {
        response[: response.index(0) + 1] if 0 in response else response
        for response in product(range(WORDS), repeat=LONGEST)
    }
)
PREFIXES = sorted({response[:t] for response in RESPONSES for t in range(len(response))})
LENGTHS = [len(response) for response in RESPONSES]
STATES = torch.tensor([PREFIXES.index(response[:t]) for response in RESPONSES for t in range(len(response))])
CHOICES = torch.tensor([word for response in RESPONSES for word in response])
SEED = torch.Generator().manual_seed(0)
MU = torch.randn(len(PREFIXES), WORDS, dtype=torch.float64, generator=SEED)
DIRECTION = torch.randn(MU.shape, dtype=torch.float64, generator=SEED)
REWARDS = torch.rand(len(RESPONSES), dtype=torch.float64, generator=SEED)


def token_logprobs(logits: Tensor) -> Tensor:
    """[R] log-probability of every token of every response under a table of logits per prefix."""
    return logits.log_softmax(-1)[STATES, CHOICES]


def response_probabilities(logits: Tensor) -> Tensor:
    """[B] pi(y)."""
    return torch.stack([part.sum() for part in token_logprobs(logits).split(LENGTHS)]).exp()


def true_gradient(logits: Tensor) -> Tensor:
    """grad J_seq = grad sum_y pi_theta(y) R(y), eq 1."""
    leaf = logits.clone().requires_grad_()
    return torch.autograd.grad((response_probabilities(leaf) * REWARDS).sum(), leaf)[0]


def all_responses() -> TrainBatch:
    """One of each, pi_old = mu, every token accepted."""
    mu = token_logprobs(MU)
    return pack(LENGTHS, rollout_logprobs=mu, old_logprobs=mu, rewards=REWARDS, group_size=len(RESPONSES))


def our_gradient(algo: PolicyGradient, logits: Tensor) -> Tensor:
    """- grad loss over all responses, each weighing mu(y)."""
    leaf = logits.clone().requires_grad_()
    batch = algo.reject(all_responses())
    batch.advantages.copy_(response_probabilities(MU) * len(RESPONSES) * REWARDS)
    batch = algo.coefficients(batch, algo.counts(batch))
    loss = algo.loss(spread(token_logprobs(leaf), batch.rollouts.response_mask), batch, on_policy=False).loss
    return -torch.autograd.grad(loss, leaf)[0]


TOKEN = algorithm("minirl_no_clip", "algo.is_weight.product.high=null")  # eq 3-4
SEQUENCE = algorithm("seq_is")  # eq 1-2


def gap(size: float) -> float:
    """|grad J_token - grad J_seq| at pi_theta = softmax(log mu + size * direction), relative."""
    theta = MU + size * DIRECTION
    exact = true_gradient(theta)
    return float((our_gradient(TOKEN, theta) - exact).norm() / exact.norm())


def test_all_responses_are_enumerated() -> None:
    assert len(RESPONSES) == 1 + 2 * (1 + 2 * 3)
    assert float(response_probabilities(MU).sum()) == pytest.approx(1, rel=1e-14)


@pytest.mark.parametrize("size", [0.0, 0.1, 1.0])
def test_sequence_weights_give_the_true_gradient_everywhere(size: float) -> None:
    theta = MU + size * DIRECTION
    assert torch.allclose(our_gradient(SEQUENCE, theta), true_gradient(theta), rtol=1e-12, atol=1e-15)


def test_token_weights_give_the_true_gradient_at_mu() -> None:
    assert gap(0.0) < 1e-14


def test_the_gap_grows_linearly() -> None:
    """gap(d) = c d + O(d^2): halving the distance halves the gap, better and better."""
    for size in (1e-2, 1e-3, 1e-4):
        assert gap(size) / gap(size / 2) == pytest.approx(2, abs=40 * size)
    assert gap(1e-3) > 1e-5


def test_the_gap_is_the_products_that_were_dropped() -> None:
    """grad J_seq - grad J_token = E_mu[R sum_t rho_t (prod_{j != t} rho_j - 1) grad log pi_t]."""
    theta = (MU + 0.3 * DIRECTION).requires_grad_()
    logprobs = token_logprobs(theta)
    ratio = (logprobs.detach() - token_logprobs(MU)).exp()
    others = torch.cat([part.prod() / part for part in ratio.split(LENGTHS)])
    weight = (response_probabilities(MU) * REWARDS).repeat_interleave(torch.tensor(LENGTHS))
    dropped = torch.autograd.grad((weight * ratio * (others - 1) * logprobs).sum(), theta)[0]
    found = our_gradient(SEQUENCE, theta.detach()) - our_gradient(TOKEN, theta.detach())
    assert torch.allclose(found, dropped, rtol=1e-11, atol=1e-15)


def test_a_baseline_does_not_bias_the_gradient_at_mu() -> None:
    """E_mu[sum_t grad log pi_t] = 0: R - mean R has the gradient of R."""
    algo = TOKEN
    batch = algo.reject(all_responses())
    batch.advantages.copy_(response_probabilities(MU) * len(RESPONSES))
    batch = algo.coefficients(batch, algo.counts(batch))
    leaf = MU.clone().requires_grad_()
    loss = algo.loss(spread(token_logprobs(leaf), batch.rollouts.response_mask), batch, on_policy=False).loss
    assert float(torch.autograd.grad(loss, leaf)[0].abs().max()) < 1e-15
