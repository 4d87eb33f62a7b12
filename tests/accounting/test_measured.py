"""A recorded run of the same model on the same machine replaces the model's statements by what it measured."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from minirl.accounting.estimate import Estimate, estimate
from minirl.accounting.machine import machine
from minirl.compose import compose, load


def of(*overrides: str) -> Estimate:
    config = load(list(overrides))
    return estimate(config, None, machine(config.machine, config.run, []))


def recorded(outputs: Path, *overrides: str, rollout: float = 0.5, length: float = 9.0) -> None:
    folder = outputs / "runs" / "abc-s0"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        OmegaConf.to_yaml(compose([f"run.outputs={outputs}", *overrides]), resolve=True)
    )
    (folder / "run.json").write_text(json.dumps({"state": "finished"}))
    rows = [
        {"version": v, "length/mean": length, "time/rollout": rollout, "time/old": 0.1, "time/update": 0.3}
        for v in range(4)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_measured_step_calibrates_the_model(tmp_path: Path) -> None:
    recorded(tmp_path)
    found = of(f"run.outputs={tmp_path}")
    assert found.measured is not None and found.measured.run == "abc-s0" and found.work.expected == 9.0
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
