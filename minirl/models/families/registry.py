"""Which MoE families can be trained: those whose routers we know exactly. Others are refused, never guessed."""

from __future__ import annotations

from typing import Any

from minirl.config import ConfigError
from minirl.models.families import deepseek_v3, glm4_moe, gpt_oss, mixtral, olmoe, qwen2_moe, qwen3_moe
from minirl.models.families.router import RouterFamily

MODULES = (deepseek_v3, glm4_moe, gpt_oss, mixtral, olmoe, qwen2_moe, qwen3_moe)
FAMILIES: dict[str, RouterFamily] = {module.FAMILY.model_type: module.FAMILY for module in MODULES}

# the names under which configs of MoE models count their experts
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def is_mixture(config: dict[str, Any]) -> bool:
    """Whether a config (as a dictionary) describes routed experts."""
    return any(isinstance(config.get(name), int) and config[name] > 0 for name in EXPERT_COUNTS)


def router_family(config: dict[str, Any], key: str) -> RouterFamily | None:
    """The family of a model's config, None for a dense model; refuses an MoE family without a table row.

    `key` is the configuration key that chose the model, for the message.
    """
    if not is_mixture(config):
        return None
    name = config["model_type"]
    if name not in FAMILIES:
        raise ConfigError(
            f"{key}: Mixture-of-Experts family {name!r} is not supported (supported: {', '.join(sorted(FAMILIES))}); "
            "its routers are unknown to the routing tape"
        )
    return FAMILIES[name]
