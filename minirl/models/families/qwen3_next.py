"""Qwen3-Next: the routers of Qwen3-MoE in every decoder layer, linear and full attention alike; a shared expert with a
gate of its own, outside the router. Some layers may be dense."""

from minirl.models.families.gates import log_softmax, softmax_gate
from minirl.models.families.router import RouterFamily

FAMILY = RouterFamily(
    model_type="qwen3_next", router="Qwen3NextTopKRouter", gate=softmax_gate, log_score=log_softmax, attention="sdpa"
)
