"""Qwen3.5-MoE, its language model: as Qwen3-Next, with mixing weights that always sum to 1."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minirl.models.families.gates import log_softmax
from minirl.models.families.router import RouterFamily


def renormalised_gate(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    """w_j = p_j / sum_{i chosen} p_i, p = softmax(logits) over all experts in fp32. [T, E], [T, k] -> [T, k] in the
    logits' dtype."""
    chosen = torch.softmax(logits, dim=-1, dtype=torch.float32).gather(-1, experts)
    return (chosen / chosen.sum(dim=-1, keepdim=True)).to(logits.dtype)


FAMILY = RouterFamily(
    model_type="qwen3_5_moe_text",
    router="Qwen3_5MoeTopKRouter",
    gate=renormalised_gate,
    log_score=log_softmax,
    attention="sdpa",
)
