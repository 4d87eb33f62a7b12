"""Ratios of the three policies, per token, per response and per response in the geometric mean.

    pi_theta / mu_old = (pi_old / mu_old) x (pi_theta / pi_old) = discrepancy x staleness      arXiv 2512.01374 eq 5

All tensors are packed ([T] over the tokens of all sequences, see `minirl.types`). Ratios stay logarithms until the
last moment: log-probabilities are subtracted in the dtype they come in (float32 or better) and summed in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from minirl.config import Level


def segment_sum(values: Tensor, cu_seqlens: Tensor) -> Tensor:
    """S_i = sum over the tokens of response i. [T] -> [B], accumulated in float64, in a fixed order."""
    return torch.segment_reduce(values.double(), "sum", lengths=cu_seqlens.diff()).to(values.dtype)


def broadcast(values: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The value of its response at every token. [B] -> [T]."""
    return torch.repeat_interleave(values, cu_seqlens.diff())


def token_log_ratio(log_ratio: Tensor, response_mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    """log r_t. [T]."""
    return log_ratio


def sequence_log_ratio(log_ratio: Tensor, response_mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    """log prod_t r_t = sum_t log r_t, at every token of the response. [T]."""
    return broadcast(segment_sum(log_ratio * response_mask, cu_seqlens), cu_seqlens)


def geometric_log_ratio(log_ratio: Tensor, response_mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    """log (prod_t r_t)^(1/|y|) = mean_t log r_t over response tokens (GSPO, arXiv 2507.18071 eq 7). [T]."""
    lengths = segment_sum(response_mask.to(log_ratio.dtype), cu_seqlens).clamp(min=1)
    return broadcast(segment_sum(log_ratio * response_mask, cu_seqlens) / lengths, cu_seqlens)


def unit_log_ratio(log_ratio: Tensor, response_mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    """log 1: the factor is left out. [T]."""
    return torch.zeros_like(log_ratio)


LogRatioLevel = Callable[[Tensor, Tensor, Tensor], Tensor]

LEVELS: dict[Level, LogRatioLevel] = {
    Level.none: unit_log_ratio,
    Level.token: token_log_ratio,
    Level.sequence: sequence_log_ratio,
    Level.geometric: geometric_log_ratio,
}


@dataclass(frozen=True, slots=True)
class ThreePolicies:
    """The sampled tokens under pi_theta, pi_old and mu_old: detached log-probabilities, [T] each.

    Log ratios are 0 outside `response_mask` whatever the inputs hold there.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    rollout_logprobs: Tensor
    response_mask: Tensor
    cu_seqlens: Tensor

    @property
    def log_staleness(self) -> Tensor:
        """log pi_theta - log pi_old. [T]."""
        return self._difference(self.logprobs, self.old_logprobs)

    @property
    def log_discrepancy(self) -> Tensor:
        """log pi_old - log mu_old. [T]."""
        return self._difference(self.old_logprobs, self.rollout_logprobs)

    @property
    def log_product(self) -> Tensor:
        """log pi_theta - log mu_old, in one subtraction. [T]."""
        return self._difference(self.logprobs, self.rollout_logprobs)

    def at(self, level: LogRatioLevel, log_ratio: Tensor) -> Tensor:
        """A log ratio of this batch taken at a level. [T]."""
        return level(log_ratio, self.response_mask, self.cu_seqlens)

    def _difference(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.where(self.response_mask, left - right, 0.0)
