"""The gap between trainer and engine on the sampled tokens: d_t = log pi_old(y_t) - log mu(y_t)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minirl.doctor.measure import Measurement
from minirl.metrics.log_ratio import ResponseTokens
from minirl.metrics.mismatch import Mismatch, extreme_tokens, kl_k1, kl_k3
from minirl.metrics.routing import compared
from minirl.types import OldPolicy, Rewards, RolloutBatch

NUM_BINS = 16  # of positions within a response


@dataclass(frozen=True, slots=True)
class Gap:
    """Over the tokens of valid responses: k1, k3 (nats per token), quantiles of |d|, and the share of tokens whose
    ratio is beyond metrics.extreme_ratio. positions, by_position: the first token of each bin of positions, and the
    mean |d| in it. differences: |d| of every token, sorted."""

    k1: float
    k3: float
    extreme: float
    mean: float
    positions: tuple[int, ...]
    by_position: tuple[float, ...]
    differences: Tensor

    @property
    def num_tokens(self) -> int:
        return len(self.differences)

    def quantile(self, share: float) -> float:
        """The smallest |d| that at least `share` of the tokens do not exceed."""
        return float(self.differences[min(int(share * self.num_tokens), self.num_tokens - 1)])

    @property
    def largest(self) -> float:
        return float(self.differences[-1])


def gap(rollouts: RolloutBatch, trainer: OldPolicy, *, extreme_ratio: float) -> Gap | None:
    """None where no response is valid: there is nothing to compare."""
    nothing = torch.zeros(len(rollouts), device=rollouts.tokens.device)
    seen = Mismatch.of(rollouts, Rewards(nothing, nothing.bool()), trainer, extreme_ratio=extreme_ratio)
    if not len(seen.tokens.positions):
        return None
    differences = seen.log_ratio.values.abs()
    positions, means = by_position(differences, seen.tokens)
    return Gap(
        k1=kl_k1(seen).values("")[""],
        k3=kl_k3(seen).values("")[""],
        extreme=extreme_tokens(seen).values("")[""],
        mean=float(differences.mean()),
        positions=positions,
        by_position=means,
        differences=differences.sort().values,
    )


def by_position(values: Tensor, tokens: ResponseTokens) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Means [bins] of per-token values over bins of the token's place in its response (0: the first sampled one)."""
    starts = torch.zeros(len(tokens.responses), dtype=torch.int64, device=values.device)
    first = torch.ones_like(tokens.owners, dtype=torch.bool)
    first[1:] = tokens.owners[1:] != tokens.owners[:-1]
    starts[tokens.owners[first]] = tokens.positions[first]
    places = tokens.positions - starts[tokens.owners]
    width = -(-(int(places.max()) + 1) // NUM_BINS)
    bins = places // width
    totals = values.new_zeros(int(bins.max()) + 1).index_add_(0, bins, values)
    counts = torch.bincount(bins, minlength=len(totals))
    return tuple(width * i for i in range(len(totals))), tuple((totals / counts).tolist())


@dataclass(frozen=True, slots=True)
class Routing:
    """Engine's experts beside the trainer's. by_layer: share of tokens whose sets differ, by absolute layer id ·
    missing: share of tokens without a route · chance_layers: layers that agree no better than chance."""

    by_layer: dict[int, float]
    any_layer: float
    missing: float
    chance_layers: tuple[int, ...]


def routing(measured: Measurement, trainer: OldPolicy, *, floor: float) -> Routing | None:
    """The trainer's own choice in the given pass. floor: metrics.min_route_overlap."""
    seen = None if trainer.routes is None else compared(measured.rollouts, trainer.routes)
    if seen is None or trainer.routes is None:
        return None
    differs = (seen.shared < seen.k).double()
    chance = seen.k / trainer.routes.num_experts
    overlaps = (seen.shared.double() / seen.k).mean(0).tolist()
    by_chance = [
        layer for layer, share in zip(seen.layers, overlaps, strict=True) if share < chance + floor * (1 - chance)
    ]
    return Routing(
        by_layer=dict(zip(seen.layers, differs.mean(0).tolist(), strict=True)),
        any_layer=float(differs.amax(1).mean()),
        missing=float(seen.missing.double().mean()),
        chance_layers=tuple(by_chance),
    )
