"""prime-rl: the [trainer] tables of its TOML, whose default loss is DPPO with a squared log ratio as regulariser.

The schema moves; the names here are those of packages/prime-rl-configs/src/prime_rl/configs/trainer.py at VERSION.
"""

from __future__ import annotations

from minirl.config import Advantage, AggregationKind, Anchor, Config, GroupFilter, Level, Region, Routing, Truncated
from minirl.recipes.recipe import (
    Recipe,
    has_unbounded_product,
    max_norm,
    num_batches,
    responses_per_update,
    written,
)
from minirl.recipes.weights import has_no_bounds

VERSION = "commit 12c8516875ad"


def recipe(config: Config) -> Recipe:
    """The arm in prime-rl's words: exact for DPPO with token means, and said to be another method for the rest."""
    return written("prime-rl", VERSION, config, (_sizes, _loss, _weight, _rest, _optimizer))


def _sizes(config: Config, made: Recipe) -> None:
    made.set({"trainer.max_steps": num_batches(config), "trainer.max_async_level": 0})
    rollouts = f"{responses_per_update(config)} rollouts a batch, {config.group_size} a problem"
    sampling = f"temperature {config.sampling.temperature:g}, {config.sampling.max_response_tokens} tokens"
    made.note(f"[orchestrator] has {rollouts}, {sampling}: set them there, the names differ between versions")


def _loss(config: Config, made: Recipe) -> None:
    region = config.algo.trust_region
    made.set({"type": "default", "adv_tau": 1.0, "teacher_tau": 0.0, "kl_tau": 0.0}, "trainer.loss.")
    delta = region.delta if region.kind == Region.tv else 1.0  # a difference of probabilities is never larger
    made.set({"dppo_mask_low": delta, "dppo_mask_high": delta}, "trainer.loss.")
    if region.kind == Region.none:
        made.note("thresholds of 1 stand for no trust region: no probability moves further")
    elif region.kind != Region.tv:
        made.cannot(
            f"a trust region by {region.kind}: prime-rl masks by the difference of probabilities, and here nothing; a "
            'loss of type "custom" may be your own'
        )
    elif region.anchor == Anchor.old:
        made.cannot("the anchor pi_old of the divergence: prime-rl measures it from mu")


def _weight(config: Config, made: Recipe) -> None:
    weight = config.algo.is_weight
    whole = weight.staleness.level == weight.discrepancy.level == Level.token
    if not whole:
        levels = f"staleness {weight.staleness.level}, discrepancy {weight.discrepancy.level}"
        made.cannot(f"the importance weight ({levels}): prime-rl's is pi_theta / mu per token")
    if not (has_no_bounds(weight.staleness) and has_no_bounds(weight.discrepancy) and has_unbounded_product(config)):
        made.cannot("bounds on the importance weight: prime-rl's has none")


def _rest(config: Config, made: Recipe) -> None:
    algo = config.algo
    if config.num_mini_batches > 1:
        made.cannot(f"{config.num_mini_batches} updates on one rollout batch: prime-rl makes one update a step")
    if algo.advantage != Advantage.group_mean:
        made.cannot(f"advantage {algo.advantage}: prime-rl's is the reward minus the mean of its group")
    if algo.aggregation.kind != AggregationKind.token_mean or algo.aggregation.scale != 1.0:
        made.cannot(f"aggregation {algo.aggregation.kind}: prime-rl takes the mean over all tokens of the batch")
    if algo.reject.level != Level.none or algo.reject.truncated == Truncated.drop:
        made.cannot("rejection of responses by their ratio or for being cut")
    if algo.reject.groups == GroupFilter.mixed:
        made.cannot(
            "the filter of groups that teach nothing is the orchestrator's, under a name that its version decides"
        )
    if algo.routing == Routing.r3:
        made.set({"trainer.enable_router_replay": True})
        made.note("router replay needs enable_return_routed_experts in [inference] too")
    if algo.routing == Routing.r2:
        made.cannot("R2: prime-rl replays the engine's routes only")


def _optimizer(config: Config, made: Recipe) -> None:
    optim, norm = config.train.optim, max_norm(config)
    made.set(
        {
            "type": "adamw",
            "lr": optim.lr,
            "betas1": optim.beta1,
            "betas2": optim.beta2,
            "weight_decay": optim.weight_decay,
        },
        "trainer.optim.",
    )
    if norm is None:
        made.cannot("no gradient clipping: TOML has no null for optim.max_norm; its default of 1.0 holds")
    else:
        made.set({"trainer.optim.max_norm": norm})
    if optim.warmup_updates:
        warmup = {"type": "linear", "warmup_steps": optim.warmup_updates, "decay_steps": 0}
        made.set(warmup, "trainer.scheduler.")
    else:
        made.set({"trainer.scheduler.type": "constant"})
    made.cannot(f"Adam's eps={optim.eps:g}: prime-rl leaves it at torch's")
