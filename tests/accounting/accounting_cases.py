"""Configurations of known size for the tests of the accounting."""

from minirl.accounting.architecture import Settings
from minirl.compose import load
from minirl.config import Config

# config.json of Qwen3-30B-A3B, as published
QWEN3_30B_A3B: Settings = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
MODEL = [
    "model.hidden_size=2048",
    "model.num_layers=48",
    "model.num_heads=32",
    "model.num_kv_heads=4",
    "model.head_dim=128",
    "model.num_experts=128",
    "model.num_experts_per_token=8",
    "model.moe_intermediate_size=768",
    "model.vocab_size=151936",
]
# arXiv 2512.01374, section 4.2, on one node of 8
PAPER = [
    *MODEL,
    "prompts_per_mini_batch=64",
    "group_size=16",
    "num_updates=1200",
    "sampling.max_response_tokens=32768",
    "engine=vllm",
    "engine.numerics=fp8",
    "engine.max_sequence_tokens=34816",
    "engine.cache_mib=32768",
    "engine.sleep=true",
    "train.compute_dtype=bfloat16",
    "train.activation_checkpointing=true",
    "train.max_tokens_per_micro_batch=34816",
    "train.likelihood_chunk_tokens=2048",
    "eval.every=40",
    "eval.num_problems=90",
    "eval.num_samples=32",
    "machine.gpu=h100",
    "machine.gpus_per_node=8",
    "machine.host_memory_gib=1800",
]


def paper(*overrides: str) -> Config:
    return load([*PAPER, *overrides])
