"""Routes as they were computed, laid out by token; prompts whose beginning came from a prefix cache get the routes of
the request that computed it: the same tokens under the same weights meet the same experts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Experts = np.ndarray[Any, Any]
Piece = tuple[int, Experts]  # first position, experts [n, L, k] of n tokens computed together


@dataclass(frozen=True, slots=True)
class Recorded:
    """experts [n, L, k] of a request's tokens from its first on · present [n] bool: False where none was computed."""

    experts: Experts
    present: np.ndarray[Any, Any]

    @property
    def missing(self) -> int:
        """How many tokens at the beginning have no routes."""
        return int(self.present.argmax()) if self.present.any() else len(self.present)


def laid_out(pieces: Iterable[Piece], shape: tuple[int, int]) -> Recorded:
    """Pieces of one request, placed by position. A later piece wins: a request that was set aside is computed again."""
    placed = list(pieces)
    length = max((start + len(experts) for start, experts in placed), default=0)
    experts, present = np.zeros((length, *shape), np.int32), np.zeros(length, bool)
    for start, part in placed:
        experts[start : start + len(part)] = part
        present[start : start + len(part)] = True
    return Recorded(experts, present)


def share_prefixes(prompts: Sequence[Sequence[int]], recorded: Sequence[Recorded], block: int) -> None:
    """Fills in place the routes that are missing at the beginning of a prompt, block by block of cached tokens, from
    whichever request computed the same tokens. What nobody computed stays missing."""
    if not any(each.missing for each in recorded):
        return
    known: dict[tuple[int, ...], Experts] = {}
    for prompt, each in zip(prompts, recorded, strict=True):
        for end in range(block, len(prompt) + 1, block):
            if each.present[end - block : end].all():
                known.setdefault(tuple(prompt[:end]), each.experts[end - block : end])
    for prompt, each in zip(prompts, recorded, strict=True):
        for end in range(block, each.missing + 1, block):
            found = known.get(tuple(prompt[:end]))
            if found is not None:
                each.experts[end - block : end] = found
                each.present[end - block : end] = True
