"""Masks and gates by hand-worked numbers; the divergences against their definitions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from algo_cases import algo_config
from torch import Tensor

from minirl.algo.trust_regions import (
    build,
    divergence_mask,
    kl_divergence,
    ratio_mask,
    soft_gate,
    total_variation,
    would_clip,
)
from minirl.config import ConfigError, Level, Region


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


RATIOS = vector(0.5, 0.79, 0.81, 1.0, 1.26, 1.28, 4.0).log()


@pytest.mark.parametrize(
    ("advantage", "dual", "expected"),
    [(1.0, None, [1, 1, 1, 1, 1, 0, 0]), (-1.0, None, [0, 0, 1, 1, 1, 1, 1]), (0.0, None, [1] * 7),
     (-1.0, 3.0, [0, 0, 1, 1, 1, 1, 0]), (1.0, 3.0, [1, 1, 1, 1, 1, 0, 0]), (0.0, 3.0, [1] * 7)],
)  # fmt: skip
def test_ratio_mask(advantage: float, dual: float | None, expected: list[int]) -> None:
    found = ratio_mask(RATIOS, torch.full_like(RATIOS, advantage), low=0.2, high=0.27, dual=dual)
    assert found.tolist() == expected


def test_the_bounds_themselves_are_inside() -> None:
    """r = 1 + high and r = 1 - low exactly (powers of two, so that nothing rounds)."""
    at_bounds = vector(1.25, 0.75).log()
    assert at_bounds.exp().tolist() == [1.25, 0.75]
    assert ratio_mask(at_bounds, vector(1, -1), low=0.25, high=0.25, dual=None).tolist() == [1, 1]


def test_would_clip_has_the_paper_bounds() -> None:
    assert would_clip(RATIOS, torch.ones_like(RATIOS)).tolist() == [False] * 5 + [True] * 2
    assert would_clip(RATIOS, -torch.ones_like(RATIOS)).tolist() == [True] * 2 + [False] * 5


def test_soft_gate() -> None:
    """sech^2(tau (r - 1) / 2) with tau by the sign of A; A = 0 counts as not positive."""
    ratio = vector(1, 2, 2, 2, 0.5)
    found = soft_gate(ratio.log(), vector(1, 1, -1, 0, 1), tau_positive=1.0, tau_negative=3.0)
    expected = [math.cosh(tau * (r - 1) / 2) ** -2 for tau, r in ((1, 1), (1, 2), (3, 2), (3, 2), (1, 0.5))]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


def test_soft_gate_of_a_huge_ratio_is_zero() -> None:
    assert soft_gate(vector(800.0), vector(1), tau_positive=1.0, tau_negative=1.05).tolist() == [0.0]


def test_binary_divergences_equal_their_definitions() -> None:
    """TV and KL(anchor || pi) of the two-outcome distributions (p, 1 - p) and (m, 1 - m)."""
    p, m = vector(0.5, 0.9, 0.2), vector(0.25, 0.9, 0.6)
    theta, anchor = (torch.stack([x, 1 - x], -1) for x in (p, m))
    assert total_variation(p.log(), m.log()).tolist() == pytest.approx(((theta - anchor).abs().sum(-1) / 2).tolist())
    expected = torch.distributions.kl_divergence(
        torch.distributions.Categorical(probs=anchor), torch.distributions.Categorical(probs=theta)
    )
    assert kl_divergence(p.log(), m.log()).tolist() == pytest.approx(expected.tolist(), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kl_of_certain_tokens_is_finite(dtype: torch.dtype) -> None:
    """p or m equal to 1 to rounding, the commonest token there is: no infinity, no NaN, and 0 where both are."""
    logprobs = torch.tensor([0.0, 0.0, -0.7, -1e-9], dtype=dtype)
    anchor = torch.tensor([0.0, -0.7, 0.0, -2e-9], dtype=dtype)
    found = kl_divergence(logprobs, anchor)
    assert found.isfinite().all()
    assert float(found[0]) == 0 and float(found[1]) > 5 and float(found[2]) == pytest.approx(0.7, rel=1e-5)


def test_divergence_mask_looks_at_the_direction() -> None:
    divergence, log_ratio = vector(0.3, 0.3, 0.3, 0.3, 0.1, 0.3), vector(1, -1, 1, -1, 1, 1)
    found = divergence_mask(divergence, log_ratio, vector(1, 1, -1, -1, 1, 0), delta=0.2)
    assert found.tolist() == [0, 1, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("name", "missing"),
    [("minirl", "low"), ("minirl", "high"), ("dppo", "delta"), ("sapo", "tau_positive"), ("sapo", "tau_negative")],
)
def test_a_region_without_its_number_is_refused(name: str, missing: str) -> None:
    region = replace(algo_config(name).trust_region, **{missing: None})
    with pytest.raises(ConfigError, match=f"algo.trust_region.{missing}=null"):
        build(region)


def test_a_divergence_is_per_token() -> None:
    with pytest.raises(ConfigError, match="level=sequence"):
        build(replace(algo_config("dppo").trust_region, level=Level.sequence))


def test_a_ratio_needs_a_level() -> None:
    with pytest.raises(ConfigError, match="level=none"):
        build(replace(algo_config("minirl").trust_region, level=Level.none))


def test_every_region_is_built() -> None:
    numbers = {"low": 0.2, "high": 0.2, "delta": 0.1, "tau_positive": 1.0, "tau_negative": 1.0}
    for kind in Region:
        assert callable(build(replace(algo_config("minirl").trust_region, kind=kind, **numbers)))
