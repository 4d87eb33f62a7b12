"""The experts implementation that models are built with, registered with transformers under a name of its own.

On a CPU tokens are sorted by expert and each expert is one matrix product: the fastest of the stock choices takes 90 ms
where this takes 77 (forward and backward of the tiny MoE on 128 x 20 tokens). An accelerator has a grouped kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

IMPLEMENTATION = "minirl_experts"


def sorted_loop(experts: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """y_t = sum_j weights_tj * down_j(act(gate_j x_t) * up_j x_t) over the chosen experts j of token t.

    experts: a module of stacked weights, gate_up_proj [E, 2m, h] and down_proj [E, h, m], without biases.
    hidden [T, h], chosen [T, k], weights [T, k] -> [T, h]. Each token's k terms are added in the order of its own
    choice, so the sum does not depend on the other tokens. `unbind` keeps the backward of the stacked weights one
    copy instead of one full-size addition per expert.
    """
    k, flat = chosen.shape[-1], chosen.reshape(-1)
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=experts.gate_up_proj.shape[0]).tolist()
    parts = hidden.index_select(0, order // k).split(counts)
    layers = zip(parts, experts.gate_up_proj.unbind(), experts.down_proj.unbind(), strict=True)
    mixed = torch.cat([linear(experts._apply_gate(linear(part, up)), down) for part, up, down in layers if len(part)])
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    mixed = mixed.index_select(0, place).view(*chosen.shape, -1) * weights.unsqueeze(-1)
    return mixed.sum(dim=1).to(hidden.dtype)


def experts_forward(experts: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """The same function by the method that suits the tensors' device and the layout of the experts' weights."""
    plain = not (experts.has_bias or experts.is_transposed)
    forward = sorted_loop if plain and hidden.device.type == "cpu" else grouped_mm_experts_forward
    return forward(experts, hidden, chosen, weights)


ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, experts_forward)
