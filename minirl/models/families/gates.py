"""Score functions that several families share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def log_softmax(logits: Tensor) -> Tensor:
    """log s_j, s = softmax(logits) over all experts. [T, E] -> [T, E] fp32"""
    return torch.log_softmax(logits, dim=-1, dtype=torch.float32)


def log_sigmoid(logits: Tensor) -> Tensor:
    """log s_j, s = sigmoid(logits). [T, E] -> [T, E] fp32"""
    return torch.nn.functional.logsigmoid(logits.float())


def softmax_gate(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    """w_j = p_j / sum_{i chosen} p_i, p = softmax(logits) over *all* experts in fp32; without the sum if
    `norm_topk_prob` is off. logits [T, E], experts [T, k] -> [T, k] in the logits' dtype."""
    chosen = torch.softmax(logits, dim=-1, dtype=torch.float32).gather(-1, experts)
    if router.norm_topk_prob:
        chosen = chosen / chosen.sum(dim=-1, keepdim=True)
    return chosen.to(logits.dtype)


def sigmoid_gate(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    """w_j = c s_j / (sum_{i chosen} s_i + 1e-20), s = sigmoid(logits), c = `routed_scaling_factor`; without the sum if
    `norm_topk_prob` is off. The bias and the groups by which such routers choose have no part in the weights."""
    chosen = logits.sigmoid().gather(-1, experts)
    if router.norm_topk_prob:
        chosen = chosen / (chosen.sum(dim=-1, keepdim=True) + 1e-20)
    return chosen * router.routed_scaling_factor
