"""The routing tape: what is recorded, what is replayed, and that it leaves no trace."""

import pytest
import torch
from model_cases import moe, other_experts, tokens
from torch import nn

from minirl.models.routes import columns
from minirl.models.tape import RoutingTape
from minirl.types import Routes

ALL = torch.ones(15, dtype=torch.bool)


def test_replaying_ones_own_routes_changes_nothing():
    model, ids = moe(), tokens()
    tape = RoutingTape(model)
    with torch.no_grad():
        free = model(ids).logits
        with tape.record(15) as own:
            recorded = model(ids).logits
        with tape.replay(own.experts, ALL) as again:
            replayed = model(ids).logits
    assert torch.equal(free, recorded) and torch.equal(free, replayed)
    assert torch.equal(own.experts, again.experts)


def test_the_record_is_the_top_k_of_the_routers():
    model, ids = moe(), tokens()
    tape = RoutingTape(model)
    logits = {}
    for layer, router in zip(tape.layers, tape.routers, strict=True):
        router.register_forward_hook(lambda _, __, out, layer=layer: logits.__setitem__(layer, out[0]))
    with torch.no_grad(), tape.record(15) as own:
        model(ids)
    for column, layer in enumerate(tape.layers):
        expected = logits[layer].topk(2, dim=-1).indices
        assert torch.equal(own.experts[:, column].long().sort(-1).values, expected.sort(-1).values)


def test_foreign_routes_change_the_logits_and_are_the_ones_the_experts_meet():
    model, ids = moe(), tokens()
    tape = RoutingTape(model)
    met = []
    for layer in model.model.layers:
        layer.mlp.experts.register_forward_pre_hook(lambda _, inputs: met.append(inputs[1].clone()))
    with torch.no_grad():
        with tape.record(15) as own:
            free = model(ids).logits
        foreign = other_experts(own.experts, 6)
        met.clear()
        with tape.replay(foreign, ALL):
            replayed = model(ids).logits
    assert (free - replayed).abs().amax(-1).min() > 1e-3  # every position feels it
    assert torch.equal(torch.stack(met, 1), foreign)


def test_the_recorded_choice_under_replay_is_the_live_one():
    """Given the inputs that replayed layers below produce, each router still says what it would have chosen."""
    model, ids = moe(layers=2), tokens()
    tape = RoutingTape(model)
    with torch.no_grad():
        with tape.record(15) as own:
            model(ids)
        with tape.replay(other_experts(own.experts, 6), ALL) as forced:
            model(ids)
    assert torch.equal(forced.experts[:, 0], own.experts[:, 0])  # nothing below layer 0 was replayed


def test_absent_rows_route_live():
    model, ids = moe(layers=1), tokens()
    tape = RoutingTape(model)
    present = ALL.clone()
    present[4] = present[7] = False
    with torch.no_grad():
        with tape.record(15) as own:
            free = model(ids).logits.flatten(0, 1)
        junk = torch.full_like(own.experts, 99).long()
        junk[present] = other_experts(own.experts, 6)[present]
        with tape.replay(junk, present):
            replayed = model(ids).logits.flatten(0, 1)
    torch.testing.assert_close(free[~present], replayed[~present], rtol=1e-5, atol=1e-6)
    assert (free - replayed)[present].abs().amax(-1).min() > 1e-4


@pytest.mark.parametrize("norm", [True, False])
def test_routers_keep_the_gradient_of_experts_outside_their_top_k(norm):
    """The gradient in the router logits is that of w_j = p_j (/ sum of chosen p), p the softmax over all experts: an
    independent autograd through the whole MoE layer written out."""
    model, ids = moe(dtype=torch.float64, layers=1, norm=norm), tokens()
    tape = RoutingTape(model)
    block = model.model.layers[0].mlp
    seen = {}
    block.register_forward_pre_hook(lambda _, inputs: seen.update(x=inputs[0].detach()))
    with torch.no_grad(), tape.record(15) as own:
        model(ids)
    block.register_forward_hook(lambda _, __, out: seen.update(out=out) or out.retain_grad())
    foreign = other_experts(own.experts, 6)[:, 0]
    with tape.replay(foreign[:, None], ALL):
        model(ids).logits.square().sum().backward()

    x = seen["x"].flatten(0, 1)
    weight = block.gate.weight.detach().clone().requires_grad_()
    probabilities = (x @ weight.T).softmax(-1)
    chosen = probabilities.gather(-1, foreign)
    if norm:
        chosen = chosen / chosen.sum(-1, keepdim=True)
    up, down = block.experts.gate_up_proj.detach(), block.experts.down_proj.detach()
    gate, value = torch.einsum("th,tkmh->tkm", x, up[foreign]).chunk(2, dim=-1)
    outputs = torch.einsum("tkm,tkhm->tkh", nn.functional.silu(gate) * value, down[foreign])
    ((chosen[..., None] * outputs).sum(1) * seen["out"].grad.flatten(0, 1)).sum().backward()
    assert weight.grad.norm() > 1e-3
    assert (block.gate.weight.grad - weight.grad).norm() < 1e-5 * weight.grad.norm()  # the router's softmax is fp32


@pytest.mark.parametrize("layout", [{"mlp_only": (0,)}, {"layers": 4, "sparse_step": 2}])
def test_layers_are_absolute_ids_with_dense_layers_between(layout):
    """An engine that reports every decoder layer, dense ones included, is read by id, never by ordinal."""
    model, ids = moe(**layout), tokens()
    tape = RoutingTape(model)
    assert tape.layers == ((1, 2) if "mlp_only" in layout else (1, 3))
    with torch.no_grad():
        with tape.record(15) as own:
            free = model(ids).logits
        everything = torch.zeros(15, model.config.num_hidden_layers, 2, dtype=torch.uint8)
        everything[:, list(tape.layers)] = own.experts
        reported = Routes(everything, ALL, tuple(range(model.config.num_hidden_layers)), 6)
        with tape.replay(columns(reported, tape.layers), ALL):
            assert torch.equal(model(ids).logits, free)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.int32, torch.int64])
def test_any_integer_dtype_gives_the_same_choice(dtype):
    model, ids = moe(), tokens()
    tape = RoutingTape(model)
    with torch.no_grad(), tape.record(15) as own:
        free = model(ids).logits
    with torch.no_grad(), tape.replay(own.experts.to(dtype), ALL):
        assert torch.equal(model(ids).logits, free)


def test_activation_checkpointing_meets_the_same_choice():
    grads = []
    for recompute in (False, True):
        model, ids = moe(), tokens()
        tape = RoutingTape(model)
        if recompute:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
        visits = []
        for layer in model.model.layers:
            layer.mlp.gate.register_forward_hook(lambda *_, visits=visits: visits.append(1))
        with torch.no_grad(), tape.record(15) as own:
            model(ids)
        with tape.replay(other_experts(own.experts, 6), ALL):
            visits.clear()
            model(ids).logits.square().sum().backward()
        assert len(visits) == (6 if recompute else 3)  # recomputation really ran the routers again
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_recomputation_repeats_a_recorded_choice_even_if_the_router_would_now_choose_otherwise():
    model, ids = moe(layers=1), tokens()
    tape = RoutingTape(model)
    met = []
    model.model.layers[0].mlp.experts.register_forward_pre_hook(lambda _, inputs: met.append(inputs[1].clone()))
    with tape.record(15):
        model(ids)
        with torch.no_grad():
            model.model.layers[0].mlp.gate.weight.neg_()
        model(ids)
    assert torch.equal(met[0], met[1])


def test_nothing_is_left_after_a_pass_that_fails_midway():
    model, ids = moe(), tokens()
    tape = RoutingTape(model)
    with torch.no_grad():
        with tape.record(15) as own:
            free = model(ids).logits
        breaking = model.model.layers[1].register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(OSError("lost")))
        with pytest.raises(OSError, match="lost"), tape.replay(other_experts(own.experts, 6), ALL):
            model(ids)
        breaking.remove()
        assert torch.equal(model(ids).logits, free)
        with tape.record(15) as again:
            model(ids)
    assert torch.equal(own.experts, again.experts)


def test_a_forward_outside_a_pass_never_sees_the_tape():
    """A reference forward between two replayed ones (R13): all three as if alone."""
    model, ids = moe(), tokens()
    tape = RoutingTape(model)
    with torch.no_grad():
        with tape.record(15) as own:
            free = model(ids).logits
        foreign = other_experts(own.experts, 6)
        with tape.replay(foreign, ALL):
            first = model(ids).logits
        assert torch.equal(model(ids).logits, free)
        with tape.replay(foreign, ALL):
            assert torch.equal(model(ids).logits, first)


def test_passes_do_not_nest():
    tape = RoutingTape(moe())
    with pytest.raises(RuntimeError, match="already open"), tape.record(15), tape.record(15):
        pass


def test_a_pass_of_another_size_is_refused():
    model = moe()
    tape = RoutingTape(model)
    with pytest.raises(ValueError, match="opened for 14 tokens, met 15"), tape.record(14):
        model(tokens())
    with pytest.raises(ValueError, match=r"expected \[15, 3, 2\]"), tape.replay(torch.zeros(14, 3, 2), ALL):
        pass


@pytest.mark.parametrize("row", [[1, 1], [0, 6], [-1, 2]])
def test_a_row_that_is_no_route_is_refused(row):
    tape = RoutingTape(moe())
    experts = torch.tensor([0, 1]).expand(15, 3, 2).clone()
    experts[9, 1] = torch.tensor(row)
    with pytest.raises(ValueError, match="route of token 9"), tape.replay(experts, ALL):
        pass


def test_hooks_on_modules_that_never_run_are_noticed():
    """A model that rebuilds its layers after the tape was attached (R01) raises instead of routing live in silence."""
    model, ids = moe(), tokens()
    tape = RoutingTape(model)
    model.model.layers = moe(seed=1).model.layers
    with pytest.raises(RuntimeError, match=r"layers \[0, 1, 2\] never asked"), tape.record(15):
        model(ids)


def test_a_second_stack_of_routers_is_refused():
    model = moe()
    model.model.discarded = moe(seed=1).model.layers
    with pytest.raises(ValueError, match="found 6 Qwen3MoeTopKRouter modules, 3 of them"):
        RoutingTape(model)


def test_a_router_that_computes_otherwise_is_refused_at_once():
    model = moe()
    router = model.model.layers[2].mlp.gate
    router.register_forward_hook(lambda _, __, out: (out[0], out[1] * 2, out[2]))
    with pytest.raises(ValueError, match="computes its weights differently"):
        RoutingTape(model)


def test_bfloat16_replays_exactly():
    model, ids = moe(dtype=torch.bfloat16), tokens()
    tape = RoutingTape(model)
    with torch.no_grad():
        with tape.record(15) as own:
            free = model(ids).logits
        with tape.replay(own.experts, ALL):
            assert torch.equal(model(ids).logits, free)
