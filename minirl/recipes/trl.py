"""TRL 1.16.0: fields of GRPOConfig, for one process (`GRPOConfig(**options)`, or `trl grpo --config FILE`)."""

from __future__ import annotations

from minirl.config import Advantage, AggregationKind, Anchor, Config, GroupFilter, Level, Region, Routing, Truncated
from minirl.recipes.recipe import (
    OFF,
    Recipe,
    leave_one_out_note,
    max_norm,
    responses_per_update,
    written,
)
from minirl.recipes.weights import correction, has_no_bounds, is_cispo

VERSION = "1.16.0"
AGGREGATIONS = {
    AggregationKind.seq_mean_token_mean: "grpo",
    AggregationKind.token_mean: "dapo",
    AggregationKind.token_sum_norm: "dr_grpo",
    AggregationKind.seq_mean_token_sum: "dr_grpo",
}


def recipe(config: Config) -> Recipe:
    """The arm in TRL's words."""
    parts = (_sizes, _advantage, _weight, _region, _aggregation, _rejection, _optimizer, _routing)
    return written("TRL", VERSION, config, parts)


def _sizes(config: Config, made: Recipe) -> None:
    made.set(
        {
            "per_device_train_batch_size": config.group_size,
            "gradient_accumulation_steps": config.prompts_per_mini_batch,
            "generation_batch_size": responses_per_update(config) * config.num_mini_batches,
            "num_generations": config.group_size,
            "num_iterations": 1,
            "max_steps": config.num_updates,
            "max_completion_length": config.sampling.max_response_tokens,
            "temperature": config.sampling.temperature,
            "top_p": config.sampling.top_p,
            "top_k": config.sampling.top_k,
            "num_generations_eval": config.eval.num_samples,
            "shuffle_dataset": True,
            "seed": config.seed,
            "use_vllm": True,
            "beta": 0.0,
        }
    )
    made.note("batch sizes are those of one process: divide gradient_accumulation_steps by the number of processes")


def _advantage(config: Config, made: Recipe) -> None:
    with_std = config.algo.advantage == Advantage.group_mean_std
    made.set({"scale_rewards": "group" if with_std else "none"})
    if with_std:
        made.note("TRL adds 1e-4 to the deviation of a group, minirl 1e-6")
    if config.algo.advantage == Advantage.leave_one_out:
        made.note(leave_one_out_note(config))


def _weight(config: Config, made: Recipe) -> None:
    reject = config.algo.reject
    found = correction(config, made)
    if found is None:
        made.set({"vllm_importance_sampling_correction": False})
        return
    low, high, zeroed = found.low, found.high, found.zeroed
    if drops_by_weight(config):
        low, high, zeroed = reject.low, reject.high, True
    if low is None and high is None:
        high = OFF
        made.note(f"vllm_importance_sampling_clip_max={OFF:g} stands for no bound, which TRL does not take")
    made.set(
        {
            "vllm_importance_sampling_correction": True,
            "vllm_importance_sampling_mode": f"{found.level}_{'mask' if zeroed else 'truncate'}",
            "vllm_importance_sampling_clip_max": high,
            "vllm_importance_sampling_clip_min": low,
        }
    )


def drops_by_weight(config: Config) -> bool:
    """Responses rejected by their sequence weight, and counted: a sequence weight that is zeroed says the same."""
    reject, factor = config.algo.reject, config.algo.is_weight.discrepancy
    return reject.level == Level.sequence == factor.level and reject.counted and has_no_bounds(factor)


def _region(config: Config, made: Recipe) -> None:
    region, staleness = config.algo.trust_region, config.algo.is_weight.staleness
    if is_cispo(config):
        made.set({"epsilon_high": OFF if staleness.high is None else staleness.high})
        made.note("TRL writes the bound of CISPO as the cap itself")
        if staleness.low is not None:
            made.cannot(f"the lower clamp {staleness.low:g} of pi_theta / pi_old: TRL's CISPO clamps from above only")
        return
    _level(config, made)
    if region.kind == Region.soft:
        made.set({"sapo_temperature_pos": region.tau_positive, "sapo_temperature_neg": region.tau_negative})
    elif region.kind in (Region.tv, Region.kl):
        made.cannot(
            f"a trust region by {region.kind} (delta {region.delta}): GRPOConfig clips ratios; nothing is masked"
        )
        made.set({"epsilon": OFF, "epsilon_high": OFF})
    elif region.kind == Region.none:
        made.set({"epsilon": OFF, "epsilon_high": OFF})
        made.note(f"epsilon and epsilon_high of {OFF:g} stand for no trust region")
    else:
        made.set({"epsilon": region.low, "epsilon_high": region.high, "delta": region.dual})
        if region.anchor == Anchor.mu:
            made.cannot("the anchor mu of the trust region: TRL clips pi_theta / pi_old")
    if not has_no_bounds(staleness):
        made.cannot(f"bounds [{staleness.low}, {staleness.high}] on pi_theta / pi_old beside the trust region")


def _level(config: Config, made: Recipe) -> None:
    """The level of the ratio; a staleness factor that is left out is 1 only where nothing is stale."""
    region, level = config.algo.trust_region, config.algo.is_weight.staleness.level
    geometric = level == Level.geometric or (region.kind == Region.ratio and region.level == Level.geometric)
    made.set({"importance_sampling_level": "sequence" if geometric else "token"})
    if level == Level.sequence:
        made.cannot("the product of pi_theta / pi_old over a response as a weight: TRL has it per token or as a mean")
    if level == Level.none and config.num_mini_batches > 1:
        made.cannot("no staleness factor: TRL's ratio pi_theta / pi_old is part of its loss")


def _aggregation(config: Config, made: Recipe) -> None:
    aggregation = config.algo.aggregation
    loss = AGGREGATIONS.get(aggregation.kind, "dapo")
    if aggregation.kind not in AGGREGATIONS:
        made.cannot(f"aggregation {aggregation.kind}: the token mean over the batch is written instead")
    special = "cispo" if is_cispo(config) else "sapo" if config.algo.trust_region.kind == Region.soft else None
    own = {"cispo": AggregationKind.token_mean, "sapo": AggregationKind.seq_mean_token_mean}
    if special is not None and aggregation.kind != own[special]:
        made.cannot(f"aggregation {aggregation.kind}: TRL's {special} always takes {own[special]}")
    made.set({"loss_type": special or loss})
    if aggregation.scale != 1.0:
        made.cannot(f"aggregation.scale={aggregation.scale:g}, a constant on the loss")


def _constant(config: Config) -> float:
    """By what the loss written here is smaller than the arm's: dr_grpo divides by max_completion_length."""
    aggregation, length = config.algo.aggregation, config.sampling.max_response_tokens
    if is_cispo(config) or config.algo.trust_region.kind == Region.soft:
        return 1.0
    if aggregation.kind == AggregationKind.seq_mean_token_sum:
        return float(length)
    if aggregation.kind == AggregationKind.token_sum_norm:
        return length / float(aggregation.length or length)
    return 1.0


def _rejection(config: Config, made: Recipe) -> None:
    reject = config.algo.reject
    if reject.level != Level.none and not drops_by_weight(config):
        made.cannot(f"rejection of responses by their {reject.level} ratio [{reject.low}, {reject.high}]")
    if reject.groups == GroupFilter.mixed:
        made.cannot("the filter of groups that teach nothing: their advantages are 0, but their tokens are counted")
    made.set({"mask_truncated_completions": reject.truncated == Truncated.drop})


def _optimizer(config: Config, made: Recipe) -> None:
    optim, norm, constant = config.train.optim, max_norm(config), _constant(config)
    made.set(
        {
            "learning_rate": optim.lr,
            "adam_beta1": optim.beta1,
            "adam_beta2": optim.beta2,
            "adam_epsilon": optim.eps / constant,
            "weight_decay": optim.weight_decay,
            "warmup_steps": optim.warmup_updates,
            "lr_scheduler_type": "constant_with_warmup" if optim.warmup_updates else "constant",
            "max_grad_norm": 0.0 if norm is None else norm / constant,
        }
    )
    if constant != 1.0:
        made.note(
            f"the loss is the arm's divided by {constant:g}: max_grad_norm and adam_epsilon are divided too, so that "
            "every Adam step is the same"
        )


def _routing(config: Config, made: Recipe) -> None:
    if config.algo.routing != Routing.live:
        made.cannot(f"routing replay {config.algo.routing}: GRPOTrainer has none")
