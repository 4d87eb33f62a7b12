"""How often the engine's routers and the trainer's send one token to different experts.

Chance level of the overlap is k / (experts per layer): a layer near it was compared with the wrong layer or token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from minirl.metrics.statistics import Estimators, Family, Mean
from minirl.types import RolloutBatch, Routes


@dataclass(frozen=True, slots=True)
class Choices:
    """Experts of both sides on the n tokens that have a route on both.

    shared [n, L]: how many of the trainer's k experts the engine chose too · repeated [n, L] bool: the engine's row
    names an expert twice, so it is no choice · positions [n]: of the token in its response, -1 in a prompt ·
    missing [needed tokens] bool: the engine recorded no route.
    """

    shared: Tensor
    repeated: Tensor
    positions: Tensor
    missing: Tensor
    layers: tuple[int, ...]
    k: int

    @classmethod
    def compare(cls, engine: Routes, trainer: Routes, needed: Tensor, positions: Tensor) -> Self:
        """engine, trainer: routes of the same T tokens, matched by absolute layer id; needed [T] bool; positions [T]:
        `response_positions`."""
        if engine.experts.shape[0] != trainer.experts.shape[0]:
            raise ValueError(
                f"engine routes cover {engine.experts.shape[0]} tokens, the trainer's {len(trainer.present)}"
            )
        absent = [layer for layer in trainer.layers if layer not in engine.layers]
        if absent:
            raise ValueError(f"the engine has no routes for layers {absent}; it has {list(engine.layers)}")
        both = (needed & engine.present & trainer.present).nonzero().squeeze(1)
        theirs, ours = engine.experts[both], trainer.experts[both]
        k, pairs = ours.shape[2], [(engine.layers.index(layer), i) for i, layer in enumerate(trainer.layers)]
        # layer by layer: [n, L, k, k] at once would be k times the routes themselves
        shared = [(ours[:, i, :, None] == theirs[:, j, None, :]).any(2).sum(1) for j, i in pairs]
        rows = [theirs[:, j].sort(1).values for j, _ in pairs]
        repeated = [(row[:, 1:] == row[:, :-1]).any(1) for row in rows]
        return cls(
            shared=torch.stack(shared, 1),
            repeated=torch.stack(repeated, 1),
            positions=positions[both],
            missing=~engine.present[needed],
            layers=trainer.layers,
            k=k,
        )


def routes_needed(cu_seqlens: Tensor) -> Tensor:
    """[T] bool: every token but the last of its sequence, which is never an input and so needs no route."""
    needed = torch.ones(int(cu_seqlens[-1]), dtype=torch.bool, device=cu_seqlens.device)
    needed[cu_seqlens[1:] - 1] = False
    return needed


def response_positions(rollouts: RolloutBatch) -> Tensor:
    """[T] place of each token in its response: 0 is the first sampled one, -1 is any of the prompt's."""
    mask = rollouts.response_mask
    prompts = rollouts.lengths - rollouts.response_lengths
    places = torch.arange(len(mask), device=mask.device) - (rollouts.cu_seqlens[:-1] + prompts)[rollouts.sequence_ids]
    return torch.where(mask, places, -1)


@dataclass(frozen=True, slots=True)
class Profile:
    """Sums and counts by label: one mean for each label that was met."""

    labels: tuple[str, ...]
    totals: tuple[float, ...]
    counts: tuple[int, ...]

    def merge(self, other: Self) -> Self:
        totals = tuple(mine + its for mine, its in zip(self.totals, other.totals, strict=True))
        counts = tuple(mine + its for mine, its in zip(self.counts, other.counts, strict=True))
        return type(self)(self.labels, totals, counts)

    def values(self, name: str) -> dict[str, float]:
        return {f"{name}/{label}": total / count for label, total, count in self._cells() if count}

    def _cells(self) -> Iterator[tuple[str, float, int]]:
        return zip(self.labels, self.totals, self.counts, strict=True)


class LayerMeans(Profile):
    """By the absolute id of the decoder layer."""

    suffixes: ClassVar[tuple[str, ...]] = ("/<layer>",)

    def bins(self) -> tuple[list[float], list[float]]:
        """A bar per layer, at its id, as high as its disagreement: 1 - the mean overlap."""
        met = [(int(label), 1 - total / count) for label, total, count in self._cells() if count]
        return [*[float(layer) for layer, _ in met], met[-1][0] + 1.0] if met else [0.0], [height for _, height in met]


FIRST_POSITIONS = (0, 1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)  # of the buckets; each reaches to the next


class PositionMeans(Profile):
    """By position in the response: `prompt`, then the first position of each bucket."""

    suffixes: ClassVar[tuple[str, ...]] = ("/<position>",)


def disagree_token_layer(seen: Choices) -> Mean:
    """share of (token, MoE layer) whose sets of experts differ.
    [arXiv 2510.11370]"""
    return Mean.of(seen.shared < seen.k)


def disagree_any(seen: Choices) -> Mean:
    """share of tokens whose sets of experts differ in at least one MoE layer.
    [arXiv 2510.11370]"""
    return Mean.of((seen.shared < seen.k).any(1))


def disagree_layers(seen: Choices) -> Mean:
    """mean over tokens of the number of MoE layers whose sets of experts differ.
    [arXiv 2510.11370]"""
    return Mean.of((seen.shared < seen.k).sum(1))


def overlap(seen: Choices) -> Mean:
    """mean over (token, MoE layer) of |engine's experts and trainer's experts| / k.
    [R3 notes]"""
    return Mean.of(seen.shared.double() / seen.k)


def by_layer(seen: Choices) -> LayerMeans:
    """mean over tokens of |engine's experts and trainer's experts| / k in one MoE layer: the depth profile.
    [IcePop blog]"""
    totals = (seen.shared.double() / seen.k).sum(0).tolist()
    return LayerMeans(tuple(map(str, seen.layers)), tuple(totals), (seen.shared.shape[0],) * len(seen.layers))


def by_position(seen: Choices) -> PositionMeans:
    """mean over (token, MoE layer) of |engine's experts and trainer's experts| / k for tokens at one range of places in
    the response: `prompt`, 0, 1 to 3, 4 to 15, 16 to 63, ...; named by the first place. Gaps that grow as a response
    is decoded show here.
    [ours]"""
    edges = torch.tensor(FIRST_POSITIONS, device=seen.positions.device)
    bucket = torch.bucketize(seen.positions, edges, right=True)
    shares = (seen.shared.double() / seen.k).sum(1)
    totals = torch.zeros(len(edges) + 1, dtype=torch.float64, device=shares.device).index_add_(0, bucket, shares)
    counts = torch.bincount(bucket, minlength=len(edges) + 1) * len(seen.layers)
    labels = ("prompt", *map(str, FIRST_POSITIONS))
    return PositionMeans(labels, tuple(totals.tolist()), tuple(counts.tolist()))


def missing(seen: Choices) -> Mean:
    """share of tokens that need a route (all but the last of each sequence) and have none from the engine.
    [ours]"""
    return Mean.of(seen.missing)


def repeated(seen: Choices) -> Mean:
    """share of the engine's (token, MoE layer) rows that name one expert twice: padding, not a choice.
    [ours]"""
    return Mean.of(seen.repeated)


ESTIMATORS: Estimators[Choices] = {
    "disagree_token_layer": disagree_token_layer,
    "disagree_any": disagree_any,
    "disagree_layers": disagree_layers,
    "overlap": overlap,
    "by_layer": by_layer,
    "by_position": by_position,
    "missing": missing,
    "repeated": repeated,
}
ROUTING = Family("routing/", ESTIMATORS)
# The trainer's routers in the arm's own pass. Under replay each sees inputs that passed through replayed experts, so
# these figures are about single routers, and smaller than those of a free pass; without replay they are the same.
LOCAL = Family("routing/local_", ESTIMATORS)


def compared(rollouts: RolloutBatch, trainer: Routes) -> Choices | None:
    """The engine's choice beside the given one of the trainer, over all inputs of the model; None without routes."""
    if rollouts.routes is None:
        return None
    return Choices.compare(rollouts.routes, trainer, routes_needed(rollouts.cu_seqlens), response_positions(rollouts))
