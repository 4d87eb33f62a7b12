"""Routes written at the wrong token or layer are recognised, and said where they belong; right ones never are."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from random_batches import EXPERTS, LAYERS, K, random_batch, random_routes

from minirl.metrics.displacement import OFFSETS, DisplacedRoutes, overlaps, placements, refuse_displaced_routes
from minirl.types import Routes
from minirl.world import World

FLOOR = 0.3


def batch_of(seed=0, agreement=0.8):
    """Rollouts with engine routes that differ from the trainer's in some rows, and those of the trainer."""
    batch, draw = random_batch(seed, groups=12), torch.Generator().manual_seed(seed)
    ours = random_routes(len(batch.rollouts.tokens), draw)
    kept = torch.rand(ours.experts.shape[:2], generator=draw) < agreement
    noise = random_routes(len(ours.present), draw)
    theirs = replace(noise, experts=torch.where(kept[..., None], ours.experts, noise.experts))
    return replace(batch.rollouts, routes=theirs), replace(batch.old, routes=ours)


def judged(rollouts, live, floor=FLOOR):
    refuse_displaced_routes(rollouts, live, floor=floor, world=World.join("cpu"))


def shifted(rollouts, offset):
    """Token t's route written at t + offset, whatever sequence that is in."""
    routes = rollouts.routes
    experts, present = (part.roll(offset, 0) for part in (routes.experts, routes.present))
    return replace(rollouts, routes=replace(routes, experts=experts, present=present))


def relayered(rollouts, order):
    return replace(rollouts, routes=replace(rollouts.routes, experts=rollouts.routes.experts[:, order]))


def test_against_sets():
    rollouts, live = batch_of(1)
    engine, trainer, cu = rollouts.routes, live.routes, rollouts.cu_seqlens.tolist()
    total = overlaps(engine, trainer, rollouts.cu_seqlens)
    for place, offset in enumerate(OFFSETS):
        pairs = [
            (t, t + offset)
            for begin, end in pairwise(cu)
            for t in range(begin, end - 1)
            if begin <= t + offset < end and trainer.present[t] and engine.present[t + offset]
        ]
        assert total[0, place, -1] == len(pairs) > 50
        for row in range(len(LAYERS)):
            for column in range(len(LAYERS)):
                shared = [
                    len(set(trainer.experts[t, row].tolist()) & set(engine.experts[u, column].tolist())) / K
                    for t, u in pairs
                ]
                assert total[row, place, column] == pytest.approx(sum(shared))


@pytest.mark.parametrize("agreement", [0.5, 0.8, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_right_routes_pass(seed, agreement):
    judged(*batch_of(seed, agreement))


def test_the_same_experts_for_every_token_pass():
    """Routers that always choose alike agree as well at any other token: no reason to stop."""
    rollouts, live = batch_of()
    same = torch.tensor([0, 1], dtype=torch.uint8).expand_as(live.routes.experts).clone()
    judged(
        replace(rollouts, routes=replace(rollouts.routes, experts=same)),
        replace(live, routes=replace(live.routes, experts=same)),
    )


@pytest.mark.parametrize(("offset", "words"), [(1, r"token after \(offset \+1\)"), (-1, r"token before \(offset -1\)")])
@pytest.mark.parametrize("seed", range(3))
def test_a_shift_by_one_token_is_said_with_its_direction(seed, offset, words):
    rollouts, live = batch_of(seed)
    with pytest.raises(DisplacedRoutes, match=words) as stopped:
        judged(shifted(rollouts, offset), live)
    for layer in LAYERS:
        assert f"decoder layer {layer}: " in str(stopped.value)


def test_a_shift_by_one_layer_names_both_layers():
    rollouts, live = batch_of()
    moved = relayered(rollouts, [2, 0, 1])
    with pytest.raises(DisplacedRoutes) as stopped:
        judged(moved, live)
    first, second, third = LAYERS
    for layer, elsewhere in ((first, second), (second, third), (third, first)):
        assert f"with the route of the same token in layer {elsewhere}" in str(stopped.value)
        assert f"decoder layer {layer}: " in str(stopped.value)


def test_one_layer_of_strangers_is_named_alone():
    rollouts, live = batch_of()
    experts = rollouts.routes.experts.clone()
    experts[:, 1] = random_routes(len(experts), torch.Generator().manual_seed(9)).experts[:, 1]
    with pytest.raises(DisplacedRoutes, match=rf"decoder layer {LAYERS[1]}: 0\.\d\d\. These routes belong") as stopped:
        judged(replace(rollouts, routes=replace(rollouts.routes, experts=experts)), live)
    assert f"layer {LAYERS[0]}" not in str(stopped.value)


def test_an_engine_that_reports_every_decoder_layer_is_matched_by_id():
    rollouts, live = batch_of()
    experts = torch.zeros(len(rollouts.tokens), 6, K, dtype=torch.uint8)
    experts[:, list(LAYERS)] = rollouts.routes.experts
    everything = Routes(experts, rollouts.routes.present, tuple(range(6)), EXPERTS)
    judged(replace(rollouts, routes=everything), live)
    ordinal = replace(everything, experts=experts[:, [1, 2, 5, 0, 3, 4]])  # MoE layers first, as if ids were ordinals
    with pytest.raises(DisplacedRoutes, match=rf"decoder layer {LAYERS[0]}: .*same token in layer 0"):
        judged(replace(rollouts, routes=ordinal), live)


def test_nothing_to_compare_is_no_finding():
    rollouts, live = batch_of()
    absent = replace(rollouts.routes, present=torch.zeros_like(rollouts.routes.present))
    judged(replace(rollouts, routes=absent), live)
    judged(replace(rollouts, routes=None), replace(live, routes=None))


def test_ranks_add_up():
    """Two halves of a batch say together what the whole says."""
    rollouts, live = batch_of(2)
    whole = overlaps(rollouts.routes, live.routes, rollouts.cu_seqlens)
    half = int(rollouts.cu_seqlens[len(rollouts) // 2])
    cut = [rollouts.cu_seqlens[: len(rollouts) // 2 + 1], rollouts.cu_seqlens[len(rollouts) // 2 :] - half]
    parts = [
        overlaps(
            *(replace(r, experts=r.experts[at], present=r.present[at]) for r in (rollouts.routes, live.routes)), cu
        )
        for at, cu in zip((slice(0, half), slice(half, None)), cut, strict=True)
    ]
    assert torch.equal(parts[0] + parts[1], whole)
    assert [one.layer for one in placements(whole, rollouts.routes, live.routes)] == list(LAYERS)
