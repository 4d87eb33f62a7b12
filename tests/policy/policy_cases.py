"""Small models, synthetic rollouts and algorithms for the tests of the policy."""

from dataclasses import replace

import torch
from transformers import AutoConfig

from minirl.algo.algorithm import PolicyGradient, build
from minirl.config import (
    Advantage,
    AggregationConfig,
    AggregationKind,
    AlgoConfig,
    Anchor,
    FactorConfig,
    GradientClip,
    GroupFilter,
    IsWeightConfig,
    Level,
    ModelConfig,
    OptimConfig,
    Outside,
    ProductConfig,
    Region,
    RejectConfig,
    Routing,
    RoutingMissing,
    TrainConfig,
    Truncated,
    TrustRegionConfig,
)
from minirl.models import load
from minirl.policy.fsdp import FsdpPolicy
from minirl.policy.optimizer import Step
from minirl.policy.packing import moved
from minirl.types import OldPolicy, Rewards, RolloutBatch, Routes, TrainBatch, expert_dtype
from minirl.world import World

VOCAB = 13


def model_config(**changes) -> ModelConfig:
    sizes = {
        "name": "test",
        "path": None,
        "family": "qwen3_moe",
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 16,
        "intermediate_size": 48,
        "num_experts": 8,
        "num_experts_per_token": 2,
        "moe_intermediate_size": 16,
        "initializer_range": 0.2,
        "init_seed": 3,
    }
    return ModelConfig(**(sizes | changes))


def tiny_model(dtype=torch.float32, **changes):
    return load.build(model_config(**changes), vocab_size=VOCAB, checkpoint=None).to(dtype)


def family_model(family, **own):
    """A tiny model of another MoE family."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 16, "num_experts_per_tok": 2, "initializer_range": 0.2, "head_dim": 16}
    sizes |= {"vocab_size": VOCAB, "max_position_embeddings": 64}
    special = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return load.initialised(AutoConfig.for_model(family, **(sizes | special | own))).eval()


def train_config(*, optim=None, **changes) -> TrainConfig:
    adam = {
        "lr": 1e-3,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-15,
        "weight_decay": 0.01,
        "warmup_updates": 3,
        "max_norm": 1.0,
    }
    adam = OptimConfig(**(adam | {"clip": GradientClip.none} | (optim or {})))
    values = {
        "freeze_router": False,
        "compute_dtype": "float32",
        "activation_checkpointing": False,
        "max_tokens_per_micro_batch": 1000,
        "likelihood_chunk_tokens": 1000,
        "checkpoint_every": 5,
        "num_checkpoints": 2,
        "num_replicas": 1,
        "offload": False,
        "async_checkpoints": False,
    }
    return TrainConfig(optim=adam, **(values | changes))


def policy(model=None, *, world=None, num_mini_batches=1, temperature=0.8, **changes):
    return FsdpPolicy(
        model if model is not None else tiny_model(),
        train=train_config(**changes),
        temperature=temperature,
        num_mini_batches=num_mini_batches,
        world=world or World.join("cpu"),
    )


def algorithm(
    *, routing="live", aggregation="seq_mean_token_sum", trust_region="ratio", missing="fail"
) -> PolicyGradient:
    """MiniRL (arXiv 2512.01374 eq 7), or a relative of it."""
    factor = FactorConfig(level=Level.token, low=None, high=None, outside=Outside.clamp)
    clipped = trust_region == "ratio"
    return build(
        AlgoConfig(
            name="test",
            advantage=Advantage.group_mean,
            is_weight=IsWeightConfig(factor, factor, ProductConfig(low=None, high=5.0, outside=Outside.clamp)),
            trust_region=TrustRegionConfig(
                kind=Region(trust_region),
                anchor=Anchor.old,
                level=Level.token,
                low=0.2 if clipped else None,
                high=0.27 if clipped else None,
                delta=None,
                tau_positive=None,
                tau_negative=None,
                dual=None,
            ),
            reject=RejectConfig(
                level=Level.none, low=None, high=None, counted=True, groups=GroupFilter.all, truncated=Truncated.keep
            ),
            aggregation=AggregationConfig(kind=AggregationKind(aggregation), length=None, scale=1.0),
            routing=Routing(routing),
            routing_missing=RoutingMissing(missing),
        )
    )


def random_routes(num_tokens, *, layers=(0, 1), num_experts=8, k=2, seed=0) -> Routes:
    """k different experts per token and layer, present everywhere."""
    scores = torch.rand(num_tokens, len(layers), num_experts, generator=torch.Generator().manual_seed(seed))
    experts = scores.topk(k, dim=-1).indices.to(expert_dtype(num_experts))
    return Routes(experts, torch.ones(num_tokens, dtype=torch.bool), tuple(layers), num_experts)


def rollouts(*, groups=4, group_size=2, seed=0, max_response=9, routes=None, version=0) -> RolloutBatch:
    """Prompts of 2-4 tokens shared by a group, responses of 1 .. max_response tokens, plausible sampler logprobs."""
    draw = torch.Generator().manual_seed(seed)
    pick = lambda low, high: int(torch.randint(low, high, (), generator=draw))  # noqa: E731
    prompts = [pick(2, 5) for _ in range(groups)]
    responses = [pick(1, max_response + 1) for _ in range(groups * group_size)]
    lengths = torch.tensor([prompts[i // group_size] + length for i, length in enumerate(responses)])
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    total = int(cu_seqlens[-1])
    mask = torch.ones(total, dtype=torch.bool)
    for i, begin in enumerate(cu_seqlens[:-1].tolist()):
        mask[begin : begin + prompts[i // group_size]] = False
    logprobs = torch.where(mask, -2.5 + 0.5 * torch.randn(total, generator=draw), 0.0)
    size = groups * group_size
    return RolloutBatch(
        tokens=torch.randint(VOCAB, (total,), generator=draw),
        cu_seqlens=cu_seqlens,
        response_mask=mask,
        rollout_logprobs=logprobs,
        truncated=torch.zeros(size, dtype=torch.bool),
        valid=torch.ones(size, dtype=torch.bool),
        positions=torch.arange(size),
        routes=random_routes(total, seed=seed) if routes is None else routes,
        group_size=group_size,
        version=version,
    )


def rewards(batch: RolloutBatch, seed=0) -> Rewards:
    values = torch.rand(len(batch), generator=torch.Generator().manual_seed(seed + 1)).round()
    values[0], values[1] = 1.0, 0.0  # at least one group that teaches
    return Rewards(values, torch.ones(len(batch), dtype=torch.bool))


def train_batch(batch: RolloutBatch, old: OldPolicy, algo: PolicyGradient, seed=0) -> TrainBatch:
    """Advantages and rejection as the loop fills them in."""
    graded = moved(rewards(batch, seed), batch.tokens.device)
    advantages = algo.advantage(graded, batch.group_size)
    mask = batch.response_mask
    return algo.reject(TrainBatch(batch, graded, advantages, old, accepted=mask, counted=mask, coefficients=None))


def noisy_old(batch: RolloutBatch, old: OldPolicy, scale=0.1, seed=5) -> OldPolicy:
    """pi_old at some distance of pi_theta, so that weights and clipping are at work."""
    noise = scale * torch.randn(len(batch.tokens), generator=torch.Generator().manual_seed(seed))
    return replace(old, logprobs=torch.where(batch.response_mask, old.logprobs + noise, 0.0).to(old.logprobs.dtype))


def gradients(trainer: FsdpPolicy, mini_batch: TrainBatch, algo: PolicyGradient) -> dict[str, torch.Tensor]:
    """Full gradients by name, of the loss of the mini-batch over all ranks: what `update` would step with."""
    seen: dict[str, torch.Tensor] = {}

    def spy(loss):
        for name, parameter in trainer.model.named_parameters():
            seen[name] = parameter.grad.full_tensor().clone()
        return Step(norm=0.0, bound=0.0, lr=0.0)

    step, trainer._step = trainer._step, spy
    try:
        trainer.update(mini_batch, algo)
    finally:
        trainer._step = step
    return seen


def relative_difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """||left - right|| / ||right|| over all parameters."""
    assert left.keys() == right.keys()
    norm = lambda tensors: torch.stack([t.double().norm() for t in tensors]).norm()  # noqa: E731
    return float(norm([left[n].double() - right[n].double() for n in left]) / norm(right.values()))


def figures(statistics):
    return {name: value for key, part in statistics.items() for name, value in part.values(key).items()}


def weights(trainer):
    return {name: value.clone() for name, value in trainer.parameters()}


def equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
