"""GLM-4 MoE: the routers of DeepSeek-V3."""

from minirl.models.families.gates import sigmoid_gate
from minirl.models.families.router import RouterFamily

FAMILY = RouterFamily(model_type="glm4_moe", router="Glm4MoeTopkRouter", gate=sigmoid_gate, attention="sdpa")
