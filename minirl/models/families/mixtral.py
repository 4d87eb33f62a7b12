"""Mixtral: softmax over all experts, top-k, always renormalised; weights in fp32 whatever the model computes in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minirl.models.families.gates import log_softmax
from minirl.models.families.router import RouterFamily


def renormalised_gate(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    """w_j = p_j / sum_{i chosen} p_i, p = softmax(logits) over all experts. [T, E], [T, k] -> [T, k] fp32."""
    chosen = torch.softmax(logits.float(), dim=-1).gather(-1, experts)
    return chosen / chosen.sum(dim=-1, keepdim=True)


FAMILY = RouterFamily(
    model_type="mixtral", router="MixtralTopKRouter", gate=renormalised_gate, log_score=log_softmax, attention="sdpa"
)
