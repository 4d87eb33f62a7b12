"""Every arm is composed, checked and identified before anything runs."""

import json
from pathlib import Path

import pytest
from stub_checkpoint import write as write_checkpoint

from minirl.compose import compose
from minirl.config import ConfigError
from minirl.sweep.expand import Request, expand
from minirl.sweep.file import read
from minirl.sweep.plan import Cell, PlannedArm, cells, known_starts, plan_arms, proportional, sweep_folder, write

BASE = "base: [coldstart.checkpoint=start]\n"


def planned(folder: Path, text: str, *fixed: str) -> tuple[list[PlannedArm], list[Cell]]:
    write_checkpoint(folder / "start", b"1")
    (folder / "mine.yaml").write_text(BASE + text)
    design = expand(read(folder / "mine.yaml"), "toy", Request(fixed, {}, None, None))
    arms = plan_arms(design, compose)
    found = cells(design, arms, known_starts(arms))
    write(design, arms, found)
    return arms, found


def test_arms_that_are_one_experiment_share_a_run(own_folder: Path) -> None:
    """At N = 1 R2 is live and no clipping is clipping; the table says so and only one of them runs."""
    text = "arms: {a: [], no clip: [algo=minirl_no_clip], R2: [algo.routing=r2], R3: [algo.routing=r3]}\nseeds: [0, 1]"
    _, found = planned(own_folder, text)
    assert [(cell.arm, cell.seed) for cell in found[:4]] == [("a", 0), ("no clip", 0), ("R2", 0), ("R3", 0)]
    assert [cell.same_as for cell in found] == [None, "a", "a", None] * 2
    assert [cell.runs for cell in found] == [True, False, False, True] * 2
    assert found[0].folder == f"outputs/sweeps/mine/{found[0].identity}-s0"
    assert len({cell.folder for cell in found}) == 4
    _, off_policy = planned(own_folder, text, "num_mini_batches=8")
    assert all(cell.runs for cell in off_policy)


def test_seeds_and_names_are_no_part_of_the_identity(own_folder: Path) -> None:
    _, found = planned(own_folder, "arms: {a: [], b: [algo=grpo]}\nseeds: [0, 1, 2]")
    assert len({cell.identity for cell in found}) == 2
    assert found[0].overrides == ("coldstart.checkpoint=start", "seed=0", "run.name=a", "run.group=mine")


def test_excluded_cells_are_listed_with_their_reason_and_not_checked(own_folder: Path) -> None:
    """R3 of a dense model could not be run at all; rules see the composed configuration."""
    text = """
arms: {live: [], R3: [algo.routing=r3]}
exclude: [{when: {model.num_experts: 0, algo.routing: [r2, r3]}, reason: no routers}]
"""
    _, dense = planned(own_folder, text, "model=tiny_dense")
    assert [(cell.excluded, cell.runs) for cell in dense] == [(None, True), ("no routers", False)]
    _, mixture = planned(own_folder, text)
    assert all(cell.runs for cell in mixture)
    with pytest.raises(ConfigError, match=r"exclude: algo\.rooting: no such key; did you mean algo\.routing"):
        planned(own_folder, text.replace("algo.routing: [", "algo.rooting: ["))


def test_every_arm_is_checked_before_the_first_starts(own_folder: Path) -> None:
    text = "arms: {good: [], typo: [algo=grop], dense: [model=tiny_dense, algo.routing=r3]}"
    with pytest.raises(ConfigError) as raised:
        planned(own_folder, text)
    assert "arm 'typo': algo=grop: no such algo; did you mean grpo?" in str(raised.value)
    assert "arm 'dense': algo.routing=r3 needs a MoE model" in str(raised.value)
    assert not (own_folder / "outputs").exists()
    with pytest.raises(ConfigError) as raised:
        planned(own_folder, "arms: {a: [], b: []}", "group_size=1")
    assert len(str(raised.value).splitlines()) == 1  # what is wrong with all arms is said once


def test_claims_are_checked_first(own_folder: Path) -> None:
    text = "arms: {a: [], b: []}\nclaims: [{text: T, metric: eval/avg, arms: [a, c], relation: greater}]"
    with pytest.raises(ConfigError, match="no arm is called 'c'"):
        planned(own_folder, text)


def test_a_constant_on_the_loss_is_named(own_folder: Path) -> None:
    arms, _ = planned(
        own_folder, "arms: {a: [], loo: [algo.advantage=leave_one_out], x2: [algo.aggregation.scale=2], g: [algo=grpo]}"
    )
    assert proportional(arms, known_starts(arms)) == {"loo": "a", "x2": "a"}


def test_the_plan_on_disk(own_folder: Path) -> None:
    arms, found = planned(own_folder, "title: T\narms: {a: [], b: [algo=grpo]}\nseeds: [4]")
    tree = json.loads((sweep_folder(arms[0].config) / "sweep.json").read_text())
    assert tree["name"] == "mine" and tree["title"] == "T" and tree["seeds"] == [4] and tree["scale"] == "toy"
    assert tree["arms"] == {"a": [], "b": ["algo=grpo"]} and tree["base"] == ["coldstart.checkpoint=start"]
    assert [tuple(cell) for cell in tree["cells"]] == [
        ("arm", "seed", "identity", "folder", "overrides", "same_as", "excluded")
    ] * 2
    assert tree["cells"][1]["identity"] == found[1].identity


def test_another_start_is_another_experiment(own_folder: Path) -> None:
    _, before = planned(own_folder, "arms: {a: []}")
    write_checkpoint(own_folder / "other", b"2")
    _, after = planned(own_folder, "arms: {a: []}", "coldstart.checkpoint=other")
    assert before[0].identity != after[0].identity
    write_checkpoint(own_folder / "copy", b"1")
    _, copied = planned(own_folder, "arms: {a: []}", "coldstart.checkpoint=copy")
    assert before[0].identity == copied[0].identity
