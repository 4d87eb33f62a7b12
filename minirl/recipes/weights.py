"""The importance weight of an arm, as the stacks divide it: staleness in the PPO ratio, discrepancy beside it."""

from __future__ import annotations

from dataclasses import dataclass

from minirl.config import Config, FactorConfig, Level, Outside
from minirl.recipes.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Correction:
    """What multiplies the loss for pi_old / mu: its level (token or sequence), its bounds, and whether a weight outside
    of them is zeroed (or clamped)."""

    level: Level
    low: float | None
    high: float | None
    zeroed: bool


def correction(config: Config, recipe: Recipe) -> Correction | None:
    """The discrepancy factor with the bounds that apply to it; None: the arm does not correct for it.

    All stacks bound pi_old / mu alone. MiniRL bounds the product with pi_theta / pi_old: that is said, and its bound is
    given to the factor, which is the same while nothing is stale (num_mini_batches=1).
    """
    factor, product = config.algo.is_weight.discrepancy, config.algo.is_weight.product
    bounded = product.low is not None or product.high is not None
    if factor.level == Level.none:
        if bounded:
            _say_product(config, recipe, "dropped: there is no discrepancy factor to put it on")
        return None
    if factor.level == Level.geometric:
        recipe.cannot("the geometric mean of pi_old / mu as a weight: no weight is applied")
        return None
    if not bounded:
        return Correction(factor.level, factor.low, factor.high, factor.outside == Outside.zero)
    if factor.low is not None or factor.high is not None:
        _say_product(config, recipe, "dropped: the factor has bounds of its own")
        return Correction(factor.level, factor.low, factor.high, factor.outside == Outside.zero)
    _say_product(config, recipe, f"put on pi_old / mu per {factor.level}")
    return Correction(factor.level, product.low, product.high, product.outside == Outside.zero)


def _say_product(config: Config, recipe: Recipe, instead: str) -> None:
    product = config.algo.is_weight.product
    text = f"bounds [{product.low}, {product.high}] on the product pi_theta / mu are {instead}"
    if config.num_mini_batches == 1 and instead.startswith("put"):
        recipe.note(f"{text}: the same at num_mini_batches=1")
    else:
        recipe.cannot(text)


def has_no_bounds(factor: FactorConfig) -> bool:
    return factor.low is None and factor.high is None


def is_cispo(config: Config) -> bool:
    """A clamped staleness weight per token and nothing masked."""
    staleness = config.algo.is_weight.staleness
    clamped = not has_no_bounds(staleness) and staleness.outside == Outside.clamp
    return staleness.level == Level.token and clamped and config.algo.trust_region.kind == "none"


def is_whole(config: Config) -> bool:
    """One weight pi_theta / mu, per token or of the response, bounded as a whole if at all, and nothing masked."""
    weight = config.algo.is_weight
    unbounded = has_no_bounds(weight.staleness) and has_no_bounds(weight.discrepancy)
    one_level = weight.staleness.level == weight.discrepancy.level in (Level.token, Level.sequence)
    return one_level and unbounded and config.algo.trust_region.kind == "none"
