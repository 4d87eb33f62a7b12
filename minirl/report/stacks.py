"""The stacks whose logs are read: versions, where their names stand, and how they count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stack:
    """version, files: where the names below were read · first_step: the number under which it logs the first one ·
    counts: what its steps are, rollout batches or updates · steps: the columns that may hold the step, the first one
    that is there counts; where a stack counts families apart, by the prefix of the metric."""

    title: str
    version: str
    files: tuple[str, ...]
    first_step: int
    counts: str
    steps: Mapping[str, tuple[str, ...]]


BATCHES, UPDATES = "rollout batches", "updates"

STACKS: Mapping[str, Stack] = {
    "verl": Stack(
        "verl",
        "0.9.1",
        (
            "verl/trainer/ppo/metric_utils.py",
            "verl/trainer/ppo/rollout_corr_helper.py",
            "verl/trainer/ppo/core_algos.py",
            "verl/trainer/ppo/ray_trainer.py",
            "verl/utils/debug/metrics.py",
        ),
        1,
        BATCHES,
        {"": ("training/global_step", "_step", "step")},
    ),
    "prime-rl": Stack(
        "prime-rl",
        "main, early 2026",
        (
            "src/prime_rl/trainer/rl/loss.py",
            "src/prime_rl/trainer/rl/train.py",
            "src/prime_rl/orchestrator/orchestrator.py",
            "src/prime_rl/orchestrator/eval_utils.py",
        ),
        0,
        BATCHES,
        {"": ("step", "_step")},
    ),
    "nemo-rl": Stack(
        "NeMo-RL",
        "commit 3520fc0a92ed",
        ("nemo_rl/algorithms/loss/loss_functions.py", "nemo_rl/algorithms/grpo.py", "nemo_rl/experience/rollouts.py"),
        1,
        BATCHES,
        {"": ("_step", "step")},
    ),
    "slime": Stack(
        "slime",
        "commit 00c2d6db0f23",
        (
            "slime/backends/megatron_utils/loss.py",
            "slime/ray/rollout.py",
            "examples/train_infer_mismatch_helper/mis.py",
        ),
        0,
        BATCHES,
        {"train/": ("train/step",), "rollout/": ("rollout/step",), "eval/": ("eval/step",)},
    ),
    "trl": Stack(
        "TRL (GRPOTrainer)",
        "1.16.0",
        ("trl/trainer/grpo_trainer.py",),
        1,
        UPDATES,
        {"": ("train/global_step", "step", "_step")},
    ),
    "skyrl": Stack(
        "SkyRL",
        "0.3.0",
        (
            "skyrl/train/trainer.py",
            "skyrl/backends/skyrl_train/workers/worker.py",
            "skyrl/backends/skyrl_train/utils/ppo_utils.py",
            "skyrl/train/generators/utils.py",
            "skyrl/train/utils/trainer_utils.py",
        ),
        1,
        BATCHES,
        {"": ("trainer/global_step", "_step", "step")},
    ),
}

# Names that look like ours and are not: nothing is imported from them.
FALSE_FRIENDS: Mapping[str, Mapping[str, str]] = {
    "verl": {"actor/kl_loss": "KL to the reference model", "actor/reward_kl_penalty": "KL to the reference model"},
    "nemo-rl": {
        "train/policy_kl_error": "KL(pi_old || mu) on samples of mu: the other direction",
        "train/token_mult_prob_error": "mean of exp |log pi_old - log mu|: near 1 in health, and no KL",
        "train/kl_penalty": "KL to the reference model",
    },
    "slime": {"train/kl_loss": "KL to the reference model", "train/ois": "pi_theta / pi_old, not pi_old / mu"},
    "trl": {"kl": "KL to the reference model"},
    "skyrl": {"policy/policy_kl": "KL to the reference model", "loss/avg_kl": "KL to the reference model"},
}
