"""Tiny models of every MoE family, in every layout that its config knows: for the tests of all rooms."""

from __future__ import annotations

import torch
from transformers import AutoConfig, PreTrainedModel

from minirl.models.load import initialised

VOCAB = 13
EXPERTS, K = 6, 2
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "num_experts_per_tok": K,
    "initializer_range": 0.3,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
SIGMOID = {
    "n_routed_experts": EXPERTS,
    "moe_intermediate_size": 12,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
LINEAR = {
    "num_hidden_layers": 4,
    "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
SOFTMAX = {"num_experts": EXPERTS, "moe_intermediate_size": 12}
SHARED = {"shared_expert_intermediate_size": 8}

# what each family is made of beside SIZES; one layout per row
QWEN3, QWEN2 = SOFTMAX | {"head_dim": 8, "norm_topk_prob": True}, SOFTMAX | SHARED
LAYOUTS: dict[str, tuple[str, dict[str, object]]] = {
    "qwen3_moe": ("qwen3_moe", QWEN3),
    "qwen3_moe, weights not renormalised": ("qwen3_moe", QWEN3 | {"norm_topk_prob": False}),
    "qwen3_moe, first layer dense": ("qwen3_moe", QWEN3 | {"mlp_only_layers": [0]}),
    "qwen3_moe, every second layer dense": ("qwen3_moe", QWEN3 | {"num_hidden_layers": 4, "decoder_sparse_step": 2}),
    "qwen2_moe": ("qwen2_moe", QWEN2),
    "qwen2_moe, a layer dense": ("qwen2_moe", QWEN2 | {"mlp_only_layers": [1]}),
    "olmoe": ("olmoe", {"num_experts": EXPERTS}),
    "mixtral": ("mixtral", {"num_local_experts": EXPERTS}),
    "deepseek_v3": ("deepseek_v3", SIGMOID | LATENT),
    "deepseek_v3, one group": ("deepseek_v3", SIGMOID | LATENT | {"n_group": 1, "norm_topk_prob": False}),
    "glm4_moe": ("glm4_moe", SIGMOID | {"head_dim": 8}),
    "gpt_oss": ("gpt_oss", {"num_local_experts": EXPERTS, "head_dim": 8, "sliding_window": 4}),
    "qwen3_next": ("qwen3_next", SOFTMAX | SHARED | LINEAR),
    "qwen3_next, first layer dense": ("qwen3_next", SOFTMAX | SHARED | LINEAR | {"mlp_only_layers": [0]}),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", SOFTMAX | SHARED | LINEAR),
}
MOE_LAYERS = {
    "qwen3_moe, first layer dense": (1, 2),
    "qwen3_moe, every second layer dense": (1, 3),
    "qwen2_moe, a layer dense": (0, 2),
    "deepseek_v3": (1, 2),
    "deepseek_v3, one group": (1, 2),
    "glm4_moe": (1, 2),
    "qwen3_next": (0, 1, 2, 3),
    "qwen3_next, first layer dense": (1, 2, 3),
    "qwen3_5_moe_text": (0, 1, 2, 3),
}


def moe_layers(layout: str) -> tuple[int, ...]:
    """Absolute ids of the decoder layers that route."""
    return MOE_LAYERS.get(layout, (0, 1, 2))


def family_config(layout: str, **changes: object):
    family, own = LAYOUTS[layout]
    return AutoConfig.for_model(family, **(SIZES | own | changes))


def family_model(layout: str, dtype: torch.dtype = torch.float32, **changes: object) -> PreTrainedModel:
    """Random weights, the same at every call. What is initialised to 0 or to 1 is random too, so that it matters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = initialised(family_config(layout, **changes)).to(dtype).eval()
        for name, tensor in [*built.named_parameters(), *built.named_buffers()]:
            if "bias" in name and "dt_bias" not in name:
                tensor.data.normal_(std=0.3)
    return built


def sequences(rows: int = 3, time: int = 5, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCAB, (rows, time), generator=torch.Generator().manual_seed(seed))


def other_experts(experts: torch.Tensor, num_experts: int) -> torch.Tensor:
    """A valid choice that differs from `experts` [T, L, k] in every row: the first k that were not chosen."""
    taken = torch.nn.functional.one_hot(experts.long(), num_experts).sum(-2)
    return taken.argsort(dim=-1, stable=True)[..., : experts.shape[-1]]
