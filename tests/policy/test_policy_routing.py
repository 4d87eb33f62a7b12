"""What a pass of the policy routes by: live, R2, R3, holes, broken records, dense layers, other families."""

from dataclasses import replace

import pytest
import torch
from policy_cases import (
    algorithm,
    equal,
    family_model,
    figures,
    gradients,
    noisy_old,
    policy,
    random_routes,
    relative_difference,
    rollouts,
    tiny_model,
    train_batch,
    weights,
)

from minirl.config import Routing
from minirl.models import load
from minirl.policy import fsdp
from minirl.policy.replay import BrokenRoutes
from minirl.types import Routes, split


def test_r2_is_live_to_the_bit_at_n_1():
    """Three updates; micro-batches of several sizes."""
    results = []
    for routing in ("live", "r2"):
        trainer, algo = policy(max_tokens_per_micro_batch=25), algorithm(routing=routing)
        for seed in range(3):
            batch = rollouts(seed=seed)
            seen = figures(trainer.update(train_batch(batch, trainer.recompute(batch, algo.routing), algo), algo))
            assert seen["routing/changed"] == 0
        results.append(weights(trainer))
    assert equal(*results)


def test_r2_differs_from_live_after_the_first_of_n_updates_and_r3_from_both():
    results = []
    for routing in ("live", "r2", "r3"):
        trainer, algo = policy(num_mini_batches=2, optim={"lr": 0.05}), algorithm(routing=routing)
        batch = rollouts(groups=8)
        data = train_batch(batch, trainer.recompute(batch, algo.routing), algo)
        for mini_batch in split(data, 2):
            trainer.update(mini_batch, algo)
        results.append(weights(trainer))
    assert not equal(results[0], results[1])
    assert not equal(results[1], results[2]) and not equal(results[0], results[2])


def test_foreign_routes_change_the_logprobs_and_are_all_applied():
    """R01 at the level of the policy: what R3 replays is not what the live routers choose."""
    batch, trainer, algo = rollouts(), policy(), algorithm(routing="r3")
    live, replayed = trainer.recompute(batch, Routing.live), trainer.recompute(batch, Routing.r3)
    assert (live.logprobs - replayed.logprobs).abs()[batch.response_mask].max() > 0.01
    seen = figures(trainer.update(train_batch(batch, replayed, algo), algo))
    assert seen["routing/replayed"] == 1.0
    assert seen["staleness/first"] == 0.0  # update and recompute followed the same routes


def test_r2_ignores_the_engine_s_routes():
    trainer, algo = policy(), algorithm(routing="r2")
    batch = rollouts()
    other = replace(batch, routes=random_routes(len(batch.tokens), seed=99))
    data = [train_batch(b, trainer.recompute(b, Routing.r2), algo) for b in (batch, other)]
    assert relative_difference(*(gradients(trainer, d, algo) for d in data)) == 0


def test_the_routes_of_a_recompute_pass_are_those_of_the_fed_tokens():
    """Every token but the last of each sequence; absolute layer ids; the smallest dtype."""
    batch, trainer = rollouts(), policy(tiny_model(num_layers=3))
    old = trainer.recompute(batch, Routing.live).routes
    last = torch.zeros_like(batch.response_mask)
    last[batch.cu_seqlens[1:] - 1] = True
    assert torch.equal(old.present, ~last)
    assert old.layers == (0, 1, 2) and old.num_experts == 8 and old.experts.dtype == torch.uint8


def test_the_engine_may_lack_the_route_of_the_last_token_or_have_it():
    """R11: T - 1 rows and T rows are the same thing."""
    batch, trainer = rollouts(), policy()
    without = replace(batch.routes, present=batch.routes.present.clone())
    without.present[batch.cu_seqlens[1:] - 1] = False
    with_all, with_fewer = (
        trainer.recompute(replace(batch, routes=routes), Routing.r3).logprobs for routes in (batch.routes, without)
    )
    assert torch.equal(with_all, with_fewer)
    algo = algorithm(routing="r3")
    holey = replace(batch, routes=without)
    seen = trainer.update(train_batch(holey, trainer.recompute(holey, Routing.r3), algo), algo)
    assert figures(seen)["routing/replayed"] == 1.0


def test_a_hole_is_routed_live_token_by_token_and_counted():
    batch, trainer, algo = rollouts(), policy(), algorithm(routing="r3", missing="live")
    hole = int(batch.cu_seqlens[2])  # the first token of response 2: everything after it feels it
    present = batch.routes.present.clone()
    present[hole] = False
    holey = replace(batch, routes=replace(batch.routes, present=present))
    full, live, old = (
        trainer.recompute(b, r) for b, r in ((batch, Routing.r3), (batch, Routing.live), (holey, Routing.r3))
    )
    affected = (batch.sequence_ids == 2) & batch.response_mask
    assert torch.equal(old.logprobs[~affected], full.logprobs[~affected])
    assert not torch.isclose(old.logprobs[affected], full.logprobs[affected]).all()
    # had the hole been filled with the live choice, nothing would differ
    filled = batch.routes.experts.clone()
    filled[hole] = live.routes.experts[hole]
    same = replace(batch, routes=replace(batch.routes, experts=filled))
    assert torch.equal(trainer.recompute(same, Routing.r3).logprobs, old.logprobs)
    seen = figures(trainer.update(train_batch(holey, old, algo), algo))
    needed = int(batch.cu_seqlens[-1]) - len(batch)
    assert seen["routing/replayed"] == pytest.approx(1 - 1 / needed)


def test_a_missing_route_stops_a_run_that_asks_for_all_of_them():
    batch, trainer, algo = rollouts(), policy(), algorithm(routing="r3", missing="fail")
    batch.routes.present[batch.cu_seqlens[2]] = False
    with pytest.raises(ValueError, match="no route to replay"):
        train_batch(batch, trainer.recompute(batch, Routing.r3), algo)


@pytest.mark.parametrize("row", [[0, 0], [0, 8]])
def test_a_broken_route_is_refused_with_its_place(row):
    """R08: a row of padding that claims to be a route."""
    batch, trainer = rollouts(), policy()
    begin = int(batch.cu_seqlens[3])
    batch.routes.experts[begin + 1, 1] = torch.tensor(row, dtype=torch.uint8)
    with pytest.raises(BrokenRoutes, match=r"token 1 of response 3 has the route .*marked absent"):
        trainer.recompute(batch, Routing.r3)
    batch.routes.present[begin + 1] = False
    trainer.recompute(batch, Routing.r3)


def test_layer_0_dense_and_an_engine_that_reports_every_layer():
    """R02: replaying what the trainer itself chose, reported with rows for dense layers, changes nothing."""

    config = tiny_model(num_layers=3).config
    config.mlp_only_layers = [0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        trainer = policy(load.initialised(config).eval())
    assert trainer.tape.layers == (1, 2)
    batch = rollouts()
    live = trainer.recompute(batch, Routing.live)
    reported = torch.zeros(len(batch.tokens), 3, 2, dtype=torch.uint8)
    reported[:, 1:] = live.routes.experts
    reported[:, 0] = torch.tensor([5, 5], dtype=torch.uint8)
    routes = Routes(reported, live.routes.present, (0, 1, 2), 8)
    assert torch.equal(trainer.recompute(replace(batch, routes=routes), Routing.r3).logprobs, live.logprobs)


def test_a_dense_model_has_no_routes_and_refuses_replay():
    batch, trainer = rollouts(), policy(tiny_model(family="qwen3"))
    old = trainer.recompute(batch, Routing.live)
    assert old.routes is None
    assert "routing/replayed" not in figures(trainer.update(train_batch(batch, old, algorithm()), algorithm()))
    with pytest.raises(BrokenRoutes, match="dense"):
        trainer.recompute(batch, Routing.r3)


DEEPSEEK = {"n_routed_experts": 8, "moe_intermediate_size": 16, "n_shared_experts": 1, "n_group": 2, "topk_group": 1}
DEEPSEEK |= {"first_k_dense_replace": 1, "norm_topk_prob": True, "q_lora_rank": 8, "kv_lora_rank": 8}
DEEPSEEK |= {"head_dim": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
OTHERS = {"deepseek_v3": DEEPSEEK, "gpt_oss": {"num_local_experts": 8}, "mixtral": {"num_local_experts": 8}}


@pytest.mark.parametrize("family", OTHERS)
def test_other_families_train_under_replay(family):
    """Dense first layers, buffers in routers, plain attention, stacked weights of another layout: all by one class."""
    batch, algo = rollouts(groups=8), algorithm(routing="r2")
    whole, cut = (
        policy(family_model(family, **OTHERS[family]), num_mini_batches=2, max_tokens_per_micro_batch=size)
        for size in (10_000, 30)
    )
    data = train_batch(batch, noisy_old(batch, whole.recompute(batch, Routing.live)), algo)
    assert data.old.routes.layers == ((1,) if family == "deepseek_v3" else (0, 1))
    assert relative_difference(gradients(cut, data, algo), gradients(whole, data, algo)) < 1e-5
    before = weights(cut)
    assert figures(cut.update(data, algo))["routing/replayed"] == 1.0
    moved = [name for name, value in cut.parameters() if not torch.equal(value, before[name])]
    fixed = before.keys() - set(moved)
    assert fixed == {name for name in before if name.endswith("e_score_correction_bias")}


def test_routes_are_moved_one_micro_batch_at_a_time(monkeypatch):
    """R16, R34: what is moved to the device holds few tokens, and as many rows as it has tokens."""
    batch, trainer, algo = rollouts(groups=16), policy(max_tokens_per_micro_batch=30), algorithm(routing="r3")
    data = train_batch(batch, trainer.recompute(batch, Routing.r3), algo)
    sizes, real = [], fsdp.moved
    monkeypatch.setattr(fsdp, "moved", lambda stage, device: sizes.append(stage.rollouts) or real(stage, device))
    trainer.update(data, algo)
    assert len(sizes) > 2
    for part in sizes:
        assert len(part.routes.experts) == int(part.cu_seqlens[-1]) <= 30 + len(part)
