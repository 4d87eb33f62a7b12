"""Engines by name."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from minirl.config import Config, ConfigError
from minirl.engine.torch_engine import TorchEngine
from minirl.interfaces import Engine


def build(cfg: Config, model: PreTrainedModel, *, pad: int, device: torch.device) -> Engine:
    """The engine of `cfg.engine`. `model` becomes the engine's own and must not be the trainer's instance."""
    if cfg.engine.name == "torch":
        return TorchEngine(
            model,
            numerics=cfg.engine.numerics,
            max_sequences=cfg.engine.max_sequences,
            pad=pad,
            device=device,
        )
    if cfg.engine.name == "vllm":
        raise ConfigError("engine=vllm is not built yet: this version samples with engine=torch only")
    raise ConfigError(f"engine.name={cfg.engine.name}: no such engine; expected torch")
