"""Every MoE family, in every layout, under the policy: replay, micro-batches, recomputation, failures, memory."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from moe_families import LAYOUTS, family_model, moe_layers
from policy_cases import (
    algorithm,
    equal,
    figures,
    gradients,
    noisy_old,
    policy,
    random_routes,
    relative_difference,
    rollouts,
    train_batch,
    weights,
)

from minirl.config import Routing
from minirl.models.tape import RoutingTape
from minirl.types import Routes, split

HALF = 30  # tokens per micro-batch, so that a mini-batch is many


def case(layout, seed=0):
    """Rollouts with engine routes for every decoder layer, dense ones included, as vLLM reports them."""
    layers = tuple(range(family_model(layout).config.num_hidden_layers))
    batch = rollouts(groups=8, seed=seed)
    return replace(batch, routes=random_routes(len(batch.tokens), layers=layers, num_experts=6, seed=seed))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_do_not_depend_on_micro_batches_or_recomputation(layout):
    batch, algo = case(layout), algorithm(routing="r3")
    settings = ({"max_tokens_per_micro_batch": 10_000}, {"max_tokens_per_micro_batch": HALF})
    whole, cut, recomputed = (
        policy(family_model(layout), num_mini_batches=2, **each)
        for each in (*settings, settings[1] | {"activation_checkpointing": True})
    )
    old = whole.recompute(batch, algo.routing)
    assert old.routes.layers == whole.tape.layers == moe_layers(layout)
    data = train_batch(batch, noisy_old(batch, old), algo)
    expected = gradients(whole, data, algo)
    assert relative_difference(gradients(cut, data, algo), expected) < 1e-4
    assert relative_difference(gradients(recomputed, data, algo), expected) < 1e-4
    live = gradients(whole, data, algorithm(routing="live"))
    assert relative_difference(live, expected) > 0.05  # foreign experts were really taken
    assert figures(cut.update(data, algo))["routing/replayed"] == 1.0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_updates_of_one_batch_follow_the_record_of_the_recompute_pass(layout):
    """R2 at N = 2: the first update is live to the bit, the second is not, and follows what was recorded."""
    batch, results, changed = case(layout), {}, {}
    for routing in ("live", "r2"):
        trainer, algo = policy(family_model(layout), num_mini_batches=2, optim={"lr": 0.05}), algorithm(routing=routing)
        parts = split(train_batch(batch, trainer.recompute(batch, algo.routing), algo), 2)
        seen = [figures(trainer.update(part, algo)) | {"weights": weights(trainer)} for part in parts]
        results[routing], changed[routing] = seen, [each["routing/changed"] for each in seen]
    assert equal(results["live"][0]["weights"], results["r2"][0]["weights"])
    assert not equal(results["live"][1]["weights"], results["r2"][1]["weights"])
    assert changed["r2"][0] == 0 < changed["r2"][1]


@pytest.mark.parametrize("layout", ["qwen3_moe", "mixtral", "qwen3_next"])
def test_no_load_balancing_loss_is_added(layout):
    """A folder whose config asks for one, heavily, trains by the same gradient."""
    batch, algo = case(layout), algorithm(routing="r3")
    plain, asked = (
        policy(family_model(layout, **changes))
        for changes in ({}, {"output_router_logits": True, "router_aux_loss_coef": 10.0})
    )
    data = train_batch(batch, plain.recompute(batch, algo.routing), algo)
    assert relative_difference(gradients(asked, data, algo), gradients(plain, data, algo)) == 0


class Breaking:
    """Raises at its third call, when some micro-batches have gone through."""

    def __init__(self):
        self.calls = 0

    def __call__(self, *_):
        self.calls += 1
        if self.calls == 3:
            raise OSError("lost")


@pytest.mark.parametrize("layout", ["qwen3_moe", "deepseek_v3", "qwen3_next"])
def test_a_forward_that_fails_midway_leaves_no_tape_and_no_gradient(layout):
    batch, algo = case(layout), algorithm(routing="r3")
    trainer, fresh = (
        policy(family_model(layout), num_mini_batches=2, max_tokens_per_micro_batch=HALF) for _ in range(2)
    )
    before, live = trainer.recompute(batch, Routing.r3), trainer.recompute(batch, Routing.live)
    data = train_batch(batch, before, algo)
    hook = trainer.model.model.layers[-1].register_forward_hook(Breaking())
    with pytest.raises(OSError, match="lost"):
        trainer.update(data, algo)
    hook.remove()
    assert trainer.tape.open is None and trainer.version == 0
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    assert torch.equal(trainer.recompute(batch, Routing.live).logprobs, live.logprobs)
    assert torch.equal(trainer.recompute(batch, Routing.r3).logprobs, before.logprobs)
    assert relative_difference(gradients(trainer, data, algo), gradients(fresh, data, algo)) == 0


@pytest.mark.parametrize("layout", ["qwen3_moe", "deepseek_v3", "qwen3_next"])
def test_a_backward_that_fails_midway_leaves_no_tape(layout):
    """What FSDP2 has gathered by then stays gathered, so there is no next update; the routing is clean all the same."""
    batch, algo = case(layout), algorithm(routing="r3")
    trainer = policy(family_model(layout), num_mini_batches=2, max_tokens_per_micro_batch=HALF)
    before, live = trainer.recompute(batch, Routing.r3), trainer.recompute(batch, Routing.live)
    hook = trainer.model.model.layers[-1].register_full_backward_hook(Breaking())
    with pytest.raises(OSError, match="lost"):
        trainer.update(train_batch(batch, before, algo), algo)
    hook.remove()
    assert trainer.tape.open is None and trainer.version == 0
    assert torch.equal(trainer.recompute(batch, Routing.live).logprobs, live.logprobs)
    assert torch.equal(trainer.recompute(batch, Routing.r3).logprobs, before.logprobs)


def live_route_bytes(layers: int, k: int, own: set[int]) -> int:
    """Bytes of all integer tables [n, layers, k] in memory whose storage is not one of `own`."""
    found: dict[int, int] = {}
    for candidate in gc.get_objects():
        if type(candidate) is torch.Tensor and candidate.ndim == 3 and tuple(candidate.shape[1:]) == (layers, k):
            storage = candidate.untyped_storage()
            if not candidate.is_floating_point() and storage.data_ptr() not in own:
                found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


@pytest.mark.parametrize("routing", ["live", "r2", "r3"])
def test_only_the_routes_of_one_micro_batch_are_live_during_a_step(routing):
    """R16, R34: beside the packed record of the whole batch (which stays where it is), a pass holds the tables of its
    own micro-batch, one byte an expert: the packed ones, the padded ones and what the routers choose."""
    batch, algo = rollouts(groups=32, max_response=20), algorithm(routing=routing)
    trainer = policy(max_tokens_per_micro_batch=60)
    old = trainer.recompute(batch, algo.routing)
    data = train_batch(batch, old, algo)
    own = {each.experts.untyped_storage().data_ptr() for each in (batch.routes, old.routes, old.scores)}
    peaks, passes = [], []
    layers, k = len(trainer.tape.layers), trainer.tape.top_k

    def look(*_):
        passes.append(1)
        if len(passes) % 4 == 0:
            peaks.append(live_route_bytes(layers, k, own))

    trainer.tape.routers[-1].register_forward_hook(look)
    gc.collect()
    trainer.update(data, algo)
    per_token = layers * k
    assert old.routes.experts.dtype == torch.uint8
    assert old.routes.experts.untyped_storage().nbytes() == len(batch.tokens) * per_token
    assert len(passes) > 10 and len(batch.tokens) > 8 * 60
    # packed: engine's and trainer's (60 fed tokens, and the last one of each response, at most 20 here); padded: what
    # is to be followed before and after it is masked, and what the routers choose; and the sampled tokens of the
    # router-shift ratio, here every one that predicts a response token
    assert 2 * 60 * per_token < max(peaks) <= (2 * (60 + 20) + 4 * 60) * per_token


def test_a_pass_is_gone_when_it_ends():
    """Nothing keeps a pass's tables alive: neither the hooks nor the graph."""
    model = family_model("qwen3_moe")
    tape = RoutingTape(model)
    with tape.record(6) as current:
        loss = model(torch.arange(6)[None] % 5, use_cache=False).logits.sum()
        loss.backward()
    held = weakref.ref(current.experts)
    del current
    gc.collect()
    assert held() is None


def test_routes_of_512_experts_take_two_bytes_and_of_256_one():
    """R17, at the point where the policy stores its own choice."""
    for experts, dtype in ((256, torch.uint8), (257, torch.int16)):
        trainer = policy(family_model("qwen3_moe", num_experts=experts, moe_intermediate_size=4))
        batch = rollouts()
        batch = replace(batch, routes=random_routes(len(batch.tokens), layers=(0, 1, 2), num_experts=experts))
        old = trainer.recompute(batch, Routing.r3)
        assert old.routes.experts.dtype == dtype == batch.routes.experts.dtype
        wide = Routes(batch.routes.experts.to(torch.int32), batch.routes.present, batch.routes.layers, experts)
        assert torch.equal(trainer.recompute(replace(batch, routes=wide), Routing.r3).logprobs, old.logprobs)
