"""Replay against the published formulas of every family: logprobs, choice and the gradient of the routers, float64."""

from copy import deepcopy

import pytest
import torch
from moe_families import EXPERTS, LAYOUTS, VOCAB, family_model, moe_layers, other_experts, sequences
from published_moe import PUBLISHED

from minirl.models.families.registry import FAMILIES
from minirl.models.tape import RoutingTape

IDS = sequences()
ALL = torch.ones(IDS.numel(), dtype=torch.bool)


def precision(layout):
    """(dtype, tolerance). transformers computes softmax scores, DeepSeek's logits and linear attention in fp32 whatever
    the model's dtype; the grouped kernel that gpt-oss's experts run on has no float64."""
    return (torch.float32, 3e-5) if layout == "gpt_oss" else (torch.float64, 1e-5)


def reference(model, layout, routes):
    """A copy of the model whose MoE layers are the published formulas with `routes` [T, L, k] instead of a router;
    attention and norms are the stock ones. Its routers have no say: their modules are never called."""
    copy, layers = deepcopy(model), moe_layers(layout)
    _, published = PUBLISHED[model.config.model_type]
    for column, number in enumerate(layers):
        block = copy.model.layers[number].mlp
        tuple_expected = model.config.model_type == "gpt_oss"

        def forward(hidden, block=block, column=column, tuple_expected=tuple_expected):
            weights = dict(block.named_parameters()) | dict(block.named_buffers())
            out = published(model.config, weights, hidden.flatten(0, -2), routes[:, column]).view_as(hidden)
            return (out, None) if tuple_expected else out

        block.forward = forward
    return copy


def scored(model, seed=3):
    """Logprobs [T, V] and the gradient of a random combination of them in every parameter of the routers."""
    logprobs = model(IDS, use_cache=False).logits.log_softmax(-1).flatten(0, 1)
    weighing = torch.randn(logprobs.shape, generator=torch.Generator().manual_seed(seed), dtype=logprobs.dtype)
    names = {name: p for name, p in model.named_parameters() if ".gate." in name or ".router." in name}
    gradients = torch.autograd.grad((logprobs * weighing).sum(), [*names.values()])
    return logprobs.detach(), dict(zip(names, gradients, strict=True))


def perturbed(model, scale=0.5):
    """Other routers: what the trainer has some updates after the routes were recorded."""
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".gate." in name or ".router." in name:
                parameter += scale * torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype)


def same_sets(left, right):
    return (left.long().sort(-1).values == right.long().sort(-1).values).all(-1)


def test_every_family_has_a_reference():
    assert PUBLISHED.keys() == FAMILIES.keys() == {family for family, _ in LAYOUTS.values()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_recorded_is_the_published_choice(layout):
    model = family_model(layout, precision(layout)[0])
    tape, choose, inputs = RoutingTape(model), PUBLISHED[model.config.model_type][0], {}
    assert tape.layers == moe_layers(layout)
    for number in tape.layers:
        model.model.layers[number].mlp.register_forward_pre_hook(
            lambda _, args, number=number: inputs.update({number: args[0].detach().flatten(0, -2)})
        )
    with torch.no_grad(), tape.record(IDS.numel()) as own:
        model(IDS, use_cache=False)
    for column, number in enumerate(tape.layers):
        block = model.model.layers[number].mlp
        weights = dict(block.named_parameters()) | dict(block.named_buffers())
        with torch.no_grad():
            expected = choose(model.config, weights, inputs[number])
        assert same_sets(own.experts[:, column], expected).all(), number


@pytest.mark.parametrize("source", ["recorded before the routers moved", "never chosen"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_perturbed_routers_under_replay_are_the_published_formula(layout, source):
    dtype, tolerance = precision(layout)
    model = family_model(layout, dtype)
    tape = RoutingTape(model)
    with torch.no_grad(), tape.record(IDS.numel()) as before:
        model(IDS, use_cache=False)
    perturbed(model)
    with torch.no_grad(), tape.record(IDS.numel()) as after:
        model(IDS, use_cache=False)
    routes = before.experts if source.startswith("recorded") else other_experts(after.experts, EXPERTS)
    replaced = ~same_sets(routes, after.experts)
    assert replaced.float().mean() > (0.2 if source.startswith("recorded") else 0.99)

    with tape.replay(routes, ALL) as current:
        logprobs, gradients = scored(model)
    assert current.experts.shape == routes.shape
    expected, expected_gradients = scored(reference(model, layout, routes.long()))
    assert logprobs.shape == (IDS.numel(), VOCAB)
    assert (logprobs - expected).abs().max() < tolerance
    for name, gradient in gradients.items():
        assert gradient.norm() > 1e-4, name  # routers learn from experts outside their own top-k, too
        assert (gradient - expected_gradients[name]).norm() < 10 * tolerance * gradient.norm(), name
