"""Engines by name."""

from __future__ import annotations

from transformers import PreTrainedModel

from minirl.config import Config, ConfigError, EngineConfig
from minirl.engine.torch_engine import TorchEngine
from minirl.interfaces import Engine
from minirl.world import World


def build(cfg: Config, model: PreTrainedModel, *, pad: int, world: World) -> Engine:
    """The engine of `cfg.engine`. `model` becomes the engine's own and must not be the trainer's instance."""
    if cfg.engine.name == "torch":
        return TorchEngine(
            model,
            numerics=cfg.engine.numerics,
            max_sequences=cfg.engine.max_sequences,
            pad=pad,
            device=world.device,
        )
    if cfg.engine.name == "vllm":
        from minirl.engine.vllm_engine import VllmEngine

        return VllmEngine(model, engine=cfg.engine, world=world)
    raise ConfigError(f"engine.name={cfg.engine.name}: no such engine; expected torch or vllm")


def require(engine: EngineConfig) -> None:
    """Raises ConfigError where this environment cannot serve the engine, before a model is read."""
    if engine.name == "vllm":
        from minirl.engine import vllm_engine

        vllm_engine.require(engine)
