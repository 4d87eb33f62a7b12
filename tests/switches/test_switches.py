"""`doctor --switches` on a small sweep: what is live, what is the same, what does nothing."""

import json
from pathlib import Path

import pytest
from small_runs import SMALL
from typer.testing import CliRunner

from minirl.cli import app

ARMS = {
    "base": [],
    "no clip": ["algo=minirl_no_clip"],
    "sum": ["algo=minirl_length_norm"],
    "twice": ["algo.aggregation.scale=2"],
    "wide": ["algo.trust_region.high=1e6", "algo.trust_region.low=0.999999"],
    "exact engine": ["engine.numerics=fp32"],
    "slow": ["train.optim.lr=1e-6"],
    "again": ["algo=minirl"],
}


@pytest.fixture(scope="module")
def told(small_coldstart: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """first ~ second -> the lines under it."""
    folder = tmp_path_factory.mktemp("switches")
    (folder / "coldstarts").symlink_to(small_coldstart / "coldstarts")
    own = ["num_mini_batches=4", "prompts_per_mini_batch=6", "group_size=8", "train.optim.lr=1.5e-3"]
    own += ["train.optim.warmup_updates=0", f"run.outputs={folder}"]
    (folder / "mine.yaml").write_text(json.dumps({"base": [*SMALL, *own], "arms": ARMS}))
    result = CliRunner().invoke(app, ["doctor", "--switches", str(folder / "mine.yaml")])
    assert result.exit_code == 0, result.output
    parts = [part.splitlines() for part in result.stdout.split("\n\n") if "  ~  " in part]
    return {part[0]: [line.strip() for line in part[1:]] for part in parts}


def test_a_live_switch_says_what_it_changes(told: dict[str, list[str]]) -> None:
    lines = told["base  ~  no clip"]
    assert lines[0] == "differ in algo.trust_region" and any(line.startswith("mask: ") for line in lines)
    assert any(line.startswith("gradient: angle") for line in lines)


def test_a_constant_factor_is_an_angle_of_zero(told: dict[str, list[str]]) -> None:
    gradient = next(line for line in told["base  ~  twice"] if line.startswith("gradient"))
    assert gradient.endswith("norm x 2") and float(gradient.split()[2].rstrip("°,")) < 0.1


def test_an_engine_samples_other_responses(told: dict[str, list[str]]) -> None:
    assert any(line.startswith("rollouts: ") for line in told["base  ~  exact engine"])


def test_a_learning_rate_changes_the_step_alone(told: dict[str, list[str]]) -> None:
    lines = told["base  ~  slow"]
    assert lines[0] == "differ in train.optim.lr" and any(line.startswith("step: ") for line in lines)


def test_arms_that_are_one_are_said_to_be(told: dict[str, list[str]]) -> None:
    assert told["base  ~  again"][1] == "these two arms are the same experiment"


def test_a_switch_without_effect_on_the_batch_is_told_apart_from_one_experiment(told: dict[str, list[str]]) -> None:
    assert told["no clip  ~  wide"][1] == "nothing changes in this batch: the switch is without effect here"
