"""Which token comes next: the distribution that is sampled, and one uniform number per token."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from minirl.streams import stream
from minirl.types import Sampling


def sampled_logprobs(logits: Tensor, temperature: float) -> Tensor:
    """log mu = log softmax(z / T) over the vocabulary, fp32 [rows, V].

    T = 0 is the limit: all mass on the largest logit, whose logprob is then 0. Rows with a NaN stay NaN.
    """
    logits = logits.float()
    if temperature == 0.0:
        best = logits.max(-1, keepdim=True)
        return torch.full_like(logits, -torch.inf).scatter_(-1, best.indices, best.values * 0.0)
    return torch.log_softmax(logits / temperature, -1)


def nucleus(logprobs: Tensor, top_p: float) -> Tensor:
    """log of mu restricted to its nucleus and renormalised, [rows, V]: of the tokens in the order of their probability,
    those before which less than top_p has been reached (arXiv 1904.09751, section 3.1). The likeliest always stays;
    NaN stays NaN."""
    if top_p >= 1.0:
        return logprobs
    ordered, order = logprobs.sort(-1, descending=True)
    probabilities = ordered.double().exp()
    ordered = ordered.masked_fill(probabilities.cumsum(-1) - probabilities >= top_p, -torch.inf)
    return torch.log_softmax(torch.empty_like(logprobs).scatter_(-1, order, ordered), -1)


def draw(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """y = min {v : mu(0) + ... + mu(v) > u}, the inverse CDF in float64; [rows] token ids.

    float64, because in fp32 the sum over a large vocabulary is off by more than many tokens' probability.
    """
    cumulative = logprobs.double().exp_().cumsum_(-1)
    total = cumulative[:, -1:]
    # strictly below the total, so that a token of probability 0 at the end is never the answer
    target = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp_max_(logprobs.shape[-1] - 1)


def response_uniforms(sampling: Sampling, responses: Iterable[tuple[int, int]]) -> Tensor:
    """float64 [rows, max_response_tokens]: the numbers of each (prompt position, sample index), from its own stream.

    Drawn in one go per response: token t reads number t, whatever else is in the batch and whatever the limit is.
    """
    count = sampling.max_response_tokens
    draws = [stream(sampling.seed, sampling.purpose, *response).random(count) for response in responses]
    return torch.from_numpy(np.stack(draws))
