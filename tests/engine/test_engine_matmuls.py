"""Where the numerics act: which weights, which inputs, and the experts' arithmetic."""

import copy

import pytest
import torch
from teacher_forcing import dense_model, tiny_model
from torch import Tensor
from torch.nn.functional import linear, silu
from transformers import GptOssConfig, GptOssForCausalLM

from minirl.config import ConfigError, Numerics
from minirl.engine.matmuls import install, rounded_experts
from minirl.engine.numerics import ROUNDINGS, e4m3, exact
from minirl.engine.torch_engine import TorchEngine

IDS = torch.tensor([[3, 5, 7, 11, 13], [4, 4, 6, 9, 1]])


def rounded_names(num_layers: int, dense: bool) -> set[str]:
    attention = [f"self_attn.{kind}_proj.weight" for kind in "qkvo"]
    experts = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    mlp = [f"mlp.{kind}_proj.weight" for kind in ("gate", "up", "down")]
    return {f"model.layers.{i}.{name}" for i in range(num_layers) for name in attention + (mlp if dense else experts)}


@pytest.mark.parametrize("numerics", list(Numerics))
@pytest.mark.parametrize("build", [tiny_model, dense_model])
def test_exactly_the_product_weights_are_rounded(numerics: Numerics, build: object) -> None:
    source = build()
    engine = TorchEngine(build(), numerics=numerics, max_sequences=8, pad=0, device=torch.device("cpu"))
    engine.load_parameters(source.state_dict().items(), 0)
    names = rounded_names(3, dense=build is dense_model)
    assert engine.rounded == dict.fromkeys(names, -1)
    for name, values in engine.model.state_dict().items():
        full = source.state_dict()[name]
        assert values.equal(ROUNDINGS[numerics].weights(full) if name in names else full)
        assert values.equal(full) == (numerics in (Numerics.fp32, Numerics.router_noise) or name not in names)


@pytest.mark.parametrize("numerics", [Numerics.bf16, Numerics.fp8, Numerics.int4])
@pytest.mark.parametrize("build", [tiny_model, dense_model])
def test_inputs_of_linear_layers_are_rounded_by_token(numerics: Numerics, build: object) -> None:
    model, met = build(), {}
    install(model, numerics)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda module, inputs, name=name: met.update({name: inputs[0]}))
    model(IDS)
    rounding = ROUNDINGS[numerics].activations
    assert len(met) == 1 + 3 * (4 if build is tiny_model else 7)
    for name, inputs in met.items():
        torch.testing.assert_close(rounding(inputs), inputs, rtol=0 if name != "lm_head" else 1, atol=1e-6)
        assert (inputs - rounding(inputs)).abs().max() > 1e-4 or name != "lm_head"


def test_what_chooses_experts_sees_unrounded_tokens() -> None:
    model = tiny_model(num_layers=1)
    rounded = copy.deepcopy(model)
    install(rounded, Numerics.fp8)
    scores = []
    for each in (model, rounded):
        hidden = torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(0))
        each.model.layers[0].mlp.gate.register_forward_hook(lambda module, inputs, out: scores.append(out[0]))
        each.model.layers[0].mlp(hidden)
    assert scores[0].equal(scores[1])


def by_hand(experts: torch.nn.Module, hidden: Tensor, chosen: Tensor, gates: Tensor, q: object) -> Tensor:
    """One token and one expert at a time."""
    out = torch.zeros_like(hidden)
    for t in range(len(hidden)):
        for expert, gate in zip(chosen[t].tolist(), gates[t], strict=True):
            first, second = linear(q(hidden[t]), experts.gate_up_proj[expert]).chunk(2)
            out[t] += gate * linear(q(silu(first) * second), experts.down_proj[expert])
    return out


@pytest.mark.parametrize(
    "rounding", [exact, lambda x: (x / x.abs().max() * 448).to(torch.float8_e4m3fn).float() / 448 * x.abs().max()]
)
@torch.no_grad()
def test_experts_one_by_one(rounding: object) -> None:
    experts = tiny_model().model.layers[0].mlp.experts
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(9, 32, generator=generator)
    chosen = torch.stack([torch.randperm(15, generator=generator)[:4] for _ in range(9)])  # expert 15 gets no token
    gates = torch.rand(9, 4, generator=generator)
    expected = by_hand(experts, hidden, chosen, gates, rounding)
    ours = rounded_experts(experts, hidden, chosen, gates, rounding=exact if rounding is exact else e4m3)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    if rounding is not exact:  # rounding would be seen
        assert (ours - rounded_experts(experts, hidden, chosen, gates, rounding=exact)).abs().max() > 1e-3


@pytest.mark.parametrize("numerics", list(Numerics))
@torch.no_grad()
def test_the_models_own_experts_round_their_inputs(numerics: Numerics) -> None:
    model, rounding = tiny_model(), ROUNDINGS[numerics].activations
    install(model, numerics)
    experts = model.model.layers[1].mlp.experts
    hidden = torch.randn(9, 32, generator=torch.Generator().manual_seed(0))
    chosen, gates = torch.tensor([[0, 5, 2, 9]] * 9), torch.full((9, 4), 0.25)
    found = experts(hidden, chosen, gates)
    torch.testing.assert_close(found, by_hand(experts, hidden, chosen, gates, rounding), rtol=1e-5, atol=1e-5)
    unrounded = by_hand(experts, hidden, chosen, gates, exact)
    assert ((found - unrounded).abs().max() > 1e-4) == (rounding is not exact)


@torch.no_grad()
def test_installing_fp32_changes_nothing_but_rounding_errors() -> None:
    model = tiny_model()
    expected = model(IDS).logits
    assert install(model, Numerics.fp32).keys() == rounded_names(3, dense=False)
    torch.testing.assert_close(model(IDS).logits, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_the_trainers_model_keeps_its_experts() -> None:
    trainer, engines = tiny_model(), tiny_model()
    expected = trainer(IDS).logits
    install(engines, Numerics.fp8)
    assert (engines(IDS).logits - expected).abs().max() > 1e-3
    assert trainer(IDS).logits.equal(expected)


def gpt_oss() -> GptOssForCausalLM:
    config = GptOssConfig(
        vocab_size=20, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=8,
        intermediate_size=16, num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    model = GptOssForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    return model


@pytest.mark.parametrize("numerics", list(Numerics))
@torch.no_grad()
def test_transposed_experts_with_biases_one_by_one(numerics: Numerics) -> None:
    """gpt-oss: [experts, in, out], interleaved gate and up, clamped, biases; the weights' scales are per output."""
    source, model = gpt_oss(), gpt_oss()
    engine = TorchEngine(model, numerics=numerics, max_sequences=8, pad=0, device=torch.device("cpu"))
    engine.load_parameters(source.state_dict().items(), 0)
    q, given = ROUNDINGS[numerics], source.model.layers[0].mlp.experts
    held = model.model.layers[0].mlp.experts
    for name in ("gate_up_proj", "down_proj"):
        expected = q.weights(getattr(given, name).transpose(1, 2).contiguous()).transpose(1, 2)
        assert torch.equal(getattr(held, name), expected)
        assert torch.equal(getattr(held, f"{name}_bias"), getattr(given, f"{name}_bias"))
    hidden = torch.randn(9, 32, generator=torch.Generator().manual_seed(0))
    chosen, gates = torch.tensor([[0, 2], [2, 0], [3, 2]] * 3), torch.rand(9, 2)  # expert 1 gets no token
    out = torch.zeros(9, 32)
    for t in range(9):
        for expert, gate in zip(chosen[t].tolist(), gates[t], strict=True):
            both = q.activations(hidden[t]) @ held.gate_up_proj[expert] + held.gate_up_proj_bias[expert]
            first, second = both[::2].clamp(max=7.0), both[1::2].clamp(-7.0, 7.0)
            inner = (second + 1) * first * torch.sigmoid(1.702 * first)
            out[t] += gate * (q.activations(inner) @ held.down_proj[expert] + held.down_proj_bias[expert])
    torch.testing.assert_close(held(hidden, chosen, gates), out, rtol=1e-5, atol=1e-4)


def test_experts_laid_out_otherwise_are_refused() -> None:
    model = tiny_model(num_layers=1)
    model.model.layers[0].mlp.experts.register_parameter("bank", torch.nn.Parameter(torch.zeros(2, 4, 4)))
    with pytest.raises(ConfigError, match=r"Qwen3MoeForCausalLM .*bank"):
        install(model, Numerics.fp8)


def test_sizes_that_the_product_cannot_take_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.moe_intermediate_size=10"):
        install(tiny_model(moe_intermediate_size=10), Numerics.fp8)
