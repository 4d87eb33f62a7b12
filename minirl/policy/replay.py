"""Which routes a pass follows: live, R2 (the trainer's own, of the recompute pass), R3 (the engine's)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from minirl.config import Routing
from minirl.metrics.routing import Choices, disagree_token_layer, response_positions, routes_needed
from minirl.metrics.statistics import Estimators, Family, Mean
from minirl.models.routes import columns, well_formed
from minirl.models.tape import Pass, RoutingTape
from minirl.policy.packing import Padded
from minirl.types import OldPolicy, RolloutBatch, RouterScores, Routes, TrainBatch, expert_dtype, token_index

SCORED_TOKENS = 512  # per mini-batch and rank: their mean is known to a few percent, whatever the batch weighs
SHIFT_FLOOR = 0.8  # below it RSPO no longer follows the ratio


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


def blank_scores(rollouts: RolloutBatch, mini_batches: tuple[Tensor, ...], tape: RoutingTape) -> RouterScores:
    """Scores to be filled in: of at most SCORED_TOKENS tokens of each mini-batch, evenly spaced among those that
    predict a token of a valid response."""
    predicts = torch.zeros_like(rollouts.response_mask)
    predicts[:-1] = rollouts.response_mask[1:]
    predicts &= rollouts.valid[rollouts.sequence_ids]
    rows, size = torch.full_like(rollouts.tokens, -1), 0
    for responses in mini_batches:
        tokens = token_index(rollouts.cu_seqlens, responses)
        tokens = tokens[predicts[tokens]]
        count = min(len(tokens), SCORED_TOKENS)
        places = torch.arange(count, device=tokens.device) * len(tokens) // max(count, 1)
        rows[tokens[places]] = torch.arange(size, size + count, device=rows.device)
        size += count
    shape = (size, len(tape.layers), tape.top_k)
    experts = torch.zeros(shape, dtype=expert_dtype(tape.num_experts), device=rows.device)
    return RouterScores(rows, experts, torch.zeros(shape, device=rows.device))


def scored_slots(layout: Padded, rows: Tensor) -> Tensor:
    """[n] where in the flattened tokens the sampled ones of a micro-batch stand, in packed order; rows [T]."""
    return layout.slots[(rows.to(layout.fed.device) >= 0)[layout.fed]]


def watch_again(current: Pass, layout: Padded, scores: RouterScores) -> None:
    """Opens the scores of the same tokens and experts as in the recompute pass; scores: of this micro-batch."""
    current.watch(scored_slots(layout, scores.rows), scores.experts[scores.rows[scores.rows >= 0]])


def keep_routing(old: OldPolicy, tokens: Tensor, layout: Padded, current: Pass, tape: RoutingTape) -> None:
    """Writes what a micro-batch's recompute pass saw into `old`, at the places of its `tokens` [t] in the batch."""
    if old.routes is None or old.scores is None:
        raise ValueError("a pass with routers has nowhere to keep what they chose")
    own = own_routes(tape, layout, current)
    old.routes.experts[tokens] = own.experts.to(tokens.device)
    old.routes.present[tokens] = own.present.to(tokens.device)
    if current.watched is not None:
        rows = old.scores.rows[tokens]
        rows = rows[rows >= 0]
        old.scores.experts[rows] = current.watched.experts.to(rows.device)
        old.scores.log_scores[rows] = current.watched.log_scores.to(rows.device)


def router_shift(old: Tensor, now: Tensor) -> Tensor:
    """gamma = exp(-(1/L) sum_l (1/k) sum_j |log s_now(e_j) - log s_old(e_j)|) of each token, e_j the experts that
    pi_old used (RSPO, arXiv 2510.23027). old, now [n, L, k] -> [n]"""
    return (now - old).abs().mean(dim=(1, 2)).neg().exp()


@dataclass(frozen=True, slots=True)
class Routed:
    """found [needed tokens] bool: a route was there to replay, or None where nothing is replayed ·
    changed: the routers' own choice in this pass beside that of the recompute pass, or None without one · shift [n]:
    `router_shift` of the sampled tokens, or None without scores of the recompute pass."""

    found: Tensor | None
    changed: Choices | None
    shift: Tensor | None

    @classmethod
    def of(cls, micro_batch: TrainBatch, routing: Routing, own: Routes, current: Pass) -> Routed:
        wanted, routes = needed(micro_batch.rollouts), replayed_routes(micro_batch, routing)
        old, scores, shift = micro_batch.old.routes, micro_batch.old.scores, None
        if scores is not None and current.watched is not None:
            at = scores.rows[scores.rows >= 0]
            shift = router_shift(scores.log_scores[at], current.watched.log_scores)
        return cls(
            None if routes is None else routes.present[wanted],
            None if old is None else Choices.compare(old, own, wanted, response_positions(micro_batch.rollouts)),
            shift,
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


def shift(seen: Routed) -> Mean:
    """mean of the router-shift ratio gamma = exp(-mean over MoE layers and the k experts e that pi_old used of
    |log s_theta(e) - log s_old(e)|), s the family's score over all experts, on a sample of the tokens that predict a
    response token: 1 before the first update on a batch, then what the drift of the routers and of their inputs does
    to the scores even where the choice stays.
    [RSPO, arXiv 2510.23027]"""
    return Mean(0.0, 0) if seen.shift is None else Mean.of(seen.shift)


def shift_low(seen: Routed) -> Mean:
    """share of the same tokens with gamma < 0.8, the floor of RSPO.
    [RSPO, arXiv 2510.23027]"""
    return Mean(0.0, 0) if seen.shift is None else Mean.of(seen.shift < SHIFT_FLOOR)


REPLAY_ESTIMATORS: Estimators[Routed] = {
    "replayed": replayed,
    "changed": changed,
    "router_shift": shift,
    "router_shift_low": shift_low,
}
REPLAY = Family("routing/", REPLAY_ESTIMATORS)
