"""What a run will take, from its configuration alone: sequences, tokens, routes, memory, disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minirl import hub
from minirl.config import Config
from minirl.validate import num_experts

FLOAT_BYTES = 4
TRAINER_COPIES = 4  # weights, gradient and Adam's two moments, all in fp32
SAVED_COPIES = 3  # weights and Adam's two moments


@dataclass(frozen=True)
class Architecture:
    """The sizes of a Qwen3-shaped decoder. vocab_size: None where the task has not told it yet."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    experts: int
    experts_per_token: int
    moe_intermediate: int
    moe_layers: int
    vocab_size: int | None
    tied: bool

    @property
    def parameters(self) -> int:
        """Attention with norms on q and k, then experts and their router or a dense MLP, two norms a layer; without
        the vocabulary's two matrices where its size is unknown."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads) + 2 * self.head_dim
        dense = 3 * self.hidden * self.intermediate
        moe = self.hidden * self.experts + 3 * self.experts * self.hidden * self.moe_intermediate
        vocabulary = (self.vocab_size or 0) * self.hidden * (1 if self.tied else 2)
        mlps = self.moe_layers * moe + (self.layers - self.moe_layers) * dense
        return self.layers * (attention + 2 * self.hidden) + mlps + self.hidden + vocabulary


def architecture(config: Config, folder: Path | None) -> Architecture:
    """Of a tiny model from its keys; of a folder (the model's own or its cold start's) from its config.json."""
    model = config.model
    place = model.path if model.path is not None else str(folder) if folder else None
    found: dict[str, Any] = (hub.settings(place) if place else None) or {}
    found = found.get("text_config", found)  # of a model that also sees, its language model
    layers, experts = found.get("num_hidden_layers", model.num_layers), num_experts(model)
    return Architecture(
        hidden=found.get("hidden_size", model.hidden_size),
        layers=layers,
        heads=found.get("num_attention_heads", model.num_heads),
        kv_heads=found.get("num_key_value_heads", model.num_kv_heads),
        head_dim=found.get("head_dim", model.head_dim),
        intermediate=found.get("intermediate_size", model.intermediate_size),
        experts=experts,
        experts_per_token=found.get("num_experts_per_tok", model.num_experts_per_token),
        moe_intermediate=found.get("moe_intermediate_size", model.moe_intermediate_size),
        moe_layers=moe_layers(found, layers) if experts else 0,
        vocab_size=found.get("vocab_size"),
        tied=found.get("tie_word_embeddings", False),
    )


def moe_layers(settings: dict[str, Any], layers: int) -> int:
    """How many of the decoder layers route: all but the dense ones, by the keys with which families name those."""
    step, only = settings.get("decoder_sparse_step") or 1, settings.get("mlp_only_layers") or ()
    first = settings.get("first_k_dense_replace") or 0
    return sum(n >= first and n not in only and (n + 1) % step == 0 for n in range(layers))


@dataclass(frozen=True)
class Estimate:
    """Of one run. tokens and route_bytes: at most, per rollout batch, response tokens only. memory: weights, gradient,
    Adam and the engine's copy, in bytes; disk: of the checkpoints that are kept."""

    prompts: int
    responses: int
    tokens: int
    route_bytes: int
    parameters: int
    whole: bool  # whether `parameters` includes the vocabulary's matrices
    memory: int
    disk: int


def estimate(config: Config, folder: Path | None) -> Estimate:
    """folder: of the cold start, where it is made already."""
    shape = architecture(config, folder)
    responses = config.prompts_per_mini_batch * config.num_mini_batches * config.group_size
    tokens = responses * config.sampling.max_response_tokens
    id_bytes = 1 if shape.experts <= 256 else 2
    routed = shape.moe_layers * shape.experts_per_token * id_bytes
    weights = shape.parameters * FLOAT_BYTES
    return Estimate(
        prompts=config.prompts_per_mini_batch * config.num_mini_batches,
        responses=responses,
        tokens=tokens,
        route_bytes=tokens * routed,
        parameters=shape.parameters,
        whole=shape.vocab_size is not None,
        memory=weights * (TRAINER_COPIES + 1),
        disk=weights * SAVED_COPIES * config.train.num_checkpoints,
    )


def in_bytes(number: int) -> str:
    """12 kB, 3.4 MB, ..."""
    size, unit = float(number), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.3g} {unit}"


def in_count(number: int) -> str:
    """950, 338k, 30.5M, ..."""
    size, unit = float(number), ""
    for unit in ("", "k", "M", "G", "T"):
        if size < 1000 or unit == "T":
            break
        size /= 1000
    return f"{size:.3g}{unit}"
