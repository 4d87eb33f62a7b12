"""The trainer as the loop sees it: old policy, clipping, learning rate, precision, divergence, parameters."""

import pytest
import torch
from policy_cases import (
    VOCAB,
    algorithm,
    equal,
    figures,
    gradients,
    model_config,
    noisy_old,
    policy,
    relative_difference,
    rollouts,
    tiny_model,
    train_batch,
    weights,
)

from minirl.config import GradientClip, Routing
from minirl.models import load
from minirl.policy.optimizer import learning_rate
from minirl.types import Diverged, split


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


def test_logprobs_that_are_no_numbers_are_divergence_too():
    batch, trainer, algo = rollouts(), policy(), algorithm()
    data = train_batch(batch, trainer.recompute(batch, Routing.live), algo)
    trainer.model.lm_head.register_forward_hook(lambda _, __, logits: logits * float("nan"))
    with pytest.raises(Diverged, match="the loss is not finite at update 0"):
        trainer.update(data, algo)


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
    trainer.export(tmp_path, None)
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
