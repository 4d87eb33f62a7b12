"""gpt-oss: top-k of the logits, softmax over those k alone. Attention has sinks, which only the plain implementation
computes on every device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minirl.models.families.gates import log_softmax
from minirl.models.families.router import RouterFamily


def chosen_softmax_gate(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    """w = softmax(logits of the chosen experts). [T, E], [T, k] -> [T, k] in the logits' dtype."""
    return torch.softmax(logits.gather(-1, experts), dim=-1, dtype=logits.dtype)


FAMILY = RouterFamily(
    model_type="gpt_oss", router="GptOssTopKRouter", gate=chosen_softmax_gate, log_score=log_softmax, attention="eager"
)
