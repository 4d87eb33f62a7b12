"""How often the engine's routers and the trainer's send one token to different experts.

Chance level of the overlap is k / (experts per layer): a layer near it was compared with the wrong layer or token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from minirl.metrics.statistics import Estimators, Family, Mean
from minirl.types import Routes, Statistics


@dataclass(frozen=True, slots=True)
class Choices:
    """Experts of both sides on the n tokens that have a route on both.

    shared [n, L]: how many of the trainer's k experts the engine chose too · repeated [n, L] bool: the engine's row
    names an expert twice, so it is no choice · missing [needed tokens] bool: the engine recorded no route.
    """

    shared: Tensor
    repeated: Tensor
    missing: Tensor
    layers: tuple[int, ...]
    k: int

    @classmethod
    def compare(cls, engine: Routes, trainer: Routes, needed: Tensor) -> Self:
        """engine, trainer: routes of the same T tokens, matched by absolute layer id; needed [T] bool."""
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
        return cls(torch.stack(shared, 1), torch.stack(repeated, 1), ~engine.present[needed], trainer.layers, k)


def routes_needed(cu_seqlens: Tensor) -> Tensor:
    """[T] bool: every token but the last of its sequence, which is never an input and so needs no route."""
    needed = torch.ones(int(cu_seqlens[-1]), dtype=torch.bool, device=cu_seqlens.device)
    needed[cu_seqlens[1:] - 1] = False
    return needed


@dataclass(frozen=True, slots=True)
class LayerMeans:
    """One mean per layer, named by the absolute id of the decoder layer."""

    suffixes: ClassVar[tuple[str, ...]] = ("/<layer>",)
    layers: tuple[int, ...]
    totals: tuple[float, ...]
    count: int

    def merge(self, other: Self) -> Self:
        totals = tuple(mine + its for mine, its in zip(self.totals, other.totals, strict=True))
        return type(self)(self.layers, totals, self.count + other.count)

    def values(self, name: str) -> dict[str, float]:
        if not self.count:
            return {}
        return {f"{name}/{layer}": total / self.count for layer, total in zip(self.layers, self.totals, strict=True)}


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
    return LayerMeans(seen.layers, tuple(totals), seen.shared.shape[0])


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
    "missing": missing,
    "repeated": repeated,
}
ROUTING = Family("routing/", ESTIMATORS)
# The trainer's routers in the arm's own pass. Under replay each sees inputs that passed through replayed experts, so
# these figures are about single routers, and smaller than those of a free pass; without replay they are the same.
LOCAL = Family("routing/local_", ESTIMATORS)


def routing_metrics(engine: Routes, trainer: Routes, needed: Tensor) -> Statistics:
    """Free routing on both sides; [T] bool `needed` says which tokens are compared."""
    return ROUTING.measure(Choices.compare(engine, trainer, needed))
