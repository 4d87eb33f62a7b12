"""Routing disagreement against Python sets, with layers matched by id and missing routes left out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from random_batches import EXPERTS, LAYERS, K, random_batch, random_routes

from minirl.metrics.live import live_metrics
from minirl.metrics.rollout import rollout_metrics
from minirl.metrics.routing import ROUTING, Choices, response_positions, routes_needed
from minirl.types import Routes, figures


def routing_metrics(engine: Routes, trainer: Routes, needed: torch.Tensor, positions: torch.Tensor | None = None):
    where = torch.zeros_like(needed, dtype=torch.int64) if positions is None else positions
    return ROUTING.measure(Choices.compare(engine, trainer, needed, where))


def near(routes: Routes, seed: int) -> Routes:
    """The same routes, with some rows in another order and some with another set."""
    generator = torch.Generator().manual_seed(seed)
    flipped = torch.rand(routes.experts.shape[:2], generator=generator) < 0.5
    experts = torch.where(flipped[..., None], routes.experts.flip(2), routes.experts)
    other = random_routes(len(routes.present), generator)
    changed = torch.rand(routes.experts.shape[:2], generator=generator) < 0.3
    return replace(other, experts=torch.where(changed[..., None], other.experts, experts))


@pytest.mark.parametrize("seed", range(4))
def test_against_sets(seed: int) -> None:
    batch = random_batch(seed)
    engine = batch.rollouts.routes
    assert engine is not None
    trainer, needed = near(engine, seed), routes_needed(batch.rollouts.cu_seqlens)
    found = figures(routing_metrics(engine, trainer, needed, response_positions(batch.rollouts)))
    compared = [t for t in range(len(needed)) if needed[t] and engine.present[t] and trainer.present[t]]
    assert 0 < len(compared) < int(needed.sum())
    shared = [
        [len(set(engine.experts[t, i].tolist()) & set(trainer.experts[t, i].tolist())) for i in range(len(LAYERS))]
        for t in compared
    ]
    cells = [count for row in shared for count in row]
    assert {0, 1, 2} == set(cells)
    n = len(compared)
    assert found["routing/disagree_token_layer"] == pytest.approx(sum(c < K for c in cells) / len(cells))
    assert found["routing/disagree_any"] == pytest.approx(sum(min(row) < K for row in shared) / n)
    assert found["routing/disagree_layers"] == pytest.approx(sum(c < K for c in cells) / n)
    assert found["routing/overlap"] == pytest.approx(sum(cells) / K / len(cells))
    for i, layer in enumerate(LAYERS):
        assert found[f"routing/by_layer/{layer}"] == pytest.approx(sum(row[i] for row in shared) / K / n)
    cu = batch.rollouts.cu_seqlens.tolist()
    first = [next(t for t in range(a, b) if batch.rollouts.response_mask[t]) for a, b in pairwise(cu)]
    place = {t: t - first[i] for i, (a, b) in enumerate(pairwise(cu)) for t in range(a, b)}
    for label, places in {"prompt": range(-9, 0), "0": range(1), "1": range(1, 4), "4": range(4, 16)}.items():
        cells = [share for t, row in zip(compared, shared, strict=True) if place[t] in places for share in row]
        assert cells and found[f"routing/by_position/{label}"] == pytest.approx(sum(cells) / K / len(cells))
    assert "routing/by_position/16" not in found  # no response is as long
    absent = sum(bool(needed[t]) and not bool(engine.present[t]) for t in range(len(needed)))
    assert found["routing/missing"] == pytest.approx(absent / int(needed.sum())) and absent
    assert found["routing/repeated"] == 0.0


def routes(experts: list[list[list[int]]], layers: tuple[int, ...]) -> Routes:
    tensor = torch.tensor(experts, dtype=torch.uint8)
    return Routes(tensor, torch.ones(len(experts), dtype=torch.bool), layers, EXPERTS)


NEEDED = torch.tensor([True, True])


def test_the_order_of_experts_is_no_disagreement() -> None:
    found = figures(routing_metrics(routes([[[0, 1]], [[2, 3]]], (4,)), routes([[[1, 0]], [[3, 2]]], (4,)), NEEDED))
    assert found["routing/disagree_token_layer"] == 0.0 and found["routing/overlap"] == 1.0


def test_layers_are_matched_by_id_not_by_place() -> None:
    """An engine that reports every decoder layer, dense ones included, against a trainer with two MoE layers."""
    engine = routes([[[0, 0], [0, 1], [0, 0], [2, 3]], [[0, 0], [1, 4], [0, 0], [2, 5]]], (0, 1, 2, 3))
    trainer = routes([[[0, 1], [2, 3]], [[1, 4], [2, 4]]], (1, 3))
    found = figures(routing_metrics(engine, trainer, NEEDED))
    assert (found["routing/by_layer/1"], found["routing/by_layer/3"]) == (1.0, 0.75)
    with pytest.raises(ValueError, match=r"no routes for layers \[7\]"):
        routing_metrics(engine, routes([[[0, 1]], [[1, 4]]], (7,)), NEEDED)


def test_routes_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="cover 2 tokens"):
        routing_metrics(routes([[[0, 1]], [[1, 4]]], (7,)), routes([[[0, 1]]], (7,)), NEEDED)


def test_rows_that_name_an_expert_twice_are_counted() -> None:
    engine = routes([[[0, 0], [0, 1]], [[3, 3], [5, 5]]], (1, 3))
    trainer = routes([[[0, 1], [0, 1]], [[3, 4], [5, 1]]], (1, 3))
    found = figures(routing_metrics(engine, trainer, NEEDED))
    assert found["routing/repeated"] == 0.75
    assert found["routing/overlap"] == pytest.approx((0.5 + 1 + 0.5 + 0.5) / 4)  # a repeated expert counts once


def test_expert_ids_of_any_dtype_are_compared_by_value() -> None:
    wide = Routes(torch.tensor([[[300, 2]]], dtype=torch.int16), torch.tensor([True]), (0,), 512)
    narrow = Routes(torch.tensor([[[44, 2]]], dtype=torch.uint8), torch.tensor([True]), (0,), 512)  # 300 % 256 = 44
    assert figures(routing_metrics(wide, narrow, torch.tensor([True])))["routing/overlap"] == 0.5


def test_only_the_last_token_of_each_sequence_needs_no_route() -> None:
    needed = routes_needed(torch.tensor([0, 3, 4, 6]))
    assert needed.tolist() == [True, True, False, False, True, False]


def test_nothing_to_compare_leaves_the_figures_out() -> None:
    engine = replace(routes([[[0, 1]], [[1, 4]]], (7,)), present=torch.tensor([False, False]))
    assert figures(routing_metrics(engine, routes([[[0, 1]], [[1, 4]]], (7,)), NEEDED)) == {"routing/missing": 1.0}


def test_live_figures_are_the_same_estimators_on_the_live_pass() -> None:
    batch = random_batch(5)
    live = replace(batch.old, logprobs=batch.old.logprobs * 0.9)
    found = figures(live_metrics(batch, live, extreme_ratio=2.0))
    own = figures(rollout_metrics(replace(batch, old=live), extreme_ratio=2.0))
    for name, value in found.items():
        twin = name.replace("mismatch_live/", "mismatch/").replace("routing/", "routing/local_")
        assert value == own[twin], name
    assert {name.split("/")[0] for name in found} == {"mismatch_live", "routing"}
