"""Writes peer_numbers.json: inputs drawn from a seed, and what verl 0.9.1 makes of them in float64 on a CPU.

    pip install --no-deps verl==0.9.1      # and what its imports ask for: ray, tensordict, ...
    python make_peer_numbers.py            # beside this file

Sixteen responses in four groups of four, up to eight tokens, the sixth without any response token (a fully masked
row). Losses come with their gradient to log pi_theta. The dual clip is switched off by 1e9 (verl has it on at 3).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.workers.config import ActorConfig

SEED, RESPONSES, LONGEST, GROUP, BUDGET = 364, 16, 8, 4, 20  # a seed that meets every branch, see the test


def inputs() -> dict[str, Any]:
    """Log-probabilities of three policies [16, 8], lengths, rewards: rounded, so that the file says all of them."""
    random = np.random.default_rng(SEED)
    lengths = random.integers(1, LONGEST + 1, RESPONSES)
    lengths[5] = 0
    mu = -random.exponential(1.5, (RESPONSES, LONGEST)) - 0.01
    old = np.minimum(mu + random.normal(0, 1, mu.shape) * 10 ** random.uniform(-2, 0.4, (RESPONSES, 1)), -1e-3)
    theta = np.minimum(old + random.normal(0, 1, mu.shape) * 10 ** random.uniform(-2, 0.4, (RESPONSES, 1)), -1e-3)
    rewards = random.integers(0, 2, RESPONSES)
    return {
        "mu": mu.round(6).tolist(),
        "old": old.round(6).tolist(),
        "theta": theta.round(6).tolist(),
        "lengths": lengths.tolist(),
        "rewards": rewards.tolist(),
    }


def config(**keys: float) -> ActorConfig:
    return ActorConfig(strategy="fsdp", rollout_n=GROUP, use_dynamic_bsz=True, clip_ratio_c=1e9, **keys)


def with_gradient(loss: Tensor, theta: Tensor) -> dict[str, Any]:
    return {"loss": loss.item(), "gradient": torch.autograd.grad(loss, theta)[0].tolist()}


def main() -> None:
    given = inputs()
    mu, old, theta = (torch.tensor(given[name], dtype=torch.float64) for name in ("mu", "old", "theta"))
    theta.requires_grad_()
    mask = (torch.arange(LONGEST) < torch.tensor(given["lengths"])[:, None]).double()
    groups = np.arange(RESPONSES) // GROUP
    token_rewards = torch.zeros(RESPONSES, LONGEST, dtype=torch.float64)
    token_rewards[:, 0] = torch.tensor(given["rewards"], dtype=torch.float64)
    everywhere = torch.ones_like(mask)
    advantages = {
        "group_mean_std": core_algos.compute_grpo_outcome_advantage(token_rewards, everywhere, groups),
        "group_mean": core_algos.compute_grpo_outcome_advantage(
            token_rewards, everywhere, groups, norm_adv_by_std_in_grpo=False
        ),
        "leave_one_out": core_algos.compute_rloo_outcome_advantage(token_rewards, everywhere, groups),
    }
    standard = advantages["group_mean_std"][0].double()  # verl sums rewards in float32

    aggregations = {
        mode: with_gradient(core_algos.agg_loss(-theta, mask, mode, loss_scale_factor=BUDGET), theta)
        for mode in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
    }
    # the fifth, token-sum, has no counterpart here: it is token-mean times the number of tokens
    aggregations["token-sum"] = with_gradient(core_algos.agg_loss(-theta, mask, "token-sum"), theta)

    weights = {
        name: rollout_corr_helper.compute_rollout_correction_weights(
            old - mu, mask, rollout_is=level, rollout_is_threshold=threshold
        )[0].tolist()
        for name, level, threshold in (
            ("tis", "token", 2.0),
            ("seq_tis", "sequence", 2.0),
            ("icepop", "token", "0.5_5.0"),
        )
    }

    losses = {}
    for name, registered, mode, keys in (
        ("vanilla", "vanilla", "token-mean", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}),
        ("vanilla per response", "vanilla", "seq-mean-token-mean", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}),
        ("gspo", "gspo", "seq-mean-token-mean", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}),
        ("cispo", "cispo", "token-mean", {"clip_ratio_low": 1.0, "clip_ratio_high": 4.0}),
        ("sapo", "sapo", "seq-mean-token-mean", {"tau_pos": 1.0, "tau_neg": 1.05}),
    ):
        policy_loss = core_algos.get_policy_loss_fn(registered)
        loss, _ = policy_loss(old, theta, standard, mask, mode, config(**keys))
        losses[name] = with_gradient(loss, theta)
    for name, weight in weights.items():
        policy_loss = core_algos.get_policy_loss_fn("vanilla")
        clip = config(clip_ratio_low=0.2, clip_ratio_high=0.2)
        loss, _ = policy_loss(
            old, theta, standard, mask, "seq-mean-token-mean", clip, torch.tensor(weight, dtype=torch.float64)
        )
        losses[name] = with_gradient(loss, theta)

    numbers = {
        "made by": "verl 0.9.1, torch " + torch.__version__.split("+")[0],
        "seed": SEED,
        "group_size": GROUP,
        "budget": BUDGET,
        "inputs": given,
        "advantages": {name: value[0][:, 0].tolist() for name, value in advantages.items()},
        "aggregations": aggregations,
        "weights": weights,
        "losses": losses,
    }
    Path(__file__).with_name("peer_numbers.json").write_text(json.dumps(numbers) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
