"""M_t in [0, 1]: how much of a token's gradient stays once pi_theta has moved away from its anchor (pi_old or mu_old).

Every region looks at the sign of A: a token is masked only where its update moves *away* from the anchor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from minirl.algo.equations import LEVELS, LogRatioLevel, ThreePolicies
from minirl.config import Anchor, ConfigError, Level, Region, TrustRegionConfig

# the paper's bounds (arXiv 2512.01374 §4.2): clip/would_be is measured with them whatever the algorithm uses
PAPER_LOW, PAPER_HIGH = 0.2, 0.27


def ratio_mask(log_ratio: Tensor, advantages: Tensor, *, low: float, high: float, dual: float | None) -> Tensor:
    """M = 0 where (A > 0 and r > 1 + high) or (A < 0 and r < 1 - low), else 1 (PPO; arXiv 2512.01374 eq 7). [T].

    `dual` c adds: 0 where A < 0 and r > c (dual-clip PPO, arXiv 1912.09729).
    """
    ratio = log_ratio.exp()
    masked = ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))
    if dual is not None:
        masked |= (advantages < 0) & (ratio > dual)
    return (~masked).to(ratio.dtype)


def soft_gate(log_ratio: Tensor, advantages: Tensor, *, tau_positive: float, tau_negative: float) -> Tensor:
    """M = sech^2(tau (r - 1) / 2) = 4 p (1 - p), p = sigmoid(tau (r - 1)); tau by the sign of A (SAPO). [T].

    It is d/dr of the objective (4 / tau) sigmoid(tau (r - 1)), arXiv 2511.20347.
    """
    tau = torch.full_like(advantages, tau_negative).masked_fill(advantages > 0, tau_positive)
    slope = tau * (log_ratio.exp() - 1)
    return 4 * slope.sigmoid() * (-slope).sigmoid()


def total_variation(logprobs: Tensor, anchor_logprobs: Tensor) -> Tensor:
    """|p - m|: TV between pi_theta and the anchor on {y_t, everything else} (arXiv 2602.04879 §4). [T]."""
    return (logprobs.exp() - anchor_logprobs.exp()).abs()


def kl_divergence(logprobs: Tensor, anchor_logprobs: Tensor) -> Tensor:
    """m log(m / p) + (1 - m) log((1 - m) / (1 - p)): KL(anchor || pi_theta) on {y_t, everything else}. [T].

    The probability of everything else is 0 to rounding for a confident token: it is floored at the dtype's epsilon.
    """
    floor = torch.finfo(logprobs.dtype).eps
    rest, anchor_rest = (-torch.expm1(lp) for lp in (logprobs, anchor_logprobs))
    rest, anchor_rest = rest.clamp(min=floor), anchor_rest.clamp(min=floor)
    return anchor_logprobs.exp() * (anchor_logprobs - logprobs) + anchor_rest * (anchor_rest.log() - rest.log())


def divergence_mask(divergence: Tensor, log_ratio: Tensor, advantages: Tensor, *, delta: float) -> Tensor:
    """M = 0 where divergence > delta and (A > 0 and p > m, or A < 0 and p < m), else 1 (DPPO, 2602.04879). [T]."""
    away = ((advantages > 0) & (log_ratio > 0)) | ((advantages < 0) & (log_ratio < 0))
    return (~((divergence > delta) & away)).to(divergence.dtype)


def would_clip(log_staleness: Tensor, advantages: Tensor) -> Tensor:
    """Where the paper's mask against pi_old would be 0. [T] bool."""
    return ratio_mask(log_staleness, advantages, low=PAPER_LOW, high=PAPER_HIGH, dual=None) == 0


@dataclass(frozen=True)
class Unbounded:
    """M = 1: no trust region."""

    def __call__(self, policies: ThreePolicies, advantages: Tensor) -> Tensor:
        return policies.response_mask.to(policies.logprobs.dtype)


@dataclass(frozen=True)
class RatioRegion:
    """A function of pi_theta / anchor, taken at a level, and of A."""

    anchor: Anchor
    level: LogRatioLevel
    mask: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, policies: ThreePolicies, advantages: Tensor) -> Tensor:
        log_ratio = policies.log_staleness if self.anchor is Anchor.old else policies.log_product
        return self.mask(policies.at(self.level, log_ratio), advantages) * policies.response_mask


@dataclass(frozen=True)
class DivergenceRegion:
    """A binary divergence between the anchor and pi_theta at each token, allowed up to delta."""

    anchor: Anchor
    divergence: Callable[[Tensor, Tensor], Tensor]
    delta: float

    def __call__(self, policies: ThreePolicies, advantages: Tensor) -> Tensor:
        old = self.anchor is Anchor.old
        anchor_logprobs = policies.old_logprobs if old else policies.rollout_logprobs
        log_ratio = policies.log_staleness if old else policies.log_product
        divergence = self.divergence(policies.logprobs, anchor_logprobs)
        return divergence_mask(divergence, log_ratio, advantages, delta=self.delta) * policies.response_mask


TrustRegion = Callable[[ThreePolicies, Tensor], Tensor]


def build(cfg: TrustRegionConfig) -> TrustRegion:
    """The trust region of a configuration: [T] policies and advantages -> [T] M, 0 outside the response."""
    if cfg.kind is Region.none:
        return Unbounded()
    if cfg.kind in (Region.tv, Region.kl):
        if cfg.level is not Level.token:
            raise ConfigError(f"algo.trust_region.level={cfg.level}: kind {cfg.kind} is per token; use level=token")
        divergence = total_variation if cfg.kind is Region.tv else kl_divergence
        return DivergenceRegion(cfg.anchor, divergence, _needed(cfg, "delta"))
    if cfg.level is Level.none:
        raise ConfigError("algo.trust_region.level=none leaves nothing to bound: use algo.trust_region.kind=none")
    mask: Callable[[Tensor, Tensor], Tensor]
    if cfg.kind is Region.ratio:
        mask = partial(ratio_mask, low=_needed(cfg, "low"), high=_needed(cfg, "high"), dual=cfg.dual)
    else:
        positive, negative = _needed(cfg, "tau_positive"), _needed(cfg, "tau_negative")
        mask = partial(soft_gate, tau_positive=positive, tau_negative=negative)
    return RatioRegion(cfg.anchor, LEVELS[cfg.level], mask)


def _needed(cfg: TrustRegionConfig, name: str) -> float:
    value = getattr(cfg, name)
    if value is None:
        raise ConfigError(f"algo.trust_region.{name}=null: algo.trust_region.kind={cfg.kind} needs a number")
    return float(value)
