"""Do the engine's routes stand at the tokens and layers they belong to?

Routes of another token or layer look like routes: nothing but the overlap with the trainer's own choice on the same
weights tells. Each layer of the trainer is compared with every layer of the engine, at the token and at its
neighbours; where a table was written one token late or one layer off, the overlap is high at that other place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from minirl.metrics.routing import routes_needed
from minirl.types import OldPolicy, RolloutBatch, Routes
from minirl.world import World

OFFSETS = (0, -1, 1)  # from the trainer's token to the engine's row, within a sequence
MAX_TOKENS = 1024  # compared on each rank: an overlap is then known to 0.03

MOST_NAMED = 6  # layers in the message


class DisplacedRoutes(RuntimeError):
    """The engine's routes are not those of the tokens and layers they are written at."""


def overlaps(engine: Routes, trainer: Routes, cu_seqlens: Tensor) -> Tensor:
    """sum_t |engine's experts at t + offset and trainer's at t| / k, and how many t: float64 [L, 3, J + 1], for each
    of the trainer's L layers, each of OFFSETS and each of the engine's J layers; the count comes last."""
    total = torch.zeros(len(trainer.layers), len(OFFSETS), len(engine.layers) + 1, dtype=torch.float64)
    sequence = torch.repeat_interleave(cu_seqlens.diff())
    inputs = routes_needed(cu_seqlens) & trainer.present
    for place, offset in enumerate(OFFSETS):
        tokens = inputs.nonzero().squeeze(1)
        tokens = tokens[(tokens + offset >= 0) & (tokens + offset < len(sequence))]
        tokens = tokens[(sequence[tokens] == sequence[tokens + offset]) & engine.present[tokens + offset]][:MAX_TOKENS]
        ours, theirs = (_indicators(routes, rows) for routes, rows in ((trainer, tokens), (engine, tokens + offset)))
        total[:, place, :-1] = torch.einsum("tle,tje->lj", ours, theirs).double().cpu() / trainer.experts.shape[2]
        total[:, place, -1] = len(tokens)
    return total


def _indicators(routes: Routes, tokens: Tensor) -> Tensor:
    """[t, layers, num_experts] fp32: 1 where the expert is chosen."""
    experts = routes.experts[tokens].long()
    return torch.zeros(*experts.shape[:2], routes.num_experts, device=experts.device).scatter_(-1, experts, 1.0)


@dataclass(frozen=True, slots=True)
class Placement:
    """Of one decoder layer: its overlap in place, the highest one elsewhere (at the token `offset` further on in the
    engine's layer `elsewhere`), and the number of tokens."""

    layer: int
    here: float
    best: float
    offset: int
    elsewhere: int
    tokens: int

    def is_displaced(self, *, chance: float, floor: float) -> bool:
        """No better than chance in place, or clearly better elsewhere: `floor` is the share of the way to 1 that counts
        as more, beside what chance can do with so few tokens."""
        nowhere_near = self.here < chance + floor * (1 - chance)
        return nowhere_near or self.is_elsewhere(floor=floor)

    def is_elsewhere(self, *, floor: float) -> bool:
        return self.best - self.here > floor * (1 - self.here) + self.tokens**-0.5

    def in_words(self, *, floor: float) -> str:
        words = f"decoder layer {self.layer}: {self.here:.2f}"
        if not self.is_elsewhere(floor=floor):
            return words
        token = {0: "the same token", -1: "the token before (offset -1)", 1: "the token after (offset +1)"}[self.offset]
        layer = "" if self.elsewhere == self.layer else f" in layer {self.elsewhere}"
        return f"{words}, but {self.best:.2f} with the route of {token}{layer}"


def placements(total: Tensor, engine: Routes, trainer: Routes) -> Iterator[Placement]:
    """What the sums of `overlaps` say of each of the trainer's layers."""
    shares = total[..., :-1] / total[..., -1:].clamp(min=1)
    for row, layer in enumerate(trainer.layers):
        own = engine.layers.index(layer)
        others = shares[row].clone()
        others[0, own] = -1.0
        offset, elsewhere = divmod(int(others.argmax()), others.shape[1])
        yield Placement(
            layer=layer,
            here=float(shares[row, 0, own]),
            best=float(others.max()),
            offset=OFFSETS[offset],
            elsewhere=engine.layers[elsewhere],
            tokens=int(total[row, 0, -1]),
        )


def refuse_displaced_routes(rollouts: RolloutBatch, live: OldPolicy, *, floor: float, world: World) -> None:
    """Before the first update of a process, engine and trainer hold the same weights and agree on most experts.
    DisplacedRoutes where they do not, over the tokens of all ranks. live: routed by the trainer's own routers."""
    engine, trainer = rollouts.routes, live.routes
    if engine is None or trainer is None:
        return
    total = world.sum(overlaps(engine, trainer, rollouts.cu_seqlens)).cpu()
    chance = trainer.experts.shape[-1] / trainer.num_experts
    found = [one for one in placements(total, engine, trainer) if one.tokens]
    displaced = [one for one in found if one.is_displaced(chance=chance, floor=floor)]
    if displaced:
        words = "; ".join(one.in_words(floor=floor) for one in displaced[:MOST_NAMED])
        more = f"; and {len(displaced) - MOST_NAMED} more layers" if len(displaced) > MOST_NAMED else ""
        raise DisplacedRoutes(
            f"share of the trainer's experts that the engine's routes name too, by chance {chance:.2f}: {words}{more}. "
            f"These routes belong to other tokens or layers (metrics.min_route_overlap={floor})"
        )
