"""Rules of the six choices: keys that a choice does not use, bounds that bound nothing, switches that are inert."""

from __future__ import annotations

from collections.abc import Iterator

from minirl.config import (
    AggregationConfig,
    AggregationKind,
    AlgoConfig,
    Anchor,
    FactorConfig,
    IsWeightConfig,
    Level,
    ProductConfig,
    Region,
    RejectConfig,
    Routing,
    TrustRegionConfig,
)

# which keys of a trust region each kind reads; `dual` is an option of ratio
REGION_KEYS: dict[Region, tuple[str, ...]] = {
    Region.none: (),
    Region.ratio: ("low", "high"),
    Region.tv: ("delta",),
    Region.kl: ("delta",),
    Region.soft: ("tau_positive", "tau_negative"),
}


def algorithm_problems(algo: AlgoConfig) -> Iterator[str]:
    """One line per broken rule."""
    yield from _weights(algo.is_weight)
    yield from _trust_region(algo.trust_region)
    yield from _rejection(algo.reject)
    yield from _aggregation(algo.aggregation)


def _bounds(key: str, part: FactorConfig | ProductConfig | RejectConfig) -> Iterator[str]:
    low, high = part.low, part.high
    if low is not None and low < 0:
        yield f"{key}.low={low}: a ratio is never negative, expected at least 0 or null"
    if high is not None and high <= 0:
        yield f"{key}.high={high}: expected a positive ratio or null"
    if low is not None and high is not None and low > high:
        yield f"{key}.low={low} is above {key}.high={high}"


def _weights(weight: IsWeightConfig) -> Iterator[str]:
    for name, factor in (("staleness", weight.staleness), ("discrepancy", weight.discrepancy)):
        key = f"algo.is_weight.{name}"
        yield from _bounds(key, factor)
        if factor.level is Level.none and not (factor.low is None and factor.high is None):
            yield f"{key}.level=none leaves nothing to bound: set {key}.low=null {key}.high=null, or choose a level"
    yield from _bounds("algo.is_weight.product", weight.product)
    no_factor = weight.staleness.level is Level.none and weight.discrepancy.level is Level.none
    if no_factor and not (weight.product.low is None and weight.product.high is None):
        yield (
            "algo.is_weight: both levels are none, so the product is 1 and there is nothing to bound: set "
            "algo.is_weight.product.low=null algo.is_weight.product.high=null"
        )


def _trust_region(region: TrustRegionConfig) -> Iterator[str]:
    key, used = "algo.trust_region", REGION_KEYS[region.kind]
    for name in ("low", "high", "delta", "tau_positive", "tau_negative", "dual"):
        value = getattr(region, name)
        if name in used and value is None:
            yield f"{key}.{name}=null: {key}.kind={region.kind} needs a number"
        elif value is not None and name not in used and not (name == "dual" and region.kind is Region.ratio):
            choice = "; or choose algo=minirl_no_clip" if region.kind is Region.none else ""
            yield f"{key}.{name}={value}: {key}.kind={region.kind} does not use it, set {key}.{name}=null{choice}"
        elif value is not None and (value < 0 if name in ("low", "high") else value <= 0):
            yield f"{key}.{name}={value}: expected a positive number"
    if region.kind is Region.none:
        return
    if region.low is not None and region.low > 1:
        yield f"{key}.low={region.low}: it is taken off 1, expected at most 1"
    if region.dual is not None and region.dual <= 1:
        yield f"{key}.dual={region.dual}: it caps ratios above 1, expected more than 1"
    if region.kind in (Region.tv, Region.kl) and region.level is not Level.token:
        yield f"{key}.level={region.level}: {key}.kind={region.kind} is a divergence per token, use level=token"
    elif region.level is Level.none:
        yield f"{key}.level=none leaves nothing to bound: use {key}.kind=none (algo=minirl_no_clip)"


def _rejection(reject: RejectConfig) -> Iterator[str]:
    bounded = not (reject.low is None and reject.high is None)
    yield from _bounds("algo.reject", reject)
    if reject.level is Level.none and bounded:
        yield "algo.reject.level=none has no ratio to bound: set algo.reject.low=null algo.reject.high=null"
    if reject.level is not Level.none and not bounded:
        yield f"algo.reject.level={reject.level} without algo.reject.low or algo.reject.high rejects nothing"


def _aggregation(part: AggregationConfig) -> Iterator[str]:
    if part.kind is AggregationKind.token_sum_norm and (part.length is None or part.length < 1):
        yield f"algo.aggregation.length={part.length}: kind=token_sum_norm divides by it, set a number of tokens"
    if part.kind is not AggregationKind.token_sum_norm and part.length is not None:
        yield f"algo.aggregation.length={part.length}: kind={part.kind} does not use it, set it to null"
    if part.scale <= 0:
        yield f"algo.aggregation.scale={part.scale}: expected a positive factor"


def algorithm_notes(algo: AlgoConfig, num_mini_batches: int) -> Iterator[str]:
    """What is allowed and yet worth knowing."""
    region, staleness = algo.trust_region, algo.is_weight.staleness
    if num_mini_batches == 1:
        if algo.routing is Routing.r2:
            yield "algo.routing=r2 is live at num_mini_batches=1: the replayed choice is the one just made"
        if region.kind is not Region.none and region.anchor is Anchor.old:
            yield "the trust region is inert at num_mini_batches=1: pi_theta is pi_old when its gradient is taken"
        if staleness.level is not Level.none:
            yield "the staleness factor is 1 at num_mini_batches=1"
    elif staleness.level is Level.none:
        yield (
            f"uncorrected off-policy: algo.is_weight.staleness.level=none with num_mini_batches={num_mini_batches}, so "
            "all but the first update of a batch use data of an older policy as if it were their own"
        )
    if algo.routing is Routing.r3:
        yield "algo.routing=r3 measures mismatch/* on replayed routes, so it falls by construction: see mismatch_live/*"
