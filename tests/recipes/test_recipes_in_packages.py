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
EXACT_IN_VERL = ("cispo", "dppo_old", "dr_grpo", "geo_rs", "grpo", "gspo", "icepop", "mis", "reinforce", "sapo",
                 "seq_tis", "tis")  # fmt: skip


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


@pytest.mark.parametrize("algo", EXACT_IN_VERL)
def test_verl_s_loss_under_the_recipe_has_our_gradient(algo: str) -> None:
    """Float64, sixteen responses of four groups; every policy apart from the others, so that bounds bind."""
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")
    from omegaconf import OmegaConf
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
    from verl.utils.config import omega_conf_to_dataclass

    recipe = made("verl", algo)
    merged = OmegaConf.merge(verl_defaults("ppo_trainer"), OmegaConf.create(recipe.tree))
    merged.actor_rollout_ref.actor.use_dynamic_bsz = True
    actor = omega_conf_to_dataclass(merged.actor_rollout_ref.actor)
    actor.global_batch_info["loss_scale_factor"] = actor.loss_scale_factor  # as verl's workers do

    random = np.random.default_rng(7)
    lengths = random.integers(1, 9, 16).tolist()
    narrow = 1e-3 if algo in ("geo_rs", "gspo") else 1.0
    mu = -random.exponential(1.5, (16, 8)) - 0.5
    old = mu + narrow * random.normal(size=mu.shape) * 10 ** random.uniform(-2, -0.2, (16, 1))
    new = old + narrow * random.normal(size=mu.shape) * 10 ** random.uniform(-2, -0.2, (16, 1))
    mu, old, new = (torch.tensor(np.minimum(one, -1e-3)) for one in (mu, old, new))
    mask = torch.arange(8) < torch.tensor(lengths)[:, None]
    rewards = torch.tensor(random.integers(0, 2, 16), dtype=torch.float64)

    algo_ours = algorithm(algo)
    batch = pack(lengths, rollout_logprobs=mu[mask], old_logprobs=old[mask], rewards=rewards, group_size=4)
    batch = prepared(algo_ours, batch)
    ours, terms = gradient(algo_ours, batch, spread(new[mask], batch.rollouts.response_mask))
    assert terms.is_weight[batch.rollouts.response_mask].std() > 0 or algo == "reinforce"

    spec = {key: value for key, value in merged.algorithm.rollout_correction.items() if key.startswith("rollout_")}
    weights, kept, _ = compute_rollout_correction_and_rejection_mask(old, mu, mask.double(), **spec)
    leaf = new.clone().requires_grad_()
    loss, _ = core_algos.get_policy_loss_fn(actor.policy_loss.loss_mode)(
        old_log_prob=old,
        log_prob=leaf,
        advantages=batch.advantages[:, None].expand(16, 8),
        response_mask=kept,
        loss_agg_mode=actor.loss_agg_mode,
        config=actor,
        rollout_is_weights=None if weights is None else weights.batch["rollout_is_weights"],
    )
    theirs = torch.autograd.grad(loss, leaf)[0][mask]
    mine = ours[batch.rollouts.response_mask]
    assert mine.abs().max() > 0
    assert theirs.tolist() == pytest.approx(mine.tolist(), rel=1e-6, abs=1e-9)
