"""log pi_theta of the sampled tokens, without ever holding [tokens, vocabulary] for more than one chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from minirl.policy.packing import Padded

# (logits [C, V] at temperature, in fp32; targets [C]) -> [C, figures]
Score = Callable[[Tensor, Tensor], Tensor]


def log_likelihood(logits: Tensor, targets: Tensor) -> Tensor:
    """log softmax(logits)_target = logits_target - log sum_v exp(logits_v). [C, V], [C] -> [C, 1]"""
    return logits.gather(-1, targets[:, None]) - logits.logsumexp(dim=-1, keepdim=True)


def log_likelihood_and_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The same, and H = log sum_v exp(logits_v) - sum_v p_v logits_v in nats over the full vocabulary. -> [C, 2]"""
    normaliser = logits.logsumexp(dim=-1, keepdim=True)
    entropy = normaliser - (logits.softmax(dim=-1) * logits).sum(dim=-1, keepdim=True)
    return torch.cat([log_likelihood(logits, targets), entropy], dim=-1)


class Likelihood(nn.Module):
    """A causal LM that answers with figures of its next-token distributions instead of logits.

    It is the outermost module that FSDP shards, so that the head's weights are whole while chunks of tokens go
    through it, forward and (recomputed chunk by chunk) backward. temperature: of all three policies' distributions.
    """

    def __init__(self, model: PreTrainedModel, *, temperature: float, chunk_tokens: int) -> None:
        super().__init__()
        self.model, self.temperature, self.chunk_tokens = model, temperature, chunk_tokens

    def forward(self, layout: Padded, score: Score) -> Tensor:
        """[R, figures] of the response tokens, in packed order, in at least fp32."""
        decoder: Any = self.model.base_model
        hidden = decoder(input_ids=layout.tokens, use_cache=False).last_hidden_state
        hidden = hidden.flatten(0, 1).index_select(0, layout.sources)
        chunks = zip(hidden.split(self.chunk_tokens), layout.targets.split(self.chunk_tokens), strict=True)
        return torch.cat([self.recomputed(part, targets, score) for part, targets in chunks])

    def recomputed(self, hidden: Tensor, targets: Tensor, score: Score) -> Tensor:
        """`chunk`, of which backward keeps nothing but the hidden states."""
        return checkpoint(self.chunk, hidden, targets, score, use_reentrant=False, preserve_rng_state=False)

    def chunk(self, hidden: Tensor, targets: Tensor, score: Score) -> Tensor:
        """hidden [C, h] -> [C, figures]; its logits exist only inside this call."""
        head: Any = self.model.get_output_embeddings()
        logits = head(hidden)
        return score(logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.temperature, targets)
