"""What a command leaves of the plan that it finds."""

import json
from pathlib import Path
from typing import Any

import pytest
from stub_checkpoint import write as write_checkpoint

from minirl.compose import compose
from minirl.sweep.expand import Request, expand
from minirl.sweep.file import read
from minirl.sweep.joint_plan import JointPlan, joined
from minirl.sweep.plan import cells, known_starts, plan_arms
from minirl.sweep.status import QUEUE

Seeds = tuple[int, ...] | None


def plan(seeds: Seeds, *fixed: str) -> JointPlan:
    """The plan on disk after a command that asks for these seeds (None: the file's) and has nothing to run."""
    with command(seeds, *fixed) as joint:
        return joint


def command(seeds: Seeds, *fixed: str) -> Any:
    design = expand(read(Path("mine.yaml")), "toy", Request(fixed, {}, seeds, None))
    arms = plan_arms(design, compose)
    starts = known_starts(arms)
    return joined(design, arms, starts, cells(design, arms, starts))


def planned() -> list[tuple[str, int]]:
    tree = json.loads(Path("outputs/sweeps/mine/sweep.json").read_text())
    assert tree["seeds"] == sorted({cell["seed"] for cell in tree["cells"]})
    return [(cell["arm"], cell["seed"]) for cell in tree["cells"]]


def begin(joint: JointPlan, arm: str, seed: int, **record: Any) -> Path:
    folder = next(Path(str(each.folder)) for each in joint.cells if (each.arm, each.seed) == (arm, seed))
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"state": "failed", "num_updates": 8} | record))
    return folder


def write_file(seeds: list[int]) -> None:
    tree = {"base": ["coldstart.checkpoint=start", "num_updates=8"], "arms": {"a": [], "b": ["algo=grpo"]}}
    Path("mine.yaml").write_text(json.dumps(tree | {"seeds": seeds}))


@pytest.fixture(autouse=True)
def sweep(own_folder: Path) -> None:
    write_checkpoint(own_folder / "start", b"1")
    write_file([0, 1])


def both(*seeds: int) -> list[tuple[str, int]]:
    return [(arm, seed) for seed in seeds for arm in "ab"]


def test_fewer_seeds_keep_the_file_s_plan_and_more_are_added() -> None:
    plan((1,))
    assert planned() == both(1)  # nobody has planned the others yet
    plan(None)
    plan((1,))
    assert planned() == both(0, 1)
    plan((5,))
    assert planned() == both(0, 1, 5)


def test_what_nobody_has_begun_is_forgotten_when_the_file_drops_it() -> None:
    write_file([0, 1, 2, 3])
    begin(plan(None), "b", 3)
    write_file([0, 1])
    plan(None)
    assert planned() == [*both(0, 1), ("b", 3)]


@pytest.mark.parametrize("state", ["running", "failed", "interrupted", "finished", "diverged"])
def test_a_run_that_was_begun_stays_however_it_ended(state: str) -> None:
    begin(plan((7,)), "a", 7, state=state)
    plan(None)
    assert planned() == [*both(0, 1), ("a", 7)]


def test_a_run_that_waits_with_a_scheduler_stays() -> None:
    folder = begin(plan((7,)), "a", 7)
    (folder / "run.json").rename(folder / QUEUE)
    plan(None)
    assert planned() == [*both(0, 1), ("a", 7)]


def test_runs_of_another_length_or_of_other_arms_are_counted_as_lost() -> None:
    """A longer plan takes what would go on no further, and no finished shorter run: it would be compared with longer
    ones."""
    joint = plan((7, 8))
    begin(joint, "a", 7, state="finished")
    begin(joint, "a", 8, state="diverged")
    longer = plan(None, "num_updates=16")
    assert planned() == [*both(0, 1), ("a", 8)] and longer.lost == 1
    assert plan(None, "num_updates=16").lost == 0  # said once
    other = plan((0,), "num_updates=16", "group_size=2")
    assert planned() == both(0) and other.lost == 1


def test_outputs_under_another_name_are_the_same_runs(own_folder: Path) -> None:
    begin(plan(None), "a", 0)
    assert plan(None, f"run.outputs={own_folder / 'outputs'}").lost == 0
    assert planned() == both(0, 1)


def test_while_another_command_works_all_that_it_plans_stays() -> None:
    with command((7, 8)):
        plan((9,))
        assert planned() == both(7, 8, 9)
    plan((9,))
    assert planned() == both(9)


def test_a_plan_that_cannot_be_read_is_written_again() -> None:
    begin(plan(None), "a", 0)
    path = Path("outputs/sweeps/mine/sweep.json")
    path.write_text(path.read_text()[:100])
    plan((1,))
    assert planned() == [("a", 0), *both(1)]
