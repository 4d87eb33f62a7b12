"""The sizes of a decoder, from its config.json alone: parameters, those that a token meets, bytes of its cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minirl import hub
from minirl.config import Config, ModelConfig
from minirl.validate import experts_in

Settings = dict[str, Any]  # a config.json in Hugging Face format
LINEAR = "linear_attention"
GATED_QUERIES = ("qwen3_next", "qwen3_5_moe")  # their queries come with a gate of the same size


@dataclass(frozen=True)
class Architecture:
    """Numbers of parameters. attention, mlp: of all layers, as a token meets them; experts: of all layers, whether a
    token meets them or not. norms and biases are left out where a config does not tell (below 0.1 % of a real model).

    head: the output projection, which is the embedding too where the two are tied. vocab_size: None where the task
    has not told it yet. layers: of which full_layers attend to all tokens. cached: numbers per token that a full layer
    remembers. head_dims: queries' heads x their size. dense_width: of the MLP of a layer that does not route.
    expert_width, shared_width: of one expert, and of what every token meets beside its own.
    largest_layer: the parameters of the largest decoder layer.
    """

    hidden: int
    layers: int
    full_layers: int
    head_dims: int
    attention: int
    mlp: int
    experts: int
    num_experts: int
    experts_per_token: int
    moe_layers: int
    dense_width: int
    expert_width: int
    shared_width: int
    cached: int
    vocab_size: int | None
    tied: bool
    largest_layer: int

    @property
    def vocabulary(self) -> int:
        """Of embedding and output projection."""
        return (self.vocab_size or 0) * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All, norms included, without the vocabulary's matrices where its size is unknown."""
        return self.attention + self.mlp + self.experts + self.hidden + self.vocabulary

    @property
    def met(self) -> int:
        """Parameters of the matrix products of one token: its experts, and the output projection."""
        chosen = self.experts * self.experts_per_token // self.num_experts if self.num_experts else 0
        return self.attention + self.mlp + chosen + (self.vocab_size or 0) * self.hidden

    @property
    def saved_numbers(self) -> int:
        """What backward needs of one token in all layers: 6 h + 4 q + 2 (k + v) for norms and attention (q, k, v:
        widths of queries, keys and values), 4 w for an MLP of width w, k (2 h + 4 m) for k experts of width m."""
        chosen = self.experts_per_token * (2 * self.hidden + 4 * self.expert_width) + 4 * self.shared_width
        mlps = self.moe_layers * chosen + (self.layers - self.moe_layers) * 4 * self.dense_width
        return self.layers * (6 * self.hidden + 4 * self.head_dims + 2 * self.cached) + mlps

    @property
    def cached_numbers(self) -> int:
        """Keys and values of one token in all layers."""
        return self.full_layers * self.cached


def architecture(settings: Settings) -> Architecture:
    """Of a decoder of any family that minirl trains."""
    settings = settings.get("text_config", settings)  # of a model that also sees, its language model
    layers, hidden = settings["num_hidden_layers"], settings["hidden_size"]
    kinds = settings.get("layer_types") or ["full_attention"] * layers
    full, linear = _attention(settings), _linear(settings) if LINEAR in kinds else 0
    num_experts, routed = experts_in(settings), moe_layers(settings) if experts_in(settings) else 0
    width = settings.get("moe_intermediate_size") or settings.get("intermediate_size") or 0
    shared = _shared(settings, width)
    beside = hidden * num_experts + 3 * hidden * shared  # the router, and experts that every token meets
    dense = 3 * hidden * (settings.get("intermediate_size") or 0)
    experts = 3 * num_experts * hidden * width
    attention = [(linear if kind == LINEAR else full) + 2 * hidden for kind in kinds]
    return Architecture(
        hidden=hidden,
        layers=layers,
        full_layers=layers - kinds.count(LINEAR),
        head_dims=settings["num_attention_heads"] * _head_dim(settings),
        attention=sum(attention),
        mlp=routed * beside + (layers - routed) * dense,
        experts=routed * experts,
        num_experts=num_experts,
        experts_per_token=settings.get("num_experts_per_tok") or 0,
        moe_layers=routed,
        dense_width=settings.get("intermediate_size") or 0,
        expert_width=width,
        shared_width=shared,
        cached=_cached(settings),
        vocab_size=settings.get("vocab_size"),
        tied=bool(settings.get("tie_word_embeddings")),
        largest_layer=max(attention) + (beside + experts if routed else dense),
    )


def moe_layers(settings: Settings) -> int:
    """How many of the decoder layers route: all but the dense ones, by the keys with which families name those."""
    step, only = settings.get("decoder_sparse_step") or 1, settings.get("mlp_only_layers") or ()
    first = settings.get("first_k_dense_replace") or 0
    return sum(n >= first and n not in only and (n + 1) % step == 0 for n in range(settings["num_hidden_layers"]))


def _head_dim(settings: Settings) -> int:
    if settings.get("kv_lora_rank"):
        return int(settings["qk_nope_head_dim"] + settings["qk_rope_head_dim"])
    return int(settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"])


def _attention(settings: Settings) -> int:
    """Projections of one layer: grouped queries, or the latent ones of DeepSeek."""
    hidden, heads, size = settings["hidden_size"], settings["num_attention_heads"], _head_dim(settings)
    if settings.get("kv_lora_rank"):
        rank, value, rope = settings["kv_lora_rank"], settings["v_head_dim"], settings["qk_rope_head_dim"]
        latent = settings.get("q_lora_rank")
        queries = latent * (hidden + heads * size) if latent else hidden * heads * size
        keys = hidden * (rank + rope) + rank * heads * (settings["qk_nope_head_dim"] + value)
        return int(queries + keys + heads * value * hidden)
    gate = any(settings.get("model_type", "").startswith(name) for name in GATED_QUERIES)
    keys = settings.get("num_key_value_heads") or heads
    norms = 2 * size if settings.get("model_type", "").startswith("qwen3") else 0
    return int(hidden * size * ((3 if gate else 2) * heads + 2 * keys) + norms)


def _linear(settings: Settings) -> int:
    """Projections of one gated delta layer (Qwen3-Next): queries, keys, values, gates, convolution, output."""
    heads, hidden = settings["linear_num_value_heads"], settings["hidden_size"]
    keys = settings["linear_num_key_heads"] * settings["linear_key_head_dim"]
    values = heads * settings["linear_value_head_dim"]
    convolution = (2 * keys + values) * settings["linear_conv_kernel_dim"]
    return int(hidden * (2 * keys + 3 * values + 2 * heads) + convolution)


def _cached(settings: Settings) -> int:
    if settings.get("kv_lora_rank"):  # transformers caches full keys and values; an engine for MLA needs less
        return int(settings["num_attention_heads"] * (_head_dim(settings) + settings["v_head_dim"]))
    keys = settings.get("num_key_value_heads") or settings["num_attention_heads"]
    return int(2 * keys * _head_dim(settings))


def _shared(settings: Settings, width: int) -> int:
    """The width of the experts that every token meets."""
    counted = (settings.get("n_shared_experts") or 0) * width
    return int(settings.get("shared_expert_intermediate_size") or counted)


def settings_of(config: Config, start: Path | None) -> Settings:
    """Of a model with a place its config.json; of another that of its cold start, if it is made; else its keys."""
    place = config.model.path if config.model.path is not None else str(start) if start is not None else None
    return (hub.settings(place) if place is not None else None) or _by_keys(config.model)


def _by_keys(model: ModelConfig) -> Settings:
    return {
        "model_type": model.family,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.intermediate_size,
        "num_experts": model.num_experts,
        "num_experts_per_tok": model.num_experts_per_token,
        "moe_intermediate_size": model.moe_intermediate_size,
        "vocab_size": model.vocab_size,
    }
