"""Which MoE families can be trained: those whose routers we know exactly. Others are refused, never guessed."""

from __future__ import annotations

from typing import Any

from minirl.config import ConfigError
from minirl.models.families import (
    deepseek_v3,
    glm4_moe,
    gpt_oss,
    mixtral,
    olmoe,
    qwen2_moe,
    qwen3_5_moe,
    qwen3_moe,
    qwen3_next,
)
from minirl.models.families.router import RouterFamily
from minirl.validate import experts_in

MODULES = (deepseek_v3, glm4_moe, gpt_oss, mixtral, olmoe, qwen2_moe, qwen3_5_moe, qwen3_moe, qwen3_next)
FAMILIES: dict[str, RouterFamily] = {module.FAMILY.model_type: module.FAMILY for module in MODULES}


def is_mixture(config: dict[str, Any]) -> bool:
    """Whether a config (as a dictionary) describes routed experts, itself or in a part (`text_config`, ...)."""
    return experts_in(config) > 0


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
            f"to add it, write minirl/models/families/{name}.py with the class name of its routers and the mixing "
            "weights they give to any k experts: docs/routing_replay.md, 'Add a family'"
        )
    return FAMILIES[name]
