"""What the engine tests compare with: a stock model's forward over finished sequences, one at a time, no cache."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from minirl.config import EngineConfig, ModelConfig, Numerics, Placement
from minirl.models.load import build
from minirl.types import Prompt, RolloutBatch

EOS = 9  # a token that the random model of init_seed 0 samples in about one of nine cases


def model_config(**changes: object) -> ModelConfig:
    sizes = {
        "name": "test",
        "path": None,
        "family": "qwen3_moe",
        "hidden_size": 32,
        "num_layers": 3,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 32,  # the smallest that vLLM serves on a CPU
        "intermediate_size": 48,
        "num_experts": 16,
        "num_experts_per_token": 4,
        "moe_intermediate_size": 16,
        "initializer_range": 0.2,
        "init_seed": 0,
    }
    return ModelConfig(**sizes | changes)


def tiny_model(vocab_size: int = 20, **changes: object) -> PreTrainedModel:
    return build(model_config(**changes), vocab_size=vocab_size, checkpoint=None)


def dense_model() -> PreTrainedModel:
    return tiny_model(family="qwen3", num_experts=0, num_experts_per_token=0, moe_intermediate_size=0)


def vllm_config(**changes: object) -> EngineConfig:
    """vLLM with room for short sequences."""
    usual = {
        "name": "vllm",
        "numerics": Numerics.fp32,
        "max_sequences": 64,
        "max_rollout_seconds": 600.0,
        "placement": Placement.colocated,
        "tensor_parallel": 1,
        "max_sequence_tokens": 128,
        "cache_mib": 64,
        "prefix_caching": True,
        "sleep": False,
    }
    return EngineConfig(**usual | changes)


def some_prompts(*lengths: int, vocab_size: int = 20) -> list[Prompt]:
    """Prompts of the given lengths at positions 100, 101, ..., without EOS."""
    generator = torch.Generator().manual_seed(0)
    words = torch.tensor([token for token in range(vocab_size) if token != EOS])
    drawn = [words[torch.randint(len(words), (length,), generator=generator)].tolist() for length in lengths]
    return [Prompt(100 + i, tuple(tokens), None) for i, tokens in enumerate(drawn)]


@dataclass
class Forced:
    """logits [T, V] that score tokens[t], zeros for the first token of a sequence · experts [T, L, k], or None."""

    logits: Tensor
    experts: Tensor | None

    def logprobs(self, tokens: Tensor, temperature: float) -> Tensor:
        return (self.logits / temperature).log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)


@torch.no_grad()
def teacher_forced(model: PreTrainedModel, batch: RolloutBatch) -> Forced:
    """`model` over each sequence of the batch; experts from the router logits it reports, not from our tape."""
    logits, experts = [], []
    for sequence in batch.tokens.split(batch.lengths.tolist()):
        mixture = batch.routes is not None
        out = model(sequence[None], use_cache=False, **({"output_router_logits": True} if mixture else {}))
        logits.append(torch.cat([torch.zeros_like(out.logits[0, :1]), out.logits[0, :-1]]))
        if mixture:
            experts.append(
                torch.stack([scores.topk(model.config.num_experts_per_tok).indices for scores in out.router_logits], 1)
            )
    return Forced(torch.cat(logits), torch.cat(experts) if experts else None)


def responses(batch: RolloutBatch) -> list[list[int]]:
    """The sampled tokens of each response."""
    pieces = zip(
        batch.tokens.split(batch.lengths.tolist()), batch.response_mask.split(batch.lengths.tolist()), strict=True
    )
    return [tokens[mask].tolist() for tokens, mask in pieces]


def response_logprobs(batch: RolloutBatch) -> list[Tensor]:
    """The rollout logprobs of each response's sampled tokens."""
    lengths = batch.lengths.tolist()
    pieces = zip(batch.rollout_logprobs.split(lengths), batch.response_mask.split(lengths), strict=True)
    return [logprobs[mask] for logprobs, mask in pieces]
