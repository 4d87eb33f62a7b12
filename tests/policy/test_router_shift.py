"""The router-shift ratio against router scores that hooks of the test read, in every family."""

from dataclasses import replace

import pytest
import torch
from moe_families import LAYOUTS, family_model
from policy_cases import algorithm, figures, policy, random_routes, rollouts, train_batch

from minirl.config import Routing
from minirl.models.tape import RoutingTape
from minirl.policy import replay
from minirl.types import split

SIGMOID = ("deepseek_v3", "glm4_moe")


def two_updates(layout, routing, **settings):
    """(policy, its two mini-batches, the figures of both updates) with the engine's routes for every layer."""
    trainer = policy(family_model(layout), num_mini_batches=2, optim={"lr": 0.02}, **settings)
    batch = rollouts(groups=8)
    layers = tuple(range(trainer.model.config.num_hidden_layers))
    batch = replace(batch, routes=random_routes(len(batch.tokens), layers=layers, num_experts=6))
    algo = algorithm(routing=routing)
    old = trainer.recompute(batch, algo.routing)
    parts = split(train_batch(batch, old, algo), 2)
    return trainer, parts, algo


def read_scores(trainer, layout, part, routes):
    """[n, L, k] log scores of the experts that pi_old used, at every token that predicts a response token: one
    response at a time, through an unsharded model of the same weights with hooks of our own."""
    model, logits = family_model(layout), []
    model.load_state_dict(dict(trainer.parameters()))
    tape = RoutingTape(model)
    for router in tape.routers:
        router.register_forward_hook(lambda _, __, out: logits.append(out[0].double()))
    seen, rollout = [], part.rollouts
    for i in range(len(rollout)):
        begin, end = int(rollout.cu_seqlens[i]), int(rollout.cu_seqlens[i + 1])
        logits.clear()
        with torch.no_grad(), tape.replay(*(each[begin : end - 1] for each in routes)):
            model(rollout.tokens[None, begin : end - 1], use_cache=False)
        scores = torch.stack(logits, 1)
        scores = scores.sigmoid().log() if layout.startswith(SIGMOID) else scores.softmax(-1).log()
        predicts = rollout.response_mask[begin + 1 : end]
        seen.append(scores[predicts].gather(-1, routes[0][begin : end - 1][predicts].long()))
    return torch.cat(seen)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("routing", ["r2", "r3"])
def test_the_ratio_is_that_of_the_scores_before_and_after_an_update(layout, routing):
    trainer, (first, second), algo = two_updates(layout, routing)
    columns = [second.rollouts.routes.layers.index(layer) for layer in trainer.tape.layers]
    engine = (second.rollouts.routes.experts[:, columns], second.rollouts.routes.present)
    used = engine if routing == "r3" else (second.old.routes.experts, second.old.routes.present)
    before = read_scores(trainer, layout, second, used)
    assert figures(trainer.update(first, algo))["routing/router_shift"] == 1.0
    after = read_scores(trainer, layout, second, used)
    gamma = torch.exp(-(after - before).abs().sum((1, 2)) / (before.shape[1] * before.shape[2]))
    seen = figures(trainer.update(second, algo))
    assert gamma.mean() < 0.99
    assert seen["routing/router_shift"] == pytest.approx(float(gamma.mean()), rel=2e-5)
    assert seen["routing/router_shift_low"] == pytest.approx(float((gamma < 0.8).double().mean()), abs=1e-9)


@pytest.mark.parametrize("routing", ["live", "r2", "r3"])
def test_the_ratio_depends_neither_on_micro_batches_nor_on_recomputation(routing):
    seen = []
    cut = {"max_tokens_per_micro_batch": 30}
    for settings in ({"max_tokens_per_micro_batch": 10_000}, cut, cut | {"activation_checkpointing": True}):
        trainer, (first, second), algo = two_updates("qwen3_moe", routing, **settings)
        trainer.update(first, algo)
        seen.append(figures(trainer.update(second, algo))["routing/router_shift"])
    assert seen[1] == pytest.approx(seen[0], rel=1e-4) and seen[2] == pytest.approx(seen[0], rel=1e-4)
    assert seen[0] < 0.99


def test_the_sample_has_a_size_of_its_own_and_is_spread_over_each_mini_batch(monkeypatch):
    """R34: what is kept of the scores does not grow with the batch."""
    monkeypatch.setattr(replay, "SCORED_TOKENS", 10)
    trainer, parts, _ = two_updates("qwen3_moe", "r2")
    scores = parts[0].old.scores
    assert scores.log_scores.shape == (20, 3, 2) and scores.experts.dtype == torch.uint8
    for place, part in enumerate(parts):
        rows = part.old.scores.rows
        at = (rows >= 0).nonzero().flatten()
        assert rows[at].tolist() == list(range(10 * place, 10 * place + 10))
        assert part.rollouts.response_mask[at + 1].all()
        assert at[0] < len(rows) / 5 and at[-1] > len(rows) * 4 / 5
    assert trainer.recompute(parts[0].rollouts, Routing.live).scores.log_scores.shape == (20, 3, 2)


def test_invalid_responses_are_not_sampled():
    trainer = policy(family_model("qwen3_moe"))
    batch = rollouts(groups=2)
    batch = replace(batch, routes=None, valid=torch.arange(len(batch)) != 1)
    rows = trainer.recompute(batch, Routing.live).scores.rows
    assert (rows[batch.sequence_ids == 1] == -1).all() and (rows[batch.sequence_ids == 0] >= 0).any()
