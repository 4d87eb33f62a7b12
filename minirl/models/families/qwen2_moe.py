"""Qwen2-MoE: as Qwen3-MoE; its shared expert has a gate of its own, outside the router."""

from minirl.models.families.gates import log_softmax, softmax_gate
from minirl.models.families.router import RouterFamily

FAMILY = RouterFamily(
    model_type="qwen2_moe", router="Qwen2MoeTopKRouter", gate=softmax_gate, log_score=log_softmax, attention="sdpa"
)
