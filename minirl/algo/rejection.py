"""Which response tokens may teach and which count in denominators, from what is fixed before the first update.

`accepted` may give gradient; `counted` stays in B and T of the aggregation. What the algorithm rejects leaves the
denominators if `reject.counted` is false; what the machinery spoilt (a non-finite logprob, a lost route) always stays
counted, so that the loss of the other responses does not change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from minirl.algo.advantages import mixed_groups
from minirl.algo.equations import LEVELS, LogRatioLevel, broadcast
from minirl.config import GroupFilter, RejectConfig, Routing, RoutingMissing, Truncated
from minirl.types import MissingRoutes, RolloutBatch, Routes, TrainBatch


def outside_band(log_ratio: Tensor, rollouts: RolloutBatch, *, level: LogRatioLevel, low: float, high: float) -> Tensor:
    """Response tokens whose pi_old / mu_old at `level` is below low or above high. [T] bool.

    A response without valid logprobs has no ratio, so it is never outside.
    """
    ratio = level(log_ratio, rollouts.response_mask, rollouts.cu_seqlens).exp()
    return ((ratio < low) | (ratio > high)) & broadcast(rollouts.valid, rollouts.cu_seqlens)


def uniform_groups(batch: TrainBatch) -> Tensor:
    """Tokens of groups whose graded rewards are all equal (DAPO keeps 0 < #correct < G). [T] bool."""
    size = batch.rollouts.group_size
    mixed = mixed_groups(batch.rewards.values, batch.rewards.graded, size)
    return broadcast(~mixed.repeat_interleave(size), batch.rollouts.cu_seqlens)


def missing_routes(routes: Routes, cu_seqlens: Tensor) -> Tensor:
    """Tokens without the route they need. [T] bool: every token but the last of its sequence is an input of a later
    one and needs a route."""
    missing = ~routes.present
    missing[cu_seqlens[1:] - 1] = False
    return missing


def after_missing_route(routes: Routes, cu_seqlens: Tensor) -> Tensor:
    """Tokens scored from at least one input without a route: all that follow a hole in their sequence. [T] bool."""
    missing = missing_routes(routes, cu_seqlens).long()
    before = missing.cumsum(0) - missing
    return before > broadcast(before[cu_seqlens[:-1]], cu_seqlens)


@dataclass(frozen=True)
class Rejection:
    """What is rejected by the ratio pi_old / mu_old, by the group's rewards, by truncation, by a missing route."""

    level: LogRatioLevel
    low: float
    high: float
    counted: bool
    groups: GroupFilter
    truncated: Truncated
    routing: Routing
    routing_missing: RoutingMissing

    def masks(self, batch: TrainBatch) -> tuple[Tensor, Tensor]:
        """(accepted, counted), [T] bool each."""
        response_mask, rejected = batch.rollouts.response_mask, self._rejected(batch)
        accepted = response_mask & ~rejected & ~self._spoilt(batch)
        return accepted, response_mask if self.counted else response_mask & ~rejected

    def _rejected(self, batch: TrainBatch) -> Tensor:
        rollouts = batch.rollouts
        log_ratio = batch.old.logprobs - rollouts.rollout_logprobs
        rejected = outside_band(log_ratio, rollouts, level=self.level, low=self.low, high=self.high)
        if self.groups is GroupFilter.mixed:
            rejected |= uniform_groups(batch)
        if self.truncated is Truncated.drop:
            rejected |= broadcast(rollouts.truncated, rollouts.cu_seqlens)
        return rejected

    def _spoilt(self, batch: TrainBatch) -> Tensor:
        rollouts = batch.rollouts
        spoilt = broadcast(~rollouts.valid, rollouts.cu_seqlens)
        if self.routing is Routing.live or self.routing_missing is RoutingMissing.live:
            return spoilt
        routes = rollouts.routes if self.routing is Routing.r3 else batch.old.routes
        if routes is None:
            raise ValueError(f"algo.routing={self.routing} replays routes and this batch has none: use a MoE model")
        if self.routing_missing is RoutingMissing.fail:
            require_routes(routes, rollouts)
        return spoilt | after_missing_route(routes, rollouts.cu_seqlens)


def require_routes(routes: Routes, rollouts: RolloutBatch) -> None:
    """Raises MissingRoutes where a token of a valid response lacks the route it needs; an invalid response teaches
    nothing anyway."""
    missing = missing_routes(routes, rollouts.cu_seqlens) & broadcast(rollouts.valid, rollouts.cu_seqlens)
    places = missing.nonzero().flatten()
    if len(places):
        response = int(rollouts.sequence_ids[places[0]])
        raise MissingRoutes(
            f"token {int(places[0] - rollouts.cu_seqlens[response])} of response {response} has no route to replay "
            f"under algo.routing_missing=fail ({len(places)} of {len(missing)} tokens are like it): use drop to leave "
            "out what follows a missing route, or live to let the trainer's routers choose"
        )


def build(cfg: RejectConfig, routing: Routing, routing_missing: RoutingMissing) -> Rejection:
    """The rejection of a configuration; null is no bound."""
    return Rejection(
        level=LEVELS[cfg.level],
        low=0.0 if cfg.low is None else cfg.low,
        high=math.inf if cfg.high is None else cfg.high,
        counted=cfg.counted,
        groups=cfg.groups,
        truncated=cfg.truncated,
        routing=routing,
        routing_missing=routing_missing,
    )
