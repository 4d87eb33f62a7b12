"""A causal LM of a stock transformers class: a tiny random one from sizes, or a folder in Hugging Face format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.utils.logging import disable_progress_bar

from minirl.config import ConfigError, ModelConfig
from minirl.hub import folder_of, is_hub_id
from minirl.models.experts import IMPLEMENTATION
from minirl.models.families.registry import is_mixture, router_family
from minirl.models.outline import materialise, without_weights
from minirl.models.shards import fill
from minirl.models.stored import weight_files
from minirl.streams import stream_key
from minirl.validate import experts_in

MAX_POSITIONS = 32768  # of a tiny model: what Qwen3 has; rotary positions cost no weights


def build(cfg: ModelConfig, *, vocab_size: int, checkpoint: Path | None) -> PreTrainedModel:
    """The model of `cfg` in fp32, in evaluation mode; with the weights of `checkpoint` where one is given.

    Its own weights are those of `cfg.path`, or random ones that depend on `cfg.init_seed` alone. The global random
    state is left as it was. Raises ConfigError before any weight is read if the model cannot be trained.
    """
    disable_progress_bar()
    config, source = design(cfg, vocab_size, checkpoint)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_key(cfg.init_seed, "init") % 2**63)
        model = initialised(config) if source is None else loaded(config, source)
    return model.eval()


def outline(cfg: ModelConfig, *, vocab_size: int, checkpoint: Path | None) -> tuple[PreTrainedModel, Path | None]:
    """The same model without its weights, and the folder that has them: parameters are on the meta device, for ranks
    that will read their own shards and no others (`shards.fill`). Where no folder has them, they are made here."""
    disable_progress_bar()
    config, source = design(cfg, vocab_size, checkpoint)
    if source is None:
        return build(cfg, vocab_size=vocab_size, checkpoint=None), None
    weight_files(source)
    return without_weights(lambda: initialised(config)).eval(), source


def design(cfg: ModelConfig, vocab_size: int, checkpoint: Path | None) -> tuple[PreTrainedConfig, Path | None]:
    """The config of the model and the folder of its weights, None where they are drawn at random."""
    source = None if cfg.path is None else folder_of(cfg.path, "model.path")
    if source is None:
        config = tiny_config(cfg, vocab_size)
    else:
        config = folder_config(source, "model.path")
        refuse_other_experts(cfg, config)
    if checkpoint is not None:
        found, source = folder_config(checkpoint, "coldstart.checkpoint"), checkpoint
        refuse_other_architecture(expected=config, found=found, checkpoint=checkpoint)
        config = found
    if config.vocab_size < vocab_size:
        raise ConfigError(f"{cfg.path}: the model has {config.vocab_size} tokens, the task needs {vocab_size}")
    return config, source


def tiny_config(cfg: ModelConfig, vocab_size: int) -> PreTrainedConfig:
    """The transformers config of a tiny Qwen3-MoE or Qwen3: untied head, no dropout, mixing weights that sum to 1."""
    sizes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": cfg.hidden_size,
        "num_hidden_layers": cfg.num_layers,
        "num_attention_heads": cfg.num_heads,
        "num_key_value_heads": cfg.num_kv_heads,
        "head_dim": cfg.head_dim,
        "intermediate_size": cfg.intermediate_size,
        "initializer_range": cfg.initializer_range,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": False,
    }
    if cfg.family == "qwen3":
        return Qwen3Config(**sizes)
    if cfg.family == "qwen3_moe":
        return Qwen3MoeConfig(
            **sizes,
            num_experts=cfg.num_experts,
            num_experts_per_tok=cfg.num_experts_per_token,
            moe_intermediate_size=cfg.moe_intermediate_size,
            norm_topk_prob=True,
        )
    raise ConfigError(f"model.family={cfg.family}: a tiny model is qwen3 or qwen3_moe; others are loaded by model.path")


def folder_config(folder: Path, key: str) -> PreTrainedConfig:
    """The config of a local folder, with every dropout and router jitter off: log-probabilities of the three policies
    are of the same deterministic function."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{key}={folder}: no config.json there; expected a folder in Hugging Face format")
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    if is_mixture(config.to_dict()):
        config = config.get_text_config(decoder=True)  # of a model that also sees, its language model
    settings = config.to_dict()
    router_family(settings, f"{key}={folder}")
    for name, value in settings.items():
        if ("dropout" in name or "jitter" in name) and isinstance(value, float):
            setattr(config, name, 0.0)
    return config


def refuse_other_experts(cfg: ModelConfig, config: PreTrainedConfig) -> None:
    """Before a hub id was fetched, model.num_experts was believed; what was checked with it must have been true."""
    found = experts_in(config.to_dict())
    if cfg.path is not None and is_hub_id(cfg.path) and found != cfg.num_experts:
        raise ConfigError(f"model.num_experts={cfg.num_experts}: {cfg.path} has {found}; set model.num_experts={found}")


def refuse_other_architecture(*, expected: PreTrainedConfig, found: PreTrainedConfig, checkpoint: Path) -> None:
    """A checkpoint replaces weights, never the model."""
    wanted, present = expected.to_dict(), found.to_dict()
    sizes = [name for name in wanted if name.startswith("num_") or name.endswith("_size")]
    for name in ["model_type", *sizes, "head_dim"]:
        if name in wanted and wanted[name] != present.get(name):
            raise ConfigError(
                f"coldstart.checkpoint={checkpoint}: {name} is {present.get(name)}, model= has {wanted[name]}; "
                "choose the model the checkpoint was made with"
            )


def implementations(config: PreTrainedConfig) -> dict[str, Any]:
    """fp32; for MoE families their attention and our experts, for dense models scaled_dot_product_attention."""
    family = router_family(config.to_dict(), "model")
    if family is None:
        return {"dtype": torch.float32, "attn_implementation": "sdpa"}
    chosen = {"attn_implementation": family.attention, "experts_implementation": IMPLEMENTATION}
    return {"dtype": torch.float32, **chosen}


def initialised(config: PreTrainedConfig) -> PreTrainedModel:
    """Random weights from the current random state."""
    return AutoModelForCausalLM.from_config(config, trust_remote_code=False, **implementations(config))


def loaded(config: PreTrainedConfig, folder: Path) -> PreTrainedModel:
    """The whole model on the CPU, with the folder's weights, from safetensors only."""
    model = without_weights(lambda: initialised(config))
    materialise(model, torch.device("cpu"))
    fill(model, folder)
    return model
