"""SkyRL 0.3.0: options of SkyRLTrainConfig (`python -m skyrl.train.entrypoints.main_base KEY=VALUE ...`)."""

from __future__ import annotations

from minirl.config import Advantage, AggregationKind, Anchor, Config, GroupFilter, Level, Region, Routing, Truncated
from minirl.recipes.recipe import (
    OFF,
    Recipe,
    has_unbounded_product,
    leave_one_out_note,
    max_norm,
    num_batches,
    prompts_per_batch,
    written,
)
from minirl.recipes.weights import correction, has_no_bounds, is_cispo

VERSION = "0.3.0"
ALGORITHM, POLICY = "trainer.algorithm.", "trainer.policy."
OFF_POLICY = f"{ALGORITHM}off_policy_correction."
AGGREGATIONS = {
    AggregationKind.token_mean: "token_mean",
    AggregationKind.seq_mean_token_mean: "sequence_mean",
    AggregationKind.group_token_mean: "prompt_mean",
    AggregationKind.token_sum_norm: "seq_mean_token_sum_norm",
    AggregationKind.seq_mean_token_sum: "seq_mean_token_sum_norm",
}


def recipe(config: Config) -> Recipe:
    """The arm in SkyRL's words."""
    parts = (_sizes, _advantage, _region, _weight, _rejection, _aggregation, _routing, _optimizer)
    return written("SkyRL", VERSION, config, parts)


def _sizes(config: Config, made: Recipe) -> None:
    made.set(
        {
            "train_batch_size": prompts_per_batch(config),
            "policy_mini_batch_size": config.prompts_per_mini_batch,
            "update_epochs_per_batch": 1,
            "max_training_steps": num_batches(config),
            "eval_interval": max(config.eval.every // config.num_mini_batches, 1),
            "seed": config.seed,
        },
        "trainer.",
    )
    made.set(
        {"n_samples_per_prompt": config.group_size, "eval_n_samples_per_prompt": config.eval.num_samples}, "generator."
    )
    made.set(
        {
            "max_generate_length": config.sampling.max_response_tokens,
            "temperature": config.sampling.temperature,
            "top_p": config.sampling.top_p,
            "top_k": config.sampling.top_k or -1,
            "logprobs": 1,
        },
        "generator.sampling_params.",
    )


def _advantage(config: Config, made: Recipe) -> None:
    leave_one_out = config.algo.advantage == Advantage.leave_one_out
    made.set(
        {
            "advantage_estimator": "rloo" if leave_one_out else "grpo",
            "grpo_norm_by_std": config.algo.advantage == Advantage.group_mean_std,
            "advantage_batch_normalize": False,
            "use_kl_loss": False,
            "use_kl_in_reward": False,
            "use_entropy_loss": False,
        },
        ALGORITHM,
    )
    if leave_one_out:
        made.note(leave_one_out_note(config))


def _region(config: Config, made: Recipe) -> None:
    region, staleness = config.algo.trust_region, config.algo.is_weight.staleness
    if is_cispo(config):
        low = 1.0 if staleness.low is None else 1 - staleness.low
        high = OFF if staleness.high is None else staleness.high - 1
        made.set(
            {"policy_loss_type": "cispo", "cispo.cispo_eps_clip_low": low, "cispo.cispo_eps_clip_high": high}, ALGORITHM
        )
        made.note("SkyRL writes the bounds of CISPO as offsets from 1")
        return
    if region.kind == Region.soft:
        taus = {"sapo.tau_pos": region.tau_positive, "sapo.tau_neg": region.tau_negative}
        made.set({"policy_loss_type": "sapo"} | taus, ALGORITHM)
    elif region.kind in (Region.tv, Region.kl):
        _divergence(config, made)
    else:
        _ratio(config, made)
    if not has_no_bounds(staleness):
        made.cannot(f"bounds [{staleness.low}, {staleness.high}] on pi_theta / pi_old beside the trust region")


def _ratio(config: Config, made: Recipe) -> None:
    region, level = config.algo.trust_region, config.algo.is_weight.staleness.level
    bounded = region.kind == Region.ratio
    kind = "gspo" if region.level == Level.geometric and bounded else "regular" if region.dual is None else "dual_clip"
    low, high = (region.low, region.high) if bounded else (OFF, OFF)
    made.set({"policy_loss_type": kind, "eps_clip_low": low, "eps_clip_high": high}, ALGORITHM)
    if region.dual is not None:
        made.set({"clip_ratio_c": region.dual}, ALGORITHM)
    if not bounded:
        made.note(f"eps_clip_low and eps_clip_high of {OFF:g} stand for no trust region")
    if bounded and region.anchor == Anchor.mu:
        made.cannot("the anchor mu of the trust region: SkyRL's PPO loss clips pi_theta / pi_old")
    if level == Level.sequence:
        made.cannot("the product of pi_theta / pi_old over a response as a weight: SkyRL has it per token or as a mean")
    if level == Level.none and config.num_mini_batches > 1:
        made.cannot("no staleness factor: the ratio pi_theta / pi_old is part of SkyRL's loss")


def _divergence(config: Config, made: Recipe) -> None:
    """DPPO's loss takes mu for both the ratio and the anchor, so that the weight is pi_theta / mu already."""
    region = config.algo.trust_region
    kind = "binary_tv" if region.kind == Region.tv else "binary_kl"
    deltas = {"dppo.delta_low": region.delta, "dppo.delta_high": region.delta}
    made.set({"policy_loss_type": "dppo", "dppo.dppo_type": kind} | deltas, ALGORITHM)
    if region.anchor == Anchor.old:
        made.cannot("the anchor pi_old of the divergence: SkyRL measures it from mu")
    if not has_unbounded_product(config):
        product = config.algo.is_weight.product
        made.cannot(f"bounds [{product.low}, {product.high}] on pi_theta / mu: SkyRL's DPPO has none")


def _weight(config: Config, made: Recipe) -> None:
    if config.algo.trust_region.kind in (Region.tv, Region.kl):
        made.set({"tis_ratio_type": None}, OFF_POLICY)
        return
    found = correction(config, made)
    if found is None:
        made.set({"tis_ratio_type": None}, OFF_POLICY)
        return
    high = OFF if found.high is None else found.high
    made.set({"tis_ratio_type": str(found.level), f"{found.level}_tis_ratio_clip_high": high}, OFF_POLICY)
    if found.high is None:
        made.note(f"a clip of {OFF:g} stands for no bound; SkyRL clamps log ratios at 20 in any case")
    if found.zeroed and found.level == Level.token:
        bounds = {"token_mask_is_threshold_low": found.low or 0.0, "token_mask_is_threshold_high": high}
        made.set(bounds, OFF_POLICY)
    elif found.zeroed:
        made.set(
            {"sequence_mask_metric": "product", "product_mask_low": found.low or 0.0, "product_mask_high": high},
            OFF_POLICY,
        )
    elif found.low is not None:
        made.cannot(f"the lower clamp {found.low:g} of pi_old / mu: SkyRL clamps from above only")


def _rejection(config: Config, made: Recipe) -> None:
    reject = config.algo.reject
    if reject.level in (Level.sequence, Level.geometric):
        metric, prefix = ("product", "product") if reject.level == Level.sequence else ("geometric", "geo")
        bounds = {
            f"{prefix}_mask_low": reject.low or 0.0,
            f"{prefix}_mask_high": OFF if reject.high is None else reject.high,
        }
        made.set({"sequence_mask_metric": metric} | bounds, OFF_POLICY)
        if not reject.counted:
            made.cannot("rejected responses that leave the denominator (reject.counted=false): SkyRL keeps them in it")
    elif reject.level == Level.token:
        made.cannot("rejection of single tokens beside a weight")
    made.set({"zero_variance_filter": reject.groups == GroupFilter.mixed}, ALGORITHM)
    made.set({"generator.apply_overlong_filtering": reject.truncated == Truncated.drop})


def _aggregation(config: Config, made: Recipe) -> None:
    aggregation = config.algo.aggregation
    made.set({"loss_reduction": AGGREGATIONS[aggregation.kind]}, ALGORITHM)
    if aggregation.kind == AggregationKind.token_sum_norm:
        made.set({"max_seq_len": aggregation.length}, ALGORITHM)
    if aggregation.kind == AggregationKind.seq_mean_token_sum:
        made.set({"max_seq_len": 1}, ALGORITHM)
        made.note("max_seq_len=1 turns seq_mean_token_sum_norm into the plain sum over tokens")
    if aggregation.scale != 1.0:
        made.cannot(f"aggregation.scale={aggregation.scale:g}, a constant on the loss")


def _routing(config: Config, made: Recipe) -> None:
    if config.algo.routing == Routing.r2:
        made.cannot("R2: SkyRL replays the engine's routes only")
    if config.algo.routing == Routing.r3:
        made.set({"trainer.strategy": "megatron", "generator.inference_engine.enable_return_routed_experts": True})
        made.set({"megatron_config.moe_enable_routing_replay": True}, POLICY)


def _optimizer(config: Config, made: Recipe) -> None:
    optim, norm = config.train.optim, max_norm(config)
    made.set(
        {
            "lr": optim.lr,
            "adam_betas": [optim.beta1, optim.beta2],
            "weight_decay": optim.weight_decay,
            "max_grad_norm": OFF if norm is None else norm,
            "num_warmup_steps": optim.warmup_updates,
            "scheduler": "constant_with_warmup",
        },
        f"{POLICY}optimizer_config.",
    )
    made.cannot(f"Adam's eps={optim.eps:g}: SkyRL leaves it at torch's")
