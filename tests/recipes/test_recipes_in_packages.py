"""Recipes in the packages themselves: loaded by their own configurations, and run by verl's own losses.

`make test-recipes` installs the packages (constraints/recipes.lock) and runs these; without them they are skipped.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from record_options import OPTIONS, of_skyrl, of_trl, of_verl, verl_defaults

from minirl.compose import choices, load
from minirl.recipes.recipe import Recipe
from minirl.recipes.write import RECIPES

sys.path.append(str(Path(__file__).resolve().parents[1] / "algo"))  # the packages bring a `tests` of their own
from algo_cases import algorithm, gradient, pack, prepared, spread

pytestmark = pytest.mark.slow
ALGOS = sorted(choices("algo"))
EXACT_IN_VERL = ("cispo", "dppo_old", "dr_grpo", "geo_rs", "grpo", "grpo_mu", "gspo", "icepop", "minirl_no_clip", "mis",
                 "reinforce", "sapo", "seq_is", "seq_tis", "tis")  # fmt: skip


def made(stack: str, algo: str) -> Recipe:
    return RECIPES[stack](load([f"algo={algo}", "num_mini_batches=4", "algo.routing=live"]))


def recorded(stack: str) -> set[str]:
    return set((OPTIONS / f"{stack}.txt").read_text().split())


@pytest.mark.parametrize("algo", ALGOS)
def test_trl_takes_every_recipe(tmp_path: Path, algo: str) -> None:
    trl = pytest.importorskip("trl")
    recipe = made("trl", algo)
    loaded = trl.GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], **recipe.options)
    assert {name: getattr(loaded, name) for name in recipe.options} == recipe.options
    assert loaded.steps_per_generation == 4 * loaded.gradient_accumulation_steps


@pytest.mark.parametrize("routing", ["live", "r3"])
@pytest.mark.parametrize("algo", ALGOS)
def test_verl_takes_every_recipe(algo: str, routing: str) -> None:
    """Merged into the composed defaults, where an unknown name is an error, and made into verl's dataclasses."""
    pytest.importorskip("verl")
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass

    recipe = RECIPES["verl"](load([f"algo={algo}", "num_mini_batches=4", f"algo.routing={routing}"]))
    defaults = verl_defaults("ppo_trainer" if routing == "live" else "ppo_megatron_trainer")
    OmegaConf.set_struct(defaults, True)
    merged = OmegaConf.merge(defaults, OmegaConf.create(recipe.tree))
    merged.actor_rollout_ref.actor.use_dynamic_bsz = True  # hardware and engine, which a recipe leaves alone
    merged.actor_rollout_ref.rollout.name = "vllm"
    actor = omega_conf_to_dataclass(merged.actor_rollout_ref.actor)
    assert actor.loss_agg_mode == recipe.options["actor_rollout_ref.actor.loss_agg_mode"]
    assert omega_conf_to_dataclass(merged.actor_rollout_ref.rollout).n == 8
    omega_conf_to_dataclass(merged.algorithm)
    if routing == "r3":
        assert actor.engine.router_replay.mode == "R3"


@pytest.mark.parametrize("algo", ALGOS)
def test_skyrl_takes_every_recipe(algo: str) -> None:
    pytest.importorskip("skyrl")
    from skyrl.train.config.config import GeneratorConfig, TrainerConfig, build_nested_dataclass

    tree = made("skyrl", algo).tree
    trainer = build_nested_dataclass(TrainerConfig, tree["trainer"])
    assert trainer.algorithm.loss_reduction == tree["trainer"]["algorithm"]["loss_reduction"]
    assert build_nested_dataclass(GeneratorConfig, tree["generator"]).n_samples_per_prompt == 8
    with pytest.raises(ValueError, match="algorithmm"):
        build_nested_dataclass(TrainerConfig, {"algorithmm": {}})


@pytest.mark.parametrize(("stack", "names"), [("trl", of_trl), ("verl", of_verl), ("skyrl", of_skyrl)])
def test_the_recorded_names_are_those_of_the_package(stack: str, names: Any) -> None:
    pytest.importorskip(stack)
    assert recorded(stack) == names()


def policies(spread_of_ratios: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[int]]:
    """Logprobs [16, 8] of mu, pi_old and pi_theta, each apart from the one before so that bounds bind, and lengths."""
    random = np.random.default_rng(7)
    mu = -random.exponential(1.5, (16, 8)) - 0.5
    old = mu + spread_of_ratios * random.normal(size=mu.shape) * 10 ** random.uniform(-2, 0.0, (16, 1))
    new = old + spread_of_ratios * random.normal(size=mu.shape) * 10 ** random.uniform(-2, 0.0, (16, 1))
    first, second, third = (torch.tensor(np.minimum(one, -1e-3)) for one in (mu, old, new))
    return first, second, third, random.integers(1, 9, 16).tolist()


def verl_gradient(
    recipe: Recipe, mu: torch.Tensor, old: torch.Tensor, new: torch.Tensor, mask: torch.Tensor, advantages: torch.Tensor
) -> torch.Tensor:
    """d loss / d log pi_theta [16, 8] of verl's own losses, called as its trainer calls them."""
    from omegaconf import OmegaConf, open_dict
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
    from verl.utils.config import omega_conf_to_dataclass

    merged = OmegaConf.merge(verl_defaults("ppo_trainer"), OmegaConf.create(recipe.tree))
    correction, mode = merged.algorithm.rollout_correction, merged.actor_rollout_ref.actor.policy_loss.loss_mode
    merged.actor_rollout_ref.actor.use_dynamic_bsz = True
    weights, kept = None, mask
    if correction.bypass_mode:
        mode, old = "bypass_mode", mu
        with open_dict(merged):
            merged.actor_rollout_ref.actor.policy_loss.rollout_correction = correction
    else:
        spec = {key: value for key, value in correction.items() if key.startswith("rollout_")}
        weights, kept, _ = compute_rollout_correction_and_rejection_mask(old, mu, mask, **spec)
    actor = omega_conf_to_dataclass(merged.actor_rollout_ref.actor)
    actor.global_batch_info["loss_scale_factor"] = actor.loss_scale_factor  # as verl's workers do
    leaf = new.clone().requires_grad_()
    loss, _ = core_algos.get_policy_loss_fn(mode)(
        old_log_prob=old,
        log_prob=leaf,
        advantages=advantages,
        response_mask=kept,
        loss_agg_mode=actor.loss_agg_mode,
        config=actor,
        rollout_is_weights=None if weights is None else weights.batch["rollout_is_weights"],
    )
    return torch.autograd.grad(loss, leaf)[0]


@pytest.mark.parametrize("algo", EXACT_IN_VERL)
def test_verl_s_loss_under_the_recipe_has_our_gradient(algo: str) -> None:
    """Float64, sixteen responses of four groups."""
    pytest.importorskip("verl")
    mu, old, new, lengths = policies({"geo_rs": 1e-3, "gspo": 1e-3, "cispo": 2.5, "minirl_no_clip": 2.5}.get(algo, 1.0))
    mask = torch.arange(8) < torch.tensor(lengths)[:, None]
    rewards = torch.tensor(np.random.default_rng(1).integers(0, 2, 16), dtype=torch.float64)
    ours = algorithm(algo)
    batch = pack(lengths, rollout_logprobs=mu[mask], old_logprobs=old[mask], rewards=rewards, group_size=4)
    batch = prepared(ours, batch)
    slope, terms = gradient(ours, batch, spread(new[mask], batch.rollouts.response_mask))
    mine = slope[batch.rollouts.response_mask]
    assert mine.abs().max() > 0
    binding = {
        "cispo": terms.capped,
        "minirl_no_clip": terms.capped,
        "grpo": terms.kept == 0,
        "grpo_mu": terms.kept == 0,
    }
    assert algo not in binding or bool(binding[algo].any())
    theirs = verl_gradient(made("verl", algo), mu, old, new, mask.double(), batch.advantages[:, None].expand(16, 8))
    assert theirs[mask].tolist() == pytest.approx(mine.tolist(), rel=1e-6, abs=1e-9)
