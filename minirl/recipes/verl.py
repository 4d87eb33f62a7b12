"""verl 0.9.1: overrides of verl/trainer/config/ppo_trainer.yaml (FSDP) or ppo_megatron_trainer.yaml (replay)."""

from __future__ import annotations

from minirl.config import (
    Advantage,
    AggregationKind,
    Anchor,
    Config,
    GroupFilter,
    Level,
    Outside,
    Region,
    Routing,
    Truncated,
)
from minirl.recipes.recipe import (
    OFF,
    VANISHING,
    Recipe,
    leave_one_out_note,
    max_norm,
    num_batches,
    prompts_per_batch,
    written,
)
from minirl.recipes.weights import Correction, correction, has_no_bounds, is_cispo, is_whole

VERSION = "0.9.1"
ACTOR, ROLLOUT, CORRECTION = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "algorithm.rollout_correction."
AGGREGATIONS = {
    AggregationKind.seq_mean_token_sum: "seq-mean-token-sum",
    AggregationKind.seq_mean_token_mean: "seq-mean-token-mean",
    AggregationKind.token_mean: "token-mean",
    AggregationKind.token_sum_norm: "seq-mean-token-sum-norm",
}
REJECTIONS = {Level.token: "token_k1", Level.sequence: "seq_sum_k1", Level.geometric: "seq_mean_k1"}


def recipe(config: Config) -> Recipe:
    """The arm in verl's words."""
    parts = (_sizes, _advantage, _weight, _region, _rejection, _aggregation, _routing, _optimizer)
    return written("verl", VERSION, config, parts)


def _sizes(config: Config, made: Recipe) -> None:
    made.set(
        {
            "data.train_batch_size": prompts_per_batch(config),
            "data.max_response_length": config.sampling.max_response_tokens,
            "trainer.total_training_steps": num_batches(config),
            "trainer.test_freq": max(config.eval.every // config.num_mini_batches, 1),
        }
    )
    made.set({"ppo_mini_batch_size": config.prompts_per_mini_batch, "ppo_epochs": 1, "shuffle": False}, ACTOR)
    made.set(
        {
            "n": config.group_size,
            "temperature": config.sampling.temperature,
            "top_p": config.sampling.top_p,
            "top_k": config.sampling.top_k or -1,
            "response_length": config.sampling.max_response_tokens,
            "calculate_log_probs": True,
        },
        ROLLOUT,
    )


def _advantage(config: Config, made: Recipe) -> None:
    leave_one_out = config.algo.advantage == Advantage.leave_one_out
    made.set(
        {
            "adv_estimator": "rloo" if leave_one_out else "grpo",
            "norm_adv_by_std_in_grpo": config.algo.advantage == Advantage.group_mean_std,
            "use_kl_in_reward": False,
        },
        "algorithm.",
    )
    made.set({"use_kl_loss": False, "entropy_coeff": 0.0}, ACTOR)
    if leave_one_out:
        made.note(leave_one_out_note(config))


def _weight(config: Config, made: Recipe) -> None:
    staleness, product = config.algo.is_weight.staleness, config.algo.is_weight.product
    if is_whole(config):
        made.set({"bypass_mode": True, "loss_type": "reinforce"}, CORRECTION)
        made.note("bypass_mode takes mu for pi_old, so that the weight and its bounds are those of pi_theta / mu")
        _bounds(Correction(staleness.level, product.low, product.high, product.outside == Outside.zero), made)
        return
    if staleness.level == Level.sequence:
        made.cannot(
            "the product of pi_theta / pi_old over a response beside a trust region or a weight of another level"
        )
    found = correction(config, made)
    if found is None:
        made.set({"rollout_is": None}, CORRECTION)
    else:
        _bounds(found, made)


def _bounds(found: Correction, made: Recipe) -> None:
    """verl's threshold: one number clamps from above, `low_high` zeroes what is outside."""
    threshold: float | str = OFF if found.high is None else found.high
    if found.zeroed:
        threshold = f"{VANISHING if found.low is None else found.low:g}_{threshold:g}"
    elif found.low is not None:
        made.cannot(f"the lower clamp {found.low:g} of the weight: verl clamps from above only")
    if found.high is None:
        made.note(f"rollout_is_threshold={OFF:g} stands for no bound; verl clamps log ratios at 20 in any case")
    made.set(
        {"rollout_is": str(found.level), "rollout_is_threshold": threshold, "rollout_is_batch_normalize": False},
        CORRECTION,
    )


def _region(config: Config, made: Recipe) -> None:
    region, staleness = config.algo.trust_region, config.algo.is_weight.staleness
    if is_whole(config):
        return
    if is_cispo(config):
        low = 1.0 if staleness.low is None else 1 - staleness.low
        high = OFF if staleness.high is None else staleness.high - 1
        made.set({"policy_loss.loss_mode": "cispo", "clip_ratio_low": low, "clip_ratio_high": high}, ACTOR)
        made.note("verl writes the bounds of CISPO as offsets from 1")
    elif staleness.level == Level.none and region.kind == Region.none:
        made.set({"policy_loss.loss_mode": "gpg"}, ACTOR)
    elif region.kind in (Region.none, Region.ratio):
        _ratio(config, made)
    elif region.kind == Region.soft:
        taus = {"tau_pos": region.tau_positive, "tau_neg": region.tau_negative}
        made.set({"policy_loss.loss_mode": "sapo"} | taus, ACTOR)
    else:
        _divergence(config, made)
    if not has_no_bounds(staleness) and not is_cispo(config):
        made.cannot(f"bounds [{staleness.low}, {staleness.high}] on pi_theta / pi_old beside the trust region")


def _ratio(config: Config, made: Recipe) -> None:
    """PPO's clip; none is bounds that never bind, whose gradient is the ratio times A grad log pi all the same."""
    region = config.algo.trust_region
    mode = "gspo" if region.level == Level.geometric else "vanilla"
    low, high = (OFF, OFF) if region.kind == Region.none else (region.low, region.high)
    dual = OFF if region.dual is None else region.dual
    bounds = {"clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": dual}
    made.set({"policy_loss.loss_mode": mode} | bounds, ACTOR)
    if region.kind == Region.none:
        made.note(f"clip_ratio_low and clip_ratio_high of {OFF:g} stand for no trust region")
    if region.kind == Region.ratio and region.anchor == Anchor.mu:
        made.set({"bypass_mode": True, "loss_type": "ppo_clip"}, CORRECTION)
        made.note("bypass_mode takes mu for pi_old: the clip is anchored at mu, and its ratio is the whole weight")
    if region.kind == Region.ratio and region.level == Level.sequence:
        made.cannot("a trust region on the product of the ratios: verl clips per token or on their geometric mean")


def _divergence(config: Config, made: Recipe) -> None:
    region, product = config.algo.trust_region, config.algo.is_weight.product
    mode = "dppo_tv" if region.kind == Region.tv else "dppo_kl"
    made.set({"policy_loss.loss_mode": mode, "clip_ratio_low": region.delta, "clip_ratio_high": region.delta}, ACTOR)
    made.set({"clip_ratio_c": OFF if product.high is None else product.high}, ACTOR)
    if region.anchor == Anchor.mu:
        made.cannot("the anchor mu of the divergence: verl measures it from pi_old")


def _rejection(config: Config, made: Recipe) -> None:
    reject = config.algo.reject
    if reject.level != Level.none:
        low, high = reject.low or VANISHING, reject.high or OFF
        options = {"rollout_rs": REJECTIONS[reject.level], "rollout_rs_threshold": f"{low:g}_{high:g}"}
        made.set(options, CORRECTION)
        if reject.counted:
            made.cannot("rejected responses that stay in the denominator (reject.counted): verl takes their tokens out")
    if reject.groups == GroupFilter.mixed:
        made.set({"algorithm.filter_groups.enable": True})
        made.cannot("a batch that shrinks where groups are filtered: verl samples others instead")
    if reject.truncated == Truncated.drop:
        made.cannot("truncated responses left out of the loss (reject.truncated=drop)")


def _aggregation(config: Config, made: Recipe) -> None:
    aggregation = config.algo.aggregation
    if aggregation.kind not in AGGREGATIONS:
        made.cannot(f"aggregation {aggregation.kind}: token-mean, over the batch, is written instead")
    made.set({"loss_agg_mode": AGGREGATIONS.get(aggregation.kind, "token-mean")}, ACTOR)
    if aggregation.kind == AggregationKind.token_sum_norm:
        made.set({"loss_scale_factor": aggregation.length}, ACTOR)
    if aggregation.scale != 1.0:
        made.cannot(f"aggregation.scale={aggregation.scale:g}, a constant on the loss")


def _routing(config: Config, made: Recipe) -> None:
    if config.algo.routing == Routing.live:
        return
    made.set({"megatron.router_replay.mode": str(config.algo.routing).upper()}, ACTOR)
    made.note("routing replay needs the Megatron trainer: merge this into ppo_megatron_trainer.yaml")
    if config.algo.routing == Routing.r3:
        made.set({"enable_rollout_routing_replay": True}, ROLLOUT)


def _optimizer(config: Config, made: Recipe) -> None:
    optim, norm = config.train.optim, max_norm(config)
    made.set(
        {"lr": optim.lr, "betas": [optim.beta1, optim.beta2], "weight_decay": optim.weight_decay}, f"{ACTOR}optim."
    )
    warmup = -(-optim.warmup_updates // config.num_mini_batches)
    made.set({"lr_warmup_steps": warmup, "clip_grad": OFF if norm is None else norm}, f"{ACTOR}optim.")
    if config.algo.routing == Routing.live:  # Megatron's optimizer has other names for these
        made.set({"lr_scheduler_type": "constant"}, f"{ACTOR}optim.")
        made.set({"override_optimizer_config": {"eps": optim.eps}}, f"{ACTOR}optim.")
    else:
        made.set({"lr_decay_style": "constant"}, f"{ACTOR}optim.")
        made.note(f"Adam's eps={optim.eps:g} is Megatron's adam_eps, in override_optimizer_config")
    if config.num_mini_batches > 1:
        made.note("verl's learning rate moves once per rollout batch: lr_warmup_steps are batches")
    if norm is None:
        made.note(f"clip_grad={OFF:g} stands for no gradient clipping")
