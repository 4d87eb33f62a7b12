"""Responses as an inference server reports them, joined into a batch: ids, logprobs, mask and routes in one layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minirl.types import Prompt, RolloutBatch, Routes, expert_dtype


@dataclass(frozen=True, slots=True)
class Routers:
    """Which decoder layers of a model route, and how: absolute ids, experts per layer, experts per token."""

    layers: tuple[int, ...]
    num_experts: int
    top_k: int


@dataclass(frozen=True, slots=True)
class Response:
    """What a server knows of one response.

    tokens: sampled ids, EOS included · logprobs: of these ids, in nats, maybe not finite · truncated: ended by the
    length limit · experts [n, L, k] of prompt and response tokens from the first on, any integer dtype, and
    recorded [n] bool: False where the server has no route; None for a dense model.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    truncated: bool
    experts: np.ndarray[Any, Any] | None
    recorded: np.ndarray[Any, Any] | None


def joined(
    prompts: Sequence[Prompt],
    responses: Sequence[Response],
    *,
    group_size: int,
    version: int,
    eos: int,
    routers: Routers | None,
    device: torch.device,
) -> RolloutBatch:
    """The batch of all responses, group after group; response b belongs to prompt b // group_size."""
    before = [prompts[b // group_size].tokens for b in range(len(responses))]
    parts = [_finite(response, len(prompt), eos) for prompt, response in zip(before, responses, strict=True)]
    sequences = [(*prompt, *part.tokens) for prompt, part in zip(before, parts, strict=True)]
    logprobs = chain.from_iterable(
        (*[0.0] * len(prompt), *part.logprobs) for prompt, part in zip(before, parts, strict=True)
    )
    mask = chain.from_iterable(
        (*[False] * len(prompt), *[True] * len(part.tokens)) for prompt, part in zip(before, parts, strict=True)
    )
    valid = [part is response for part, response in zip(parts, responses, strict=True)]
    return RolloutBatch(
        tokens=torch.tensor(list(chain.from_iterable(sequences)), dtype=torch.int64, device=device),
        cu_seqlens=torch.tensor([0, *accumulate(map(len, sequences))], device=device),
        response_mask=torch.tensor(list(mask), device=device),
        rollout_logprobs=torch.tensor(list(logprobs), dtype=torch.float32, device=device),
        truncated=torch.tensor([part.truncated for part in parts], device=device),
        valid=torch.tensor(valid, device=device),
        positions=torch.tensor([prompt.position for prompt in prompts], device=device).repeat_interleave(group_size),
        routes=None if routers is None else _routes(sequences, parts, routers, device),
        group_size=group_size,
        version=version,
    )


def _finite(response: Response, prompt_length: int, eos: int) -> Response:
    """The response itself if all its logprobs are finite. Otherwise its tokens up to the first that has none, which
    becomes an EOS of logprob 0: without a distribution nothing was sampled from there on."""
    if len(response.tokens) != len(response.logprobs):
        raise ValueError(f"the engine gave {len(response.tokens)} tokens and {len(response.logprobs)} logprobs")
    broken = np.flatnonzero(~np.isfinite(np.asarray(response.logprobs, dtype=np.float64)))
    if not len(broken):
        return response
    end = int(broken[0])
    fed = prompt_length + end
    return Response(
        tokens=(*response.tokens[:end], eos),
        logprobs=(*response.logprobs[:end], 0.0),
        truncated=False,
        experts=None if response.experts is None else response.experts[:fed],
        recorded=None if response.recorded is None else response.recorded[:fed],
    )


def _routes(
    sequences: Sequence[Sequence[int]], responses: Iterable[Response], routers: Routers, device: torch.device
) -> Routes:
    """All routes, packed. The last token of a sequence is never fed back, so it has none."""
    dtype = expert_dtype(routers.num_experts)
    experts, present = list[Tensor](), list[Tensor]()
    for b, (sequence, response) in enumerate(zip(sequences, responses, strict=True)):
        found = _rows(b, len(sequence), response, routers)
        rows = torch.zeros(len(sequence), len(routers.layers), routers.top_k, dtype=dtype)
        mask = torch.zeros(len(sequence), dtype=torch.bool)
        length = len(sequence) - 1
        assert response.recorded is not None  # _rows has seen it
        mask[:length] = torch.from_numpy(response.recorded[:length].copy())
        rows[:length] = torch.from_numpy(found[:length].astype(np.int64)).to(dtype)
        rows[~mask] = 0
        experts.append(rows)
        present.append(mask)
    return Routes(torch.cat(experts).to(device), torch.cat(present).to(device), routers.layers, routers.num_experts)


def _rows(b: int, length: int, response: Response, routers: Routers) -> np.ndarray[Any, Any]:
    """The rows of response b, if they are as many as its tokens, or one less: the last one was never an input."""
    rows, recorded = response.experts, response.recorded
    shape = (len(routers.layers), routers.top_k)
    if rows is None or recorded is None:
        raise ValueError(f"response {b}: the engine gave no routes; expected one per token")
    if rows.shape[1:] != shape or recorded.shape != rows.shape[:1]:
        raise ValueError(f"response {b}: routes of shape {list(rows.shape)}; expected [tokens, layers, k] of {shape}")
    if rows.shape[0] not in (length - 1, length):
        raise ValueError(f"response {b}: {rows.shape[0]} routes for {length} tokens; expected {length - 1} or {length}")
    return rows
