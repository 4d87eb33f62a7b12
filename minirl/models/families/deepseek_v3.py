"""DeepSeek-V3: sigmoid scores; chosen within groups by score plus a correction bias (a buffer that is not trained and
belongs to the parameters an engine must receive). The first layers are dense."""

from minirl.models.families.gates import log_sigmoid, sigmoid_gate
from minirl.models.families.router import RouterFamily

FAMILY = RouterFamily(
    model_type="deepseek_v3", router="DeepseekV3TopkRouter", gate=sigmoid_gate, log_score=log_sigmoid, attention="sdpa"
)
