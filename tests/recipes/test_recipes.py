"""Recipes against the recorded option names of each stack, and against what each algorithm says."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from minirl.cli import app
from minirl.compose import choices, load
from minirl.config import Config
from minirl.recipes.recipe import OFF, Recipe
from minirl.recipes.write import RECIPES, snippet

OPTIONS = {path.stem: set(path.read_text().split()) for path in (Path(__file__).parent / "options").glob("*.txt")}
ALGOS = sorted(choices("algo"))
EPS = "Adam's eps"


def config_of(*overrides: str) -> Config:
    return load(list(overrides))


@pytest.fixture(scope="module")
def configs() -> dict[tuple[str, int], Config]:
    composed = {algo: config_of(f"algo={algo}") for algo in ALGOS}
    return {(algo, n): replace(config, num_mini_batches=n) for algo, config in composed.items() for n in (1, 4)}


def missing(made: Recipe) -> list[str]:
    """What cannot be said, but for Adam's epsilon, which two of the stacks do not offer."""
    return [text for text in made.unexpressed if not text.startswith(EPS)]


@pytest.mark.parametrize("stack", RECIPES)
def test_every_option_is_one_of_the_named_version(stack: str, configs: dict[tuple[str, int], Config]) -> None:
    found: set[str] = set()
    for config in configs.values():
        found |= set(RECIPES[stack](config).options)
    for routing in ("r2", "r3"):
        for warmup in (0, 8):
            found |= set(
                RECIPES[stack](config_of(f"algo.routing={routing}", f"train.optim.warmup_updates={warmup}")).options
            )
    assert len(found) > 10
    assert found - OPTIONS[stack] == set()


EXACT = {  # at N = 4; what is not here has something to say
    "verl": {
        "dr_grpo", "grpo", "grpo_mu", "gspo", "icepop", "mis", "reinforce", "sapo", "seq_is", "seq_tis", "tis", "cispo",
        "geo_rs", "minirl_no_clip", "dppo_old",
    },
    "trl": {"cispo", "dr_grpo", "grpo", "gspo", "icepop", "mis", "sapo", "seq_mis", "seq_tis", "tis"},
    "skyrl": {
        "cispo", "dapo", "dppo_kl", "dr_grpo", "grpo", "gspo", "icepop", "mis", "sapo", "seq_mis", "seq_tis", "tis",
    },
    "prime-rl": set(),
}  # fmt: skip


@pytest.mark.parametrize("stack", RECIPES)
def test_which_methods_a_stack_can_say_in_full(stack: str, configs: dict[tuple[str, int], Config]) -> None:
    exact = {algo for algo in ALGOS if not missing(RECIPES[stack](configs[algo, 4]))}
    assert exact == EXACT[stack]


@pytest.mark.parametrize("stack", ["verl", "trl", "skyrl"])
def test_minirl_is_exact_on_policy_and_its_cap_is_told_off_policy(
    stack: str, configs: dict[tuple[str, int], Config]
) -> None:
    assert missing(RECIPES[stack](configs["minirl", 1])) == []
    [text] = missing(RECIPES[stack](configs["minirl", 4]))
    assert text.startswith("bounds [None, 5.0] on the product pi_theta / mu are put on pi_old / mu")


def test_dppo_is_prime_rl_s_own_loss_but_for_the_mean() -> None:
    made = RECIPES["prime-rl"](
        config_of("algo=dppo", "algo.is_weight.product.high=null", "algo.aggregation.kind=token_mean")
    )
    assert missing(made) == []
    assert made.options["trainer.loss.dppo_mask_low"] == made.options["trainer.loss.dppo_mask_high"] == 0.2


SAID = {  # algo, stack -> options
    ("cispo", "verl"): {
        "actor_rollout_ref.actor.policy_loss.loss_mode": "cispo",
        "actor_rollout_ref.actor.clip_ratio_high": 4.0,  # an offset: the cap is 5
        "actor_rollout_ref.actor.clip_ratio_low": 1.0,
    },
    ("cispo", "skyrl"): {"trainer.algorithm.cispo.cispo_eps_clip_high": 4.0},
    ("cispo", "trl"): {"loss_type": "cispo", "epsilon_high": 5.0},  # the cap itself
    ("icepop", "verl"): {"algorithm.rollout_correction.rollout_is_threshold": "0.5_5"},
    ("icepop", "trl"): {
        "vllm_importance_sampling_mode": "token_mask",
        "vllm_importance_sampling_clip_min": 0.5,
        "vllm_importance_sampling_clip_max": 5.0,
    },
    ("geo_rs", "verl"): {
        "algorithm.rollout_correction.rollout_rs": "seq_mean_k1",
        "algorithm.rollout_correction.rollout_rs_threshold": "0.999_1.001",
        "algorithm.rollout_correction.rollout_is": None,
    },
    ("grpo_mu", "verl"): {"algorithm.rollout_correction.bypass_mode": True},
    ("seq_mis", "trl"): {
        "vllm_importance_sampling_mode": "sequence_mask",
        "vllm_importance_sampling_clip_max": 2.0,
    },
    ("gspo", "trl"): {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon": 3e-4},
    ("minirl_no_clip", "verl"): {  # the cap is on the whole ratio, as in the paper
        "algorithm.rollout_correction.bypass_mode": True,
        "algorithm.rollout_correction.loss_type": "reinforce",
        "algorithm.rollout_correction.rollout_is": "token",
        "algorithm.rollout_correction.rollout_is_threshold": 5.0,
    },
    ("minirl_no_clip", "trl"): {"epsilon_high": OFF},
    ("dppo", "skyrl"): {"trainer.algorithm.policy_loss_type": "dppo", "trainer.algorithm.dppo.delta_low": 0.2},
}


@pytest.mark.parametrize(("algo", "stack"), SAID)
def test_what_is_said(algo: str, stack: str, configs: dict[tuple[str, int], Config]) -> None:
    options = RECIPES[stack](configs[algo, 4]).options
    assert {name: options[name] for name in SAID[algo, stack]} == SAID[algo, stack]


def test_sizes_are_counted_as_each_stack_counts() -> None:
    config = config_of("num_mini_batches=4", "prompts_per_mini_batch=16", "group_size=8", "num_updates=96")
    verl, trl, skyrl = (RECIPES[stack](config).options for stack in ("verl", "trl", "skyrl"))
    assert (verl["data.train_batch_size"], verl["actor_rollout_ref.actor.ppo_mini_batch_size"]) == (64, 16)  # prompts
    assert (verl["trainer.total_training_steps"], trl["max_steps"]) == (24, 96)  # batches; updates
    per_step = trl["per_device_train_batch_size"] * trl["gradient_accumulation_steps"]
    assert (per_step, trl["generation_batch_size"]) == (128, 512)  # responses
    assert (skyrl["trainer.train_batch_size"], skyrl["trainer.policy_mini_batch_size"]) == (64, 16)
    assert verl["actor_rollout_ref.actor.optim.lr_warmup_steps"] * 4 == trl["warmup_steps"] == 8


def test_a_constant_on_the_loss_is_made_up_for() -> None:
    """dr_grpo divides by the budget: a threshold and an epsilon divided by it too leave every step as it is."""
    config = config_of("algo=minirl")
    options, budget = RECIPES["trl"](config).options, config.sampling.max_response_tokens
    assert options["loss_type"] == "dr_grpo"
    assert options["max_grad_norm"] * budget == pytest.approx(config.train.optim.max_norm)
    assert options["adam_epsilon"] * budget == pytest.approx(config.train.optim.eps)


@pytest.mark.parametrize("stack", RECIPES)
def test_the_snippet_is_read_back_as_the_options(
    tmp_path: Path, stack: str, configs: dict[tuple[str, int], Config]
) -> None:
    made = RECIPES[stack](configs["dppo", 4])
    text = snippet(made, tmp_path / "0123456789-s0")
    read: Any = tomllib.loads(text) if stack == "prime-rl" else yaml.safe_load(text)
    assert read == made.tree
    comments = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
    assert made.version in comments.split("Only the algorithm")[0]
    assert all(f"NOT EXPRESSED: {told}." in comments for told in made.unexpressed)
    assert all(len(line) <= 116 for line in text.splitlines() if line.startswith("#"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    from omegaconf import OmegaConf

    from minirl.compose import compose

    folder = tmp_path / "0123456789-s0"
    folder.mkdir()
    OmegaConf.save(compose(["num_mini_batches=4"]), folder / "config.yaml", resolve=True)
    (folder / "run.json").write_text('{"arm": "MiniRL", "sweep": "off_policy"}')
    return folder


def test_the_command_writes_a_file_and_tells_what_is_missing(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "verl.yaml"
    done = CliRunner().invoke(app, ["export", str(run), "--to", "verl", "--out", str(out)])
    assert done.exit_code == 0
    assert done.stdout.strip() == str(out)
    assert done.stderr.startswith("not expressed in verl: bounds [None, 5.0] on the product")
    assert 'arm "MiniRL" of off_policy, run 0123456789-s0' in out.read_text()


def test_an_unknown_stack_is_answered_with_the_nearest(run: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(run), "--to", "vrl"])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: --to vrl: no such stack")
    assert "verl" in done.stderr
