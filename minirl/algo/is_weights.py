"""The detached importance weight: staleness x discrepancy, each bounded, then their product bounded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from minirl.algo.equations import LEVELS, LogRatioLevel, ThreePolicies
from minirl.config import FactorConfig, IsWeightConfig, Outside, ProductConfig


def clamp(ratio: Tensor, low: float, high: float) -> Tensor:
    """min(max(ratio, low), high): truncated importance sampling."""
    return ratio.clamp(low, high)


def zero(ratio: Tensor, low: float, high: float) -> Tensor:
    """ratio * 1[low <= ratio <= high]: masked importance sampling."""
    return torch.where((ratio < low) | (ratio > high), 0.0, ratio)


OUTSIDE: dict[Outside, Callable[[Tensor, float, float], Tensor]] = {Outside.clamp: clamp, Outside.zero: zero}


@dataclass(frozen=True)
class Bounds:
    """The band [low, high] of a ratio and what happens outside it. Without bounds: [0, infinity]."""

    low: float
    high: float
    outside: Callable[[Tensor, float, float], Tensor]

    @property
    def bind(self) -> bool:
        """Whether any positive ratio can lie outside."""
        return self.low > 0 or self.high < math.inf

    def __call__(self, ratio: Tensor) -> tuple[Tensor, Tensor]:
        """(bounded ratio, whether the bound changed it), [T] each."""
        return self.outside(ratio, self.low, self.high), (ratio < self.low) | (ratio > self.high)


@dataclass(frozen=True)
class Factor:
    """One factor of the weight: exp of a log ratio at a level, then bounded."""

    level: LogRatioLevel
    bounds: Bounds


@dataclass(frozen=True)
class IsWeight:
    """w_t = bound(staleness_t * discrepancy_t), each factor at its level and within its own bounds."""

    staleness: Factor
    discrepancy: Factor
    product: Bounds

    def __call__(self, policies: ThreePolicies) -> tuple[Tensor, Tensor]:
        """(weight, whether a bound changed it), [T] each, 0 and False outside the response."""
        ratio, factor_capped = self._bounded_factors(policies)
        weight, product_capped = self.product(ratio)
        mask = policies.response_mask
        return torch.where(mask, weight, 0.0), (factor_capped | product_capped) & mask

    def _bounded_factors(self, policies: ThreePolicies) -> tuple[Tensor, Tensor]:
        if not (self.staleness.bounds.bind or self.discrepancy.bounds.bind):
            ratio = self._log_product(policies).exp()
            return ratio, torch.zeros_like(ratio, dtype=torch.bool)
        staleness, stale_capped = self.staleness.bounds(policies.at(self.staleness.level, policies.log_staleness).exp())
        discrepancy, discrepancy_capped = self.discrepancy.bounds(
            policies.at(self.discrepancy.level, policies.log_discrepancy).exp()
        )
        return staleness * discrepancy, stale_capped | discrepancy_capped

    def _log_product(self, policies: ThreePolicies) -> Tensor:
        """The unbounded product in one exponential: at a common level pi_old cancels and must not add its rounding."""
        if self.staleness.level is self.discrepancy.level:
            return policies.at(self.staleness.level, policies.log_product)
        return policies.at(self.staleness.level, policies.log_staleness) + policies.at(
            self.discrepancy.level, policies.log_discrepancy
        )


def bounds(cfg: FactorConfig | ProductConfig) -> Bounds:
    """null is no bound: 0 below, infinity above."""
    low = 0.0 if cfg.low is None else cfg.low
    high = math.inf if cfg.high is None else cfg.high
    return Bounds(low, high, OUTSIDE[cfg.outside])


def build(cfg: IsWeightConfig) -> IsWeight:
    """The weight of a configuration."""
    staleness, discrepancy = (Factor(LEVELS[part.level], bounds(part)) for part in (cfg.staleness, cfg.discrepancy))
    return IsWeight(staleness, discrepancy, bounds(cfg.product))
