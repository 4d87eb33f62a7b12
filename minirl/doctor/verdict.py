"""What the figures mean, in words, beside what others have measured.

References: arXiv 2512.01374 (FP8 rollouts, BF16 training: k1 3.5e-3 at the start, 1e-2 is trouble without replay);
arXiv 2510.11370 (k3 1.5e-3 on Qwen3-30B-A3B, 7.5e-4 with R3; about 10 % of (token, layer) choices differ; tokens with
a ratio beyond 2: below 1e-4 in health, above 0.1 at collapse); Miles (k3 1e-5 to 1e-3 dense, 1e-3 to 1e-1 MoE).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from minirl.agreement import explained
from minirl.config import Config, Numerics
from minirl.doctor.gap import Gap, Routing

# (healthy up to, alarming from) by kind of model
K3 = {"dense": (1e-3, 1e-2), "MoE": (1e-2, 1e-1)}
K1 = (3.5e-3, 1e-2)
EXTREME = (1e-4, 0.1)
DISAGREEMENT = 0.1
ROUNDING = 1e-4  # largest |d| of two fp32 computations of one function on the same experts, nats


class Level(IntEnum):
    healthy = 0
    watch = 1
    unhealthy = 2


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """All that was measured. replayed and routing are None for a dense model; num_invalid: responses with a
    log-probability that is not finite."""

    live: Gap
    replayed: Gap | None
    routing: Routing | None
    num_invalid: int
    num_responses: int


def findings(config: Config, seen: Picture) -> list[Finding]:
    """What is worth saying, in the order of the table."""
    return [
        *_validity(config, seen),
        *_sizes(seen),
        *_routes(seen),
        *_replay(config, seen),
    ]


def overall(found: list[Finding]) -> Level:
    return max((each.level for each in found), default=Level.healthy)


def _graded(value: float, bounds: tuple[float, float]) -> Level:
    return Level.healthy if value <= bounds[0] else Level.watch if value < bounds[1] else Level.unhealthy


def _validity(config: Config, seen: Picture) -> Iterator[Finding]:
    if seen.num_invalid:
        share = f"{seen.num_invalid} of {seen.num_responses} responses"
        yield Finding(Level.unhealthy, f"{share} have log-probabilities that are not finite: they cannot be trained on")
    bound = explained(config)
    if seen.live.mean > bound:
        yield Finding(
            Level.unhealthy,
            f"mean |d| of {seen.live.mean:.2g} is beyond the {bound} nats that the numerics explain: the engine does "
            "not hold the trainer's weights, or reports another distribution; a run would stop at its first step",
        )


def _sizes(seen: Picture) -> Iterator[Finding]:
    live, kind = seen.live, "dense" if seen.routing is None else "MoE"
    low, high = K3[kind]
    yield Finding(
        _graded(live.k3, (low, high)),
        f"k3 of {live.k3:.2g} nats per token: {kind} models are seen in health up to {low:g}, in trouble from {high:g}",
    )
    yield Finding(
        _graded(abs(live.k1), K1),
        f"k1 of {live.k1:.2g}: {K1[0]:g} is where FP8 rollouts with BF16 training start, {K1[1]:g} is trouble "
        "without replay",
    )
    # a single token in fewer than 10,000 says nothing against health
    alone = live.extreme * live.num_tokens < 1.5
    level = Level.healthy if alone else _graded(live.extreme, EXTREME)
    yield Finding(
        level,
        f"{live.extreme:.2%} of {live.num_tokens} tokens are extreme: below {EXTREME[0]:.2%} in health, above "
        f"{EXTREME[1]:.0%} at collapse",
    )


def _routes(seen: Picture) -> Iterator[Finding]:
    if seen.routing is None:
        return
    if seen.routing.chance_layers:
        layers = ", ".join(map(str, seen.routing.chance_layers))
        yield Finding(
            Level.unhealthy,
            f"layers {layers} agree no better than chance: these routes belong to other tokens or layers",
        )
    if seen.routing.missing > 0:
        yield Finding(
            Level.watch,
            f"{seen.routing.missing:.2%} of the tokens have no route from the engine (algo.routing_missing)",
        )
    shares = seen.routing.by_layer.values()
    mean = sum(shares) / len(shares)
    yield Finding(
        Level.healthy if mean <= DISAGREEMENT else Level.watch,
        f"engine and trainer choose other experts for {mean:.2%} of (token, layer), {seen.routing.any_layer:.2%} of "
        f"tokens meet it in some layer: about {DISAGREEMENT:.0%} of (token, layer) on Qwen3-30B-A3B",
    )


def _replay(config: Config, seen: Picture) -> Iterator[Finding]:
    """What is left once the experts are the same."""
    best = seen.live if seen.replayed is None else seen.replayed
    exact = config.engine.numerics is Numerics.fp32 and config.train.compute_dtype == "float32"
    if exact:
        same = best.largest <= ROUNDING
        yield Finding(
            Level.healthy if same else Level.unhealthy,
            f"largest |d| of {best.largest:.2g} on equal experts: in fp32 both compute one function, to rounding"
            if same
            else f"largest |d| of {best.largest:.2g} on equal experts, though both compute in fp32: expected at most "
            f"{ROUNDING:g}; something other than rounding differs",
        )
    if seen.replayed is None or seen.live.k3 == 0 or seen.replayed.k3 == 0:
        return
    factor = seen.live.k3 / seen.replayed.k3
    if factor >= 2:
        text = f"R3 lowers k3 {factor:.3g} times: most of the gap is routing, and algo.routing=r3 removes it"
    else:
        text = f"R3 changes k3 by a factor of {1 / factor:.2g}: the gap is arithmetic rather than routing"
    yield Finding(Level.healthy, text)
