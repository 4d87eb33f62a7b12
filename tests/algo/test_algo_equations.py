"""Levels of a log ratio and the weight made of them, by hand-worked numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from algo_cases import algo_config, algorithm, draw, gradient, pack, prepared, spread

from minirl.algo import is_weights
from minirl.algo.equations import LEVELS, ThreePolicies, broadcast, segment_sum
from minirl.config import Level

# two sequences of three and four tokens, of which the last two and the last three are the response
CU_SEQLENS = torch.tensor([0, 3, 7])
MASK = torch.tensor([False, True, True, False, True, True, True])
LOG_RATIO = torch.tensor([9.0, 0.1, 0.3, 9.0, -0.3, 0.0, 0.6], dtype=torch.float64)


def test_segment_sum_and_broadcast() -> None:
    sums = segment_sum(LOG_RATIO * MASK, CU_SEQLENS)
    assert sums.tolist() == pytest.approx([0.4, 0.3])
    assert broadcast(sums, CU_SEQLENS).tolist() == pytest.approx([0.4] * 3 + [0.3] * 4)


def test_segment_sum_accumulates_in_float64() -> None:
    """A long response in float32: 1e5 terms of 0.1 would drift in a float32 running sum."""
    values = torch.full((100_000,), 0.1, dtype=torch.float32)
    exact = float(values[0].double()) * 100_000
    assert float(segment_sum(values, torch.tensor([0, 100_000]))[0]) == pytest.approx(exact, rel=6e-8)


@pytest.mark.parametrize(
    ("level", "first", "second"),
    [(Level.none, [0.0, 0.0], [0.0] * 3), (Level.token, [0.1, 0.3], [-0.3, 0.0, 0.6]),
     (Level.sequence, [0.4, 0.4], [0.3] * 3), (Level.geometric, [0.2, 0.2], [0.1] * 3)],
)  # fmt: skip
def test_levels_ignore_prompts(level: Level, first: list[float], second: list[float]) -> None:
    found = LEVELS[level](LOG_RATIO, MASK, CU_SEQLENS)
    assert found[1:3].tolist() == pytest.approx(first)
    assert found[4:7].tolist() == pytest.approx(second)


def test_a_sequence_without_response_has_ratio_one() -> None:
    """What padding looks like: finite everywhere."""
    nothing = torch.zeros(7, dtype=torch.bool)
    for level in (Level.sequence, Level.geometric):
        assert not LEVELS[level](LOG_RATIO, nothing, CU_SEQLENS).any()


def test_log_ratios_are_zero_outside_the_response() -> None:
    noise = torch.randn(3, 7, dtype=torch.float64)
    noise[:, 0] = math.nan
    policies = ThreePolicies(*noise, MASK, CU_SEQLENS)
    for ratio in (policies.log_staleness, policies.log_discrepancy, policies.log_product):
        assert not ratio[~MASK].any()
        assert ratio[MASK].all()


def three_policies(log_staleness: float, log_discrepancy: float) -> ThreePolicies:
    """One response of one token."""
    mu, old = -2.0, -2.0 + log_discrepancy
    numbers = (torch.tensor([value], dtype=torch.float64) for value in (old + log_staleness, old, mu))
    return ThreePolicies(*numbers, torch.ones(1, dtype=torch.bool), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("name", "staleness", "discrepancy", "expected", "capped"),
    [
        ("minirl", 2.0, 2.0, 4.0, False),
        ("minirl", 2.0, 3.0, 5.0, True),  # the product is capped
        ("minirl", 0.5, 8.0, 4.0, False),  # not the factor
        ("minirl_no_is", 2.0, 3.0, 2.0, False),
        ("reinforce", 2.0, 3.0, 1.0, False),
        ("cispo", 8.0, 3.0, 5.0, True),
        ("tis", 1.5, 3.0, 3.0, True),  # min(3, 2) * 1.5
        ("tis", 1.5, 0.1, 0.15, False),
        ("mis", 1.5, 3.0, 0.0, True),
        ("mis", 1.5, 1.9, 2.85, False),
        ("icepop", 1.5, 0.4, 0.0, True),
        ("icepop", 1.5, 0.6, 0.9, False),
        ("icepop", 1.5, 5.1, 0.0, True),
        ("dppo_kl", 4.0, 4.0, 16.0, False),
    ],
)
def test_weights_by_hand(name: str, staleness: float, discrepancy: float, expected: float, capped: bool) -> None:
    weight = is_weights.build(algo_config(name).is_weight)
    found, changed = weight(three_policies(math.log(staleness), math.log(discrepancy)))
    assert float(found[0]) == pytest.approx(expected, rel=1e-12)
    assert bool(changed[0]) is capped


def test_the_unbounded_product_is_one_exponential() -> None:
    """exp(log pi_theta - log mu), bit for bit, in float32: pi_old cancels and leaves no rounding behind."""
    batch = draw(0).batch
    mask, cu_seqlens = batch.rollouts.response_mask, batch.rollouts.cu_seqlens
    theta, old, mu = (torch.randn(len(mask)).mul(3).where(mask, torch.tensor(0.0)) for _ in range(3))
    policies = ThreePolicies(theta, old, mu, mask, cu_seqlens)
    found, _ = is_weights.build(algo_config("minirl_no_clip", "algo.is_weight.product.high=null").is_weight)(policies)
    assert torch.equal(found[mask], (theta - mu).exp()[mask])
    factors = (theta - old).exp() * (old - mu).exp()
    assert not torch.equal(found[mask], factors[mask])  # the test can tell the difference


def test_sequence_product_survives_factors_that_overflow() -> None:
    """staleness e^-100, discrepancy e^101 in float32: their product is e, not 0 x infinity."""
    policies = three_policies(-100.0, 101.0)
    policies = replace(
        policies,
        logprobs=policies.logprobs.float(),
        old_logprobs=policies.old_logprobs.float(),
        rollout_logprobs=policies.rollout_logprobs.float(),
    )
    found, _ = is_weights.build(algo_config("seq_is").is_weight)(policies)
    assert float(found[0]) == pytest.approx(math.e, rel=1e-5)


def test_an_overflowing_weight_of_an_idle_response_is_no_nan() -> None:
    """rho = infinity where A = 0: nothing is learned from the response, and nothing is spoilt."""
    logprobs = torch.tensor([0.0, 0.0, -1.0, -1.0, -1.0, -1.0])
    mu = torch.tensor([-90.0, -90.0, -1.0, -1.0, -1.0, -1.0])
    batch = pack(
        [2, 2, 1, 1],
        rollout_logprobs=mu,
        old_logprobs=logprobs,
        rewards=torch.tensor([1.0, 1.0, 1.0, 0.0]),
        group_size=2,
    )
    algo = algorithm("seq_is")
    found, terms = gradient(algo, prepared(algo, batch), spread(logprobs, batch.rollouts.response_mask))
    assert terms.is_weight.isinf().any()
    assert found.isfinite().all() and bool(terms.loss.isfinite())
    assert found.any()
