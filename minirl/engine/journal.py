"""The journal of a rollout: what happened to each response, as it happened; packed at the end."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minirl.models.tape import RoutingTape
from minirl.types import Prompt, RolloutBatch, Routes


class Journal:
    """Entries of a rollout of `num_responses` responses. An entry is about n tokens: response [n] says of which
    responses they are, offset [n] where in the sequence (prompt included) they stand. Only real tokens are entered,
    so the memory of a batch is that of its tokens, however unequal its lengths are."""

    def __init__(self, num_responses: int, device: torch.device) -> None:
        self.tokens: list[tuple[Tensor, ...]] = []  # response, offset, id, logprob, sampled
        self.routes: list[tuple[Tensor, ...]] = []  # response, offset, experts [n, L, k]
        self.valid = torch.ones(num_responses, dtype=torch.bool, device=device)
        self.truncated = torch.zeros_like(self.valid)

    def prompt(self, response: Tensor, offset: Tensor, ids: Tensor) -> None:
        logprobs = torch.zeros(ids.shape, device=ids.device)
        self.tokens.append((response, offset, ids, logprobs, torch.zeros_like(ids, dtype=torch.bool)))

    def sample(self, response: Tensor, offset: Tensor, ids: Tensor, logprobs: Tensor, valid: Tensor) -> None:
        self.tokens.append((response, offset, ids, logprobs, torch.ones_like(valid)))
        self.valid[response] &= valid

    def route(self, response: Tensor, offset: Tensor, experts: Tensor | None) -> None:
        if experts is not None:
            self.routes.append((response, offset, experts))

    def truncate(self, response: Tensor) -> None:
        self.truncated[response] = True

    def pack(
        self, prompts: Sequence[Prompt], *, group_size: int, version: int, tape: RoutingTape | None
    ) -> RolloutBatch:
        """All entries in the packed layout, response after response."""
        response, offset, ids, logprobs, sampled = (torch.cat(column) for column in zip(*self.tokens, strict=True))
        lengths = torch.bincount(response, minlength=len(self.valid))
        cu_seqlens = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        place = cu_seqlens[response] + offset
        positions = torch.tensor([prompt.position for prompt in prompts], device=ids.device)
        return RolloutBatch(
            tokens=_placed(ids, place, len(place)),
            cu_seqlens=cu_seqlens,
            response_mask=_placed(sampled, place, len(place)),
            rollout_logprobs=_placed(logprobs, place, len(place)),
            truncated=self.truncated,
            valid=self.valid,
            positions=positions.repeat_interleave(group_size),
            routes=None if tape is None else self._packed_routes(cu_seqlens, tape),
            group_size=group_size,
            version=version,
        )

    def _packed_routes(self, cu_seqlens: Tensor, tape: RoutingTape) -> Routes:
        response, offset, experts = (torch.cat(column) for column in zip(*self.routes, strict=True))
        place, total = cu_seqlens[response] + offset, int(cu_seqlens[-1])
        return Routes(
            experts=_placed(experts, place, total),
            present=_placed(torch.ones_like(place, dtype=torch.bool), place, total),
            layers=tape.layers,
            num_experts=tape.num_experts,
        )


def _placed(values: Tensor, place: Tensor, total: int) -> Tensor:
    """[total, ...] with values[i] at place[i] and zeros elsewhere."""
    return values.new_zeros(total, *values.shape[1:]).index_copy_(0, place, values)
