"""Qwen3-MoE: softmax over all experts, top-k, renormalised if the config says so. Some layers may be dense."""

from minirl.models.families.gates import log_softmax, softmax_gate
from minirl.models.families.router import RouterFamily

FAMILY = RouterFamily(
    model_type="qwen3_moe", router="Qwen3MoeTopKRouter", gate=softmax_gate, log_score=log_softmax, attention="sdpa"
)
