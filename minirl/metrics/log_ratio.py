"""The log ratio of two policies on the tokens that were sampled: what every measure of distance here is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from minirl.types import RolloutBatch

# Exponentials are taken of log ratios clamped to +-20 (as the published implementations do): exp(20) = 4.9e8 says
# "absurdly far" as well as infinity does, and stays a number in the records.
CLAMP = 20.0


@dataclass(frozen=True, slots=True)
class ResponseTokens:
    """The sampled tokens of valid responses, before any rejection.

    positions [n]: where they stand in the packed tensors · responses [b]: indices of the responses that have any ·
    owners [n]: which of these b each token belongs to.
    """

    positions: Tensor
    responses: Tensor
    owners: Tensor

    @classmethod
    def of(cls, rollouts: RolloutBatch) -> Self:
        sequences = rollouts.sequence_ids
        positions = (rollouts.response_mask & rollouts.valid[sequences]).nonzero().squeeze(1)
        responses, owners = torch.unique_consecutive(sequences[positions], return_inverse=True)
        return cls(positions, responses, owners)

    def sums(self, values: Tensor) -> Tensor:
        """sum_t values_t of each response: [n] -> [b]."""
        return values.new_zeros(len(self.responses)).index_add_(0, self.owners, values)

    def means(self, values: Tensor) -> Tensor:
        """mean_t values_t of each response: [n] -> [b]."""
        return self.sums(values) / self.sums(torch.ones_like(values))

    def maxima(self, values: Tensor) -> Tensor:
        """max_t values_t of each response: [n] -> [b]."""
        return values.new_zeros(len(self.responses)).scatter_reduce_(0, self.owners, values, "amax", include_self=False)


@dataclass(frozen=True, slots=True)
class LogRatio:
    """d_t = log p(y_t) - log q(y_t), float64 [n], on the given tokens."""

    values: Tensor
    tokens: ResponseTokens

    @property
    def ratio_minus_one(self) -> Tensor:
        """exp(d_t) - 1 without cancellation near d = 0, [n]."""
        return self.values.clamp(-CLAMP, CLAMP).expm1()

    @property
    def sums(self) -> Tensor:
        """S = sum_t d_t, the log ratio of each whole response, [b]."""
        return self.tokens.sums(self.values)
