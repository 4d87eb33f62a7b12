"""Qwen3-MoE: softmax over all experts, top-k, renormalised if the config says so."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minirl.models.families.router import RouterFamily


def softmax_gate(router: nn.Module, logits: Tensor, experts: Tensor) -> Tensor:
    """w_j = p_j / sum_{i chosen} p_i, p = softmax(logits) over *all* experts in fp32; without the sum if
    `norm_topk_prob` is off. logits [T, E], experts [T, k] -> [T, k] in the logits' dtype."""
    chosen = torch.softmax(logits, dim=-1, dtype=torch.float32).gather(-1, experts)
    if router.norm_topk_prob:
        chosen = chosen / chosen.sum(dim=-1, keepdim=True)
    return chosen.to(logits.dtype)


FAMILY = RouterFamily(model_type="qwen3_moe", router="Qwen3MoeTopKRouter", gate=softmax_gate)
