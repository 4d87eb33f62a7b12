"""Tiny MoE models of any layout, for the tests of the models room."""

import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from minirl.models.experts import IMPLEMENTATION

VOCAB = 11


def moe(*, dtype=torch.float32, layers=3, mlp_only=(), seed=0, experts=6, k=2, sparse_step=1, norm=True):
    """A Qwen3-MoE with the given dense layers."""
    config = Qwen3MoeConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=24,
        num_experts=experts,
        num_experts_per_tok=k,
        moe_intermediate_size=12,
        norm_topk_prob=norm,
        mlp_only_layers=list(mlp_only),
        decoder_sparse_step=sparse_step,
        initializer_range=0.3,
        max_position_embeddings=64,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation="sdpa", experts_implementation=IMPLEMENTATION
        )
    return model.eval()


def tokens(rows=3, time=5, seed=0):
    return torch.randint(VOCAB, (rows, time), generator=torch.Generator().manual_seed(seed))


def other_experts(experts, num_experts):
    """A valid choice that differs from `experts` [T, L, k] in every row: the complement's first k."""
    taken = torch.nn.functional.one_hot(experts.long(), num_experts).sum(-2)
    return taken.argsort(dim=-1, stable=True)[..., : experts.shape[-1]]
