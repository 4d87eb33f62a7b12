"""GLM-4 MoE: the routers of DeepSeek-V3."""

from minirl.models.families.gates import log_sigmoid, sigmoid_gate
from minirl.models.families.router import RouterFamily

FAMILY = RouterFamily(
    model_type="glm4_moe", router="Glm4MoeTopkRouter", gate=sigmoid_gate, log_score=log_sigmoid, attention="sdpa"
)
