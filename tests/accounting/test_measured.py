"""A recorded run of the same model on the same machine replaces the model's statements by what it measured."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from minirl.accounting.estimate import Estimate, estimate
from minirl.accounting.machine import machine
from minirl.compose import compose, load

Phases = Mapping[str, float] | None


def of(*overrides: str) -> Estimate:
    config = load(list(overrides))
    return estimate(config, None, machine(config.machine, config.run, []))


def recorded(
    outputs: Path, *overrides: str, name: str = "abc-s0", rollout: float = 0.5, length: float = 9.0, cpu: Phases = None
) -> None:
    """cpu: seconds of the CPU by phase; none are recorded where none are given."""
    folder = outputs / "runs" / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        OmegaConf.to_yaml(compose([f"run.outputs={outputs}", *overrides]), resolve=True)
    )
    (folder / "run.json").write_text(json.dumps({"state": "finished"}))
    row = {"length/mean": length, "time/rollout": rollout, "time/old": 0.1, "time/update": 0.3}
    row |= {f"time/{phase}_cpu": seconds for phase, seconds in (cpu or {}).items()}
    rows = [{"version": v} | row for v in range(4)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_measured_step_calibrates_the_model(tmp_path: Path) -> None:
    recorded(tmp_path)
    found = of(f"run.outputs={tmp_path}")
    assert found.measured is not None and found.measured.runs == ("abc-s0",) and found.work.expected == 9.0
    assert found.seconds.total == pytest.approx(0.9)
    # twice the group is about twice the work, by the model, from the measured level
    assert of(f"run.outputs={tmp_path}", "group_size=16").seconds.total == pytest.approx(1.8, rel=0.1)


@pytest.mark.parametrize("other", ["model=tiny_dense", "run.num_threads=2", "machine.host_memory_gib=8"])
def test_a_run_of_something_else_does_not(tmp_path: Path, other: str) -> None:
    recorded(tmp_path, other)
    assert of(f"run.outputs={tmp_path}").measured is None


def test_a_run_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    recorded(tmp_path)
    (tmp_path / "runs" / "abc-s0" / "config.yaml").write_text("algo: {no_such_key: 1}\n")
    assert of(f"run.outputs={tmp_path}").measured is None


def test_a_run_whose_evaluation_files_are_gone_is_passed_over(tmp_path: Path) -> None:
    """How many problems its evaluations had cannot be told any more."""
    held_out = tmp_path / "test.jsonl"
    held_out.write_text('{"problem": "1 + 1"}\n' * 20)
    task = ["task=math", "eval.num_problems=null", f"task.train.path={held_out}"]
    recorded(tmp_path, *task)
    assert of(f"run.outputs={tmp_path}").measured is not None
    held_out.unlink()
    assert of(f"run.outputs={tmp_path}").measured is None


def test_a_run_of_a_loaded_machine_does_not_move_the_median(tmp_path: Path) -> None:
    for number, rollout in enumerate((0.5, 0.6, 30.0)):
        recorded(tmp_path, name=f"abc-s{number}", rollout=rollout, length=9.0 + number)
    found = of(f"run.outputs={tmp_path}")
    assert found.measured is not None and len(found.measured.runs) == 3
    assert found.work.expected == 10.0 and found.measured.length == 10.0
    # the middle factor is the second run's; its lengths are the median's
    assert found.seconds.total == pytest.approx(1.0)
    for number in range(3, 9):
        recorded(tmp_path, name=f"abc-s{number}", rollout=0.2)
    assert len(of(f"run.outputs={tmp_path}").measured.runs) == 5


def test_a_process_on_one_thread_is_measured_by_its_cpu(tmp_path: Path) -> None:
    """A loaded machine stretches the wall clock and not the CPU's; several threads, or an engine elsewhere, have no
    such figure."""
    cpu = {"rollout": 0.2, "old": 0.05, "update": 0.15}
    recorded(tmp_path / "one", rollout=5.0, cpu=cpu)
    assert of(f"run.outputs={tmp_path / 'one'}").seconds.total == pytest.approx(0.4)
    recorded(tmp_path / "two", "run.num_threads=2", rollout=5.0, cpu=cpu)
    assert of(f"run.outputs={tmp_path / 'two'}", "run.num_threads=2").seconds.total == pytest.approx(5.4)


def test_a_row_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    recorded(tmp_path)
    with (tmp_path / "runs" / "abc-s0" / "metrics.jsonl").open("a") as rows:
        rows.write('{"version": 4, "length/m')
    assert of(f"run.outputs={tmp_path}").seconds.total == pytest.approx(0.9)
