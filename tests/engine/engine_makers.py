"""How the engines of the contract are made, each from a model's architecture: a new one joins ENGINES."""

from typing import Protocol

import torch
from teacher_forcing import vllm_config
from transformers import PreTrainedModel

from minirl.config import Numerics
from minirl.engine.parameters import NOTHING_LOADED
from minirl.engine.torch_engine import TorchEngine
from minirl.engine.vllm_engine import VllmEngine
from minirl.interfaces import Engine
from minirl.world import World


class MakeEngine(Protocol):
    """An engine of the architecture of a model (which it may keep), holding no parameters yet. numerics: those it has;
    it refuses the others."""

    numerics: tuple[Numerics, ...]

    def __call__(
        self, model: PreTrainedModel, numerics: Numerics = Numerics.fp32, max_sequences: int = 64, pad: int = 0
    ) -> Engine: ...


class MakeTorchEngine:
    numerics = tuple(Numerics)

    def __call__(
        self, model: PreTrainedModel, numerics: Numerics = Numerics.fp32, max_sequences: int = 64, pad: int = 0
    ) -> Engine:
        return TorchEngine(model, numerics=numerics, max_sequences=max_sequences, pad=pad, device=torch.device("cpu"))


class MakeVllmEngine:
    """vLLM pads nothing. An engine takes seconds to start, so those of one architecture are one and the same."""

    numerics = (Numerics.fp32, Numerics.bf16, Numerics.fp8_weights)

    def __init__(self) -> None:
        self.started: dict[tuple[str, Numerics, int], VllmEngine] = {}

    def __call__(
        self, model: PreTrainedModel, numerics: Numerics = Numerics.fp32, max_sequences: int = 64, pad: int = 0
    ) -> Engine:
        kind = (model.config.to_json_string(), numerics, max_sequences)
        if kind not in self.started:
            config = vllm_config(numerics=numerics, max_sequences=max_sequences)
            self.started[kind] = VllmEngine(model, engine=config, world=World(0, 1, torch.device("cpu")))
        self.started[kind].version = NOTHING_LOADED
        return self.started[kind]


ENGINES = {"torch": MakeTorchEngine(), "vllm": MakeVllmEngine()}
