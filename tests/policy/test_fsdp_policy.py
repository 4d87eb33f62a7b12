"""The trainer as the loop sees it: replay, clipping, learning rate, precision, divergence, parameters."""

from dataclasses import replace

import pytest
import torch
from policy_cases import (
    VOCAB,
    algorithm,
    family_model,
    gradients,
    model_config,
    noisy_old,
    policy,
    random_routes,
    relative_difference,
    rollouts,
    tiny_model,
    train_batch,
)

from minirl.config import GradientClip, Routing
from minirl.models import load
from minirl.policy import fsdp
from minirl.policy.optimizer import learning_rate
from minirl.policy.replay import BrokenRoutes
from minirl.types import Diverged, Routes, split


def figures(statistics):
    return {name: value for key, part in statistics.items() for name, value in part.values(key).items()}


def weights(trainer):
    return {name: value.clone() for name, value in trainer.parameters()}


def equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


# --- routing ------------------------------------------------------------------------------------------------------


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


# --- the old policy -----------------------------------------------------------------------------------------------


def test_the_first_update_sees_exactly_pi_old_and_the_second_does_not():
    batch, trainer, algo = rollouts(groups=8), policy(num_mini_batches=2), algorithm()
    data = train_batch(batch, trainer.recompute(batch, Routing.live), algo)
    first, second = (figures(trainer.update(part, algo)) for part in split(data, 2))
    assert first["staleness/first"] == 0.0 and first["staleness/ratio_max"] == 1.0
    assert "staleness/first" not in second and second["staleness/kl_k3"] > 0


def test_recompute_runs_the_very_forwards_of_the_updates():
    """The same rows in the same micro-batches: no rounding can tell pi_old from pi_theta before the first update."""
    batch, algo, fed = rollouts(groups=8), algorithm(), []
    trainer = policy(num_mini_batches=2, max_tokens_per_micro_batch=30)
    trainer.likelihood.register_forward_pre_hook(lambda _, inputs: fed.append(inputs[0].tokens))
    data = train_batch(batch, trainer.recompute(batch, Routing.live), algo)
    recomputed, fed[:] = list(fed), []
    for part in split(data, 2):
        trainer.update(part, algo)
    assert len(fed) > 3
    assert all(torch.equal(a, b) for a, b in zip(recomputed, fed, strict=True))


def test_old_logprobs_are_fp32_and_nothing_else_changes():
    batch, trainer = rollouts(), policy()
    before = weights(trainer)
    old = trainer.recompute(batch, Routing.r3)
    assert old.logprobs.dtype == old.entropy.dtype == torch.float32
    assert not old.logprobs.requires_grad and not old.logprobs[~batch.response_mask].any()
    assert (old.entropy[batch.response_mask] > 0).all() and old.entropy.max() <= torch.tensor(VOCAB).log()
    assert equal(before, weights(trainer)) and trainer.version == 0


# --- the optimizer ------------------------------------------------------------------------------------------------


def test_the_learning_rate_is_a_function_of_the_version():
    assert [learning_rate(v, lr=8.0, warmup_updates=4) for v in range(6)] == [2.0, 4.0, 6.0, 8.0, 8.0, 8.0]
    assert learning_rate(0, lr=8.0, warmup_updates=0) == 8.0
    batch, trainer, algo = rollouts(), policy(optim={"lr": 3e-3, "warmup_updates": 3}), algorithm()
    rates = []
    for _ in range(4):
        data = train_batch(batch, trainer.recompute(batch, Routing.live), algo)
        rates.append(figures(trainer.update(data, algo))["optim/lr"])
    assert rates == pytest.approx([1e-3, 2e-3, 3e-3, 3e-3])


def test_an_update_is_adamw_by_the_book():
    """Two updates against the formula in float64: m, v, bias correction, decoupled decay on matrices only."""
    optim = {"lr": 1e-2, "beta1": 0.8, "beta2": 0.9, "eps": 1e-6, "weight_decay": 0.1, "warmup_updates": 0}
    trainer, algo, batch = policy(tiny_model(torch.float64), optim=optim), algorithm(), rollouts()
    moments = {name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in trainer.parameters()}
    for step in (1, 2):
        data = train_batch(batch, trainer.recompute(batch, Routing.live), algo)
        grads, before = gradients(trainer, data, algo), weights(trainer)
        trainer.update(data, algo)
        for name, after in trainer.parameters():
            m, v = moments[name]
            m, v = 0.8 * m + 0.2 * grads[name], 0.9 * v + 0.1 * grads[name] ** 2
            moments[name] = m, v
            decay = 0.1 if after.ndim > 1 else 0.0
            moved = m / (1 - 0.8**step) / ((v / (1 - 0.9**step)).sqrt() + 1e-6)
            torch.testing.assert_close(after, before[name] * (1 - 1e-2 * decay) - 1e-2 * moved, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
def test_the_applied_gradient_is_never_longer_than_max_norm(monkeypatch, compute_dtype):
    """L14: on what the optimizer is about to use, for both compute dtypes, sharded."""
    clip = {"clip": GradientClip.global_norm, "max_norm": 0.01}
    trainer, algo, batch = policy(optim=clip, compute_dtype=compute_dtype), algorithm(), rollouts()
    data, norms = train_batch(batch, trainer.recompute(batch, Routing.live), algo), []

    def spy():
        norms.append(torch.stack([p.grad.full_tensor().norm() for p in trainer.trained]).norm())

    monkeypatch.setattr(trainer.optimizer, "step", spy)
    seen = figures(trainer.update(data, algo))
    assert seen["optim/grad_norm"] > 0.1 and seen["optim/clipped"] == 1.0
    assert 0.0099 < norms[0] <= 0.01


def test_clipping_off_or_not_binding_leaves_the_gradient():
    batch, algo = rollouts(), algorithm()
    results = []
    for optim in ({"clip": GradientClip.none, "max_norm": 1e-3}, {"clip": GradientClip.global_norm, "max_norm": 1e9}):
        trainer = policy(optim=optim)
        seen = figures(trainer.update(train_batch(batch, trainer.recompute(batch, Routing.live), algo), algo))
        assert seen["optim/clipped"] == 0.0
        results.append(weights(trainer))
    assert equal(*results)


def test_a_frozen_router_stays_and_the_rest_moves():
    trainer, algo, batch = policy(freeze_router=True), algorithm(), rollouts()
    before = weights(trainer)
    trainer.update(train_batch(batch, trainer.recompute(batch, Routing.live), algo), algo)
    for name, value in trainer.parameters():
        assert torch.equal(value, before[name]) == name.endswith("mlp.gate.weight"), name


# --- precision ----------------------------------------------------------------------------------------------------


def test_bfloat16_computes_in_bf16_and_keeps_fp32_masters_and_moments():
    """M08: logprobs are not rounded to bf16. L16: neither is the optimizer's state."""
    batch, algo, trainer = rollouts(), algorithm(), policy(compute_dtype="bfloat16")
    met = []
    trainer.model.model.layers[0].mlp.register_forward_pre_hook(lambda _, inputs: met.append(inputs[0].dtype))
    old = trainer.recompute(batch, Routing.live)
    trainer.update(train_batch(batch, old, algo), algo)
    assert set(met) == {torch.bfloat16}
    assert {value.dtype for _, value in trainer.parameters()} == {torch.float32}
    state = trainer.optimizer.state.values()
    assert {value.dtype for moments in state for value in moments.values()} == {torch.float32}
    scored = old.logprobs[batch.response_mask]
    assert scored.dtype == torch.float32 and not torch.equal(scored, scored.bfloat16().float())
    exact = policy().recompute(batch, Routing.live).logprobs[batch.response_mask]
    assert 0 < (scored - exact).abs().median() < 0.05


def test_tiny_steps_are_not_lost_in_bfloat16():
    """L16: at lr 1e-6 bf16 weights would not move at all; the masters move as those of an fp32 run."""
    moved = {}
    for dtype in ("float32", "bfloat16"):
        optim = {"lr": 1e-6, "weight_decay": 0.0, "warmup_updates": 0}
        trainer, algo, batch = policy(compute_dtype=dtype, optim=optim), algorithm(), rollouts()
        before = weights(trainer)
        for _ in range(20):
            trainer.update(train_batch(batch, trainer.recompute(batch, Routing.live), algo), algo)
        changes = [(value - before[name]).abs().sum() for name, value in trainer.parameters()]
        moved[dtype] = float(torch.stack(changes).sum())
    assert moved["bfloat16"] == pytest.approx(moved["float32"], rel=0.05)
    assert moved["float32"] > 0


# --- endings and hand-overs ---------------------------------------------------------------------------------------


def test_divergence_leaves_the_weights_and_the_version():
    batch, trainer, algo = rollouts(), policy(), algorithm()
    data = train_batch(batch, trainer.recompute(batch, Routing.live), algo)
    trainer.update(data, algo)
    before, state = weights(trainer), [m["exp_avg"].full_tensor().clone() for m in trainer.optimizer.state.values()]
    data.advantages[0] = float("inf")
    with pytest.raises(Diverged, match="the loss is not finite at update 1"):
        trainer.update(data, algo)
    assert trainer.version == 1 and equal(before, weights(trainer))
    after = [m["exp_avg"].full_tensor() for m in trainer.optimizer.state.values()]
    assert all(torch.equal(a, b) for a, b in zip(state, after, strict=True))
    assert all(p.grad is None for p in trainer.trained)


def test_an_infinite_gradient_of_a_finite_loss_is_divergence():
    batch, trainer, algo = rollouts(), policy(), algorithm()
    data = train_batch(batch, trainer.recompute(batch, Routing.live), algo)

    def poison(module, inputs, logits):
        if logits.requires_grad:
            logits.register_hook(lambda grad: grad * float("nan"))

    trainer.model.lm_head.register_forward_hook(poison)
    with pytest.raises(Diverged, match="the gradient norm is not finite at update 0"):
        trainer.update(data, algo)


def test_parameters_are_whole_named_as_the_model_s_own_and_include_buffers():
    model = tiny_model()
    model.model.layers[0].mlp.gate.register_buffer("e_score_correction_bias", torch.arange(8.0))
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = policy(model)
    trainer.recompute(rollouts(), Routing.live)  # passes leave the parameters as they were
    assert equal(dict(trainer.parameters()), expected)
    assert all(type(value) is torch.Tensor for value in dict(trainer.parameters()).values())


def test_an_exported_folder_loads_as_the_same_model(tmp_path):
    trainer, algo, batch = policy(), algorithm(), rollouts()
    trainer.update(train_batch(batch, trainer.recompute(batch, Routing.live), algo), algo)
    trainer.export(tmp_path)
    again = load.build(model_config(init_seed=9), vocab_size=VOCAB, checkpoint=tmp_path)
    assert equal(dict(trainer.parameters()), again.state_dict())
    assert again.dtype == torch.float32 and type(again).__name__ == "Qwen3MoeForCausalLM"


def test_invalid_responses_do_not_touch_the_others():
    """M06 as the policy sees it: a response without finite logprobs teaches nothing, whatever its figures are."""
    batch, trainer, algo = rollouts(), policy(), algorithm()
    old = noisy_old(batch, trainer.recompute(batch, Routing.live))
    batch.valid[2] = False
    first = gradients(trainer, train_batch(batch, old, algo), algo)
    batch.rollout_logprobs[batch.cu_seqlens[2] : batch.cu_seqlens[3]] = 0
    assert relative_difference(gradients(trainer, train_batch(batch, old, algo), algo), first) == 0
