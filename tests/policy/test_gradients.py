"""The gradient of an update: an independent oracle, and what it must not depend on."""

import pytest
import torch
from policy_cases import (
    algorithm,
    gradients,
    noisy_old,
    policy,
    relative_difference,
    rollouts,
    tiny_model,
    train_batch,
)

from minirl.config import Routing
from minirl.world import World

AGGREGATIONS = ["seq_mean_token_sum", "seq_mean_token_mean", "token_mean", "group_token_mean"]


def written_out(batch, old, algo, temperature):
    """Autograd of eq 7 on the bare model, one unpadded sequence at a time, in float64."""
    model = tiny_model(torch.float64)
    advantages = train_batch(batch, old, algo).advantages
    total, masked, capped = torch.zeros((), dtype=torch.float64), 0, 0
    for i, (begin, end) in enumerate(zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True)):
        logits = model(batch.tokens[None, begin:end]).logits[0, :-1] / temperature
        logprobs = logits.log_softmax(-1).gather(-1, batch.tokens[begin + 1 : end, None])[:, 0]
        mask = batch.response_mask[begin + 1 : end]
        mu, pi_old = batch.rollout_logprobs[begin + 1 : end], old.logprobs[begin + 1 : end]
        ratio = (logprobs.detach() - pi_old).exp()
        advantage = advantages[i]
        kept = ~(((advantage > 0) & (ratio > 1.27)) | ((advantage < 0) & (ratio < 0.8)))
        weight = (logprobs.detach() - mu).exp().clamp(max=5.0)
        masked, capped = masked + int((mask & ~kept).sum()), capped + int((mask & (weight == 5.0)).sum())
        total = total - (mask * kept * weight * advantage * logprobs).sum() / len(batch)
    assert masked > 3 and capped > 0
    total.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.fixture(scope="module")
def case():
    """Sixteen responses (1/16 is exact in fp32, as coefficients are), and a pi_old far enough for clipping."""
    batch, trainer = rollouts(groups=8), policy(tiny_model(torch.float64), num_mini_batches=2)
    old = noisy_old(batch, trainer.recompute(batch, Routing.live), scale=0.3)
    return batch, old


def test_the_gradient_is_that_of_equation_7(case):
    batch, old = case
    algo, trainer = algorithm(), policy(tiny_model(torch.float64), num_mini_batches=2)
    ours = gradients(trainer, train_batch(batch, old, algo), algo)
    assert relative_difference(ours, written_out(batch, old, algo, temperature=0.8)) < 1e-9


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("max_tokens", [1, 25, 60])
def test_the_cut_into_micro_batches_does_not_matter(case, aggregation, max_tokens):
    batch, old = case
    algo = algorithm(aggregation=aggregation)
    data = train_batch(batch, old, algo)
    whole, cut = (
        policy(tiny_model(torch.float64), num_mini_batches=2, max_tokens_per_micro_batch=size)
        for size in (10_000, max_tokens)
    )
    assert len(cut._cut(batch.lengths)) > 1
    assert relative_difference(gradients(cut, data, algo), gradients(whole, data, algo)) < 1e-9


def test_the_cut_does_not_matter_in_fp32_with_routes_replayed(case):
    batch, old = case
    algo = algorithm(routing="r2")
    data = train_batch(batch, old, algo)
    whole, cut = (policy(num_mini_batches=2, max_tokens_per_micro_batch=size) for size in (10_000, 25))
    assert relative_difference(gradients(cut, data, algo), gradients(whole, data, algo)) < 1e-5


def test_metrics_do_not_see_the_cut(case):
    batch, old = case
    algo = algorithm(routing="r2")
    data = train_batch(batch, old, algo)
    figures = []
    for size in (10_000, 25):
        statistics = policy(num_mini_batches=2, max_tokens_per_micro_batch=size).update(data, algo)
        figures.append({name: value for key, part in statistics.items() for name, value in part.values(key).items()})
    assert figures[0].keys() == figures[1].keys()
    for name, value in figures[0].items():
        assert figures[1][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("routing", ["live", "r2", "r3"])
def test_activation_checkpointing_gives_the_same_gradient(case, routing):
    batch, old = case
    algo = algorithm(routing=routing)
    data = train_batch(batch, old, algo)
    plain, recomputed = (policy(num_mini_batches=2, activation_checkpointing=switch) for switch in (False, True))
    assert relative_difference(gradients(recomputed, data, algo), gradients(plain, data, algo)) < 1e-7
    assert recomputed.tape.open is None


def test_a_logprob_pass_that_fails_leaves_the_next_update_alone(case, monkeypatch):
    """R20: recompute under R3 raises midway; the update (with activation checkpointing) is as if it had not run."""
    batch, old = case
    algo = algorithm(routing="r2")
    data = train_batch(batch, old, algo)
    expected = gradients(policy(num_mini_batches=2, activation_checkpointing=True), data, algo)
    trainer = policy(num_mini_batches=2, activation_checkpointing=True)
    broken = trainer.model.model.layers[1].register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(OSError))
    with pytest.raises(OSError):
        trainer.recompute(batch, Routing.r3)
    broken.remove()
    trainer.recompute(batch, Routing.live)
    assert relative_difference(gradients(trainer, data, algo), expected) == 0


def test_an_update_that_fails_midway_leaves_no_gradient_behind(case, monkeypatch):
    batch, old = case
    algo = algorithm()
    data, trainer = train_batch(batch, old, algo), policy(num_mini_batches=2, max_tokens_per_micro_batch=25)
    expected = gradients(trainer, data, algo)
    calls = []

    def breaks(self, *arguments):
        calls.append(1)
        if len(calls) == 2:
            raise OSError
        return real(self, *arguments)

    real = type(algo).loss
    monkeypatch.setattr(type(algo), "loss", breaks)
    with pytest.raises(OSError):
        trainer.update(data, algo)
    monkeypatch.undo()
    assert relative_difference(gradients(trainer, data, algo), expected) == 0


class Crowded(World):
    """A world in which another rank has two more micro-batches."""

    def max(self, number):
        return number + 2


def test_micro_batches_made_to_keep_ranks_in_step_add_exactly_nothing(case):
    """M17: gradient, metrics and denominators."""
    batch, old = case
    algo = algorithm(routing="r2")
    data = train_batch(batch, old, algo)
    alone = World.join("cpu")
    plain = policy(num_mini_batches=2)
    crowded = policy(num_mini_batches=2, world=Crowded(alone.rank, alone.size, alone.device))
    assert len(crowded._cut(batch.lengths)) == len(plain._cut(batch.lengths)) + 2
    ours, expected = gradients(crowded, data, algo), gradients(plain, data, algo)
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
    assert plain.update(data, algo) == crowded.update(data, algo)
    assert torch.equal(plain.recompute(batch, Routing.r3).logprobs, crowded.recompute(batch, Routing.r3).logprobs)
