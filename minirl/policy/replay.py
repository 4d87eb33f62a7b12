"""Which routes a pass follows: live, R2 (the trainer's own, of the recompute pass), R3 (the engine's)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import Tensor

from minirl.config import Routing
from minirl.metrics.routing import Choices, disagree_token_layer, response_positions, routes_needed
from minirl.metrics.statistics import Estimators, Family, Mean
from minirl.models.routes import columns, well_formed
from minirl.models.tape import Pass, RoutingTape
from minirl.policy.packing import Padded
from minirl.types import RolloutBatch, Routes, TrainBatch


class BrokenRoutes(ValueError):
    """What is to be replayed is not a route."""


def replayed_routes(mini_batch: TrainBatch, routing: Routing) -> Routes | None:
    """The routes an update follows; None is live."""
    sources = {Routing.live: None, Routing.r2: mini_batch.old.routes, Routing.r3: mini_batch.rollouts.routes}
    return sources[routing]


def needed(rollouts: RolloutBatch) -> Tensor:
    """[T] bool: tokens whose route matters: inputs of the model (all but the last of a sequence), valid responses."""
    return routes_needed(rollouts.cu_seqlens) & rollouts.valid[rollouts.sequence_ids]


def require_routes(routes: Routes | None, rollouts: RolloutBatch, tape: RoutingTape | None) -> None:
    """Every row that claims to be a route names, in every MoE layer, k different experts. An absent one is another
    matter: it is routed live here, and algo.routing_missing says what becomes of the response."""
    if routes is None or tape is None:
        raise BrokenRoutes("algo.routing asks for replay and there are no routes: the model is dense or none were kept")
    broken = (routes.present & ~well_formed(columns(routes, tape.layers), tape.num_experts)).nonzero().flatten()
    if len(broken):
        response = int(rollouts.sequence_ids[broken[0]])
        raise BrokenRoutes(
            f"token {int(broken[0] - rollouts.cu_seqlens[response])} of response {response} has the route "
            f"{columns(routes, tape.layers)[broken[0]].tolist()} (and {len(broken) - 1} others are like it): expected "
            f"{tape.top_k} different experts of {tape.num_experts} in each layer; an absent route must be marked absent"
        )


def followed(tape: RoutingTape, layout: Padded, routes: Routes | None) -> AbstractContextManager[Pass]:
    """The pass of a micro-batch: replaying its packed `routes` where present, or (None) recording the live choice."""
    if routes is None:
        return tape.record(layout.tokens.numel())
    return tape.replay(layout.spread(columns(routes, tape.layers)), layout.spread(routes.present))


def own_routes(tape: RoutingTape, layout: Padded, current: Pass) -> Routes:
    """What the routers chose by themselves in this pass, packed; absent where nothing was fed."""
    return Routes(layout.collect(current.experts), layout.fed, tape.layers, tape.num_experts)


@dataclass(frozen=True, slots=True)
class Routed:
    """found [needed tokens] bool: a route was there to replay, or None where nothing is replayed ·
    changed: the routers' own choice in this pass beside that of the recompute pass, or None without one."""

    found: Tensor | None
    changed: Choices | None

    @classmethod
    def of(cls, micro_batch: TrainBatch, routing: Routing, own: Routes) -> Routed:
        wanted, routes = needed(micro_batch.rollouts), replayed_routes(micro_batch, routing)
        old = micro_batch.old.routes
        return cls(
            None if routes is None else routes.present[wanted],
            None if old is None else Choices.compare(old, own, wanted, response_positions(micro_batch.rollouts)),
        )


def replayed(seen: Routed) -> Mean:
    """share of fed tokens whose experts were replayed, in all MoE layers; absent where nothing is replayed.
    [ours]"""
    return Mean(0.0, 0) if seen.found is None else Mean.of(seen.found)


def changed(seen: Routed) -> Mean:
    """share of (token, MoE layer) whose router's own choice is another set than in the recompute pass: flips by
    rounding before the first update on a batch, drift of the routers (and of their inputs) after it.
    [ours]"""
    return Mean(0.0, 0) if seen.changed is None else disagree_token_layer(seen.changed)


REPLAY_ESTIMATORS: Estimators[Routed] = {"replayed": replayed, "changed": changed}
REPLAY = Family("routing/", REPLAY_ESTIMATORS)
