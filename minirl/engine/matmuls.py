"""Where an engine's numerics act in a stock transformers model: the attention, MLP and expert products.

Router gates, norms, embeddings and the output head stay in full precision, as quantised serving leaves them; noise in
the routers acts there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from minirl.config import ConfigError, Numerics
from minirl.engine.numerics import ROUNDINGS, Rounding, exact

STACKED = ("gate_up_proj", "down_proj")
UNTOUCHED = frozenset({"gate", "router", "shared_expert_gate"})  # linear layers that choose or weigh experts


def install(model: PreTrainedModel, numerics: Numerics) -> dict[str, int]:
    """Rounds the inputs of the model's matrix products from now on; the weights that are to be rounded, by name, with
    their input axis."""
    rounding = ROUNDINGS[numerics].activations
    round_inputs(linear_layers(model).values(), rounding)
    if expert_layers(model):
        name = f"minirl_{numerics}"
        ALL_EXPERTS_FUNCTIONS.register(name, partial(rounded_experts, rounding=rounding))
        model.set_experts_implementation(name)
    return quantised_weights(model)


def round_inputs(layers: Iterable[nn.Module], rounding: Rounding) -> None:
    """Each layer meets Q(x) for x from now on."""
    if rounding is exact:
        return
    for layer in layers:
        layer.register_forward_pre_hook(partial(rounded_input, rounding=rounding))


def quantised_weights(model: PreTrainedModel) -> dict[str, int]:
    """The weights that a number format applies to, of attention, dense MLPs and experts: name -> axis of the inputs,
    along which a scale belongs to one output channel."""
    axes = {f"{name}.weight": -1 for name in linear_layers(model)}
    for name, module in expert_layers(model).items():
        axes |= {f"{name}.{weight}": -2 if module.is_transposed else -1 for weight in STACKED}
    return axes


def matrices(model: PreTrainedModel) -> frozenset[str]:
    """The weights that an engine holds in the dtype in which it computes: of linear layers, experts, embeddings and
    head, nearly all of a model. Routers, norms and biases are left out: an engine may hold some of them in fp32."""
    plain = {name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Embedding)}
    stacked = {name for name, weight in model.named_parameters() if name.rpartition(".")[2] in STACKED}
    return frozenset(f"{name}.weight" for name in plain if name.rpartition(".")[2] not in UNTOUCHED) | stacked


def rounded_weight(weight: Tensor, rounding: Rounding, axis: int) -> Tensor:
    """The weight rounded by output channel, wherever its inputs stand."""
    return rounding(weight.movedim(axis, -1)).movedim(-1, axis)


def rounded_input(module: nn.Module, inputs: tuple[Tensor, ...], *, rounding: Rounding) -> tuple[Tensor, ...]:
    """The forward pre-hook of a layer: Q(x)."""
    return (rounding(inputs[0]),)


def linear_layers(model: PreTrainedModel) -> dict[str, nn.Linear]:
    """The linear layers of attention and dense MLPs by name."""
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head and name.rpartition(".")[2] not in UNTOUCHED
    }


def expert_layers(model: PreTrainedModel) -> dict[str, Any]:
    """The modules of stacked experts by name: gate_up_proj and down_proj, [experts, out, in] or transposed, with biases
    or without. Refuses other layouts."""
    found = {}
    for name, module in model.named_modules():
        stacked = {key for key, weight in module.named_parameters(recurse=False) if weight.ndim == 3}
        if not stacked or isinstance(module, nn.Conv1d):  # the short convolution of linear attention
            continue
        if stacked != set(STACKED):
            raise ConfigError(
                f"the experts of {type(model).__name__} ({', '.join(sorted(stacked))} in {name}) "
                f"are not {' and '.join(STACKED)}, so no numerics apply to them; choose another model"
            )
        hidden, inner = module.down_proj.shape[-2:] if not module.is_transposed else module.down_proj.shape[:0:-1]
        if hidden % 4 or inner % 4:
            raise ConfigError(
                f"model.hidden_size={hidden} and model.moe_intermediate_size={inner} "
                "must be multiples of 4 for engine=torch"
            )
        found[name] = module
    return found


def rounded_experts(experts: Any, hidden: Tensor, chosen: Tensor, gates: Tensor, *, rounding: Rounding) -> Tensor:
    """sum_j gate_tj * down_j(Q(act(up_j Q(x_t)))) over the chosen experts j of token t; Q rounds by token. Biases,
    where the family has them, are added unrounded.

    hidden [T, h], chosen and gates [T, k] -> [T, h]. A token's terms are added in the order of its own choice, so the
    sum does not depend on the other tokens.
    """
    num_experts, k = experts.gate_up_proj.shape[0], chosen.shape[1]
    order = chosen.flatten().argsort()
    ends = torch.bincount(chosen.flatten(), minlength=num_experts).cumsum(0, dtype=torch.int32)
    inputs, owners = rounding(hidden)[order // k], chosen.flatten()[order]
    inner = _products(inputs, experts.gate_up_proj, ends, transposed=experts.is_transposed)
    inner = experts._apply_gate(inner + experts.gate_up_proj_bias[owners] if experts.has_bias else inner)
    outputs = _products(rounding(inner), experts.down_proj, ends, transposed=experts.is_transposed)
    outputs = outputs + experts.down_proj_bias[owners] if experts.has_bias else outputs
    terms = torch.empty_like(outputs).index_copy_(0, order, outputs * gates.flatten()[order, None])
    return terms.view(*chosen.shape, -1).sum(1)


def _products(inputs: Tensor, weights: Tensor, ends: Tensor, *, transposed: bool) -> Tensor:
    """Row r through the weight [out, in] (transposed: [in, out]) whose segment of rows it is in; segment e stops at
    ends[e]."""
    return nn.functional.grouped_mm(inputs, weights if transposed else weights.transpose(1, 2), offs=ends)
