"""OLMoE: softmax over all experts, top-k, not renormalised by default."""

from minirl.models.families.gates import log_softmax, softmax_gate
from minirl.models.families.router import RouterFamily

FAMILY = RouterFamily(
    model_type="olmoe", router="OlmoeTopKRouter", gate=softmax_gate, log_score=log_softmax, attention="sdpa"
)
