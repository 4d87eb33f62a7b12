"""Which cells of a sweep still have to be run."""

import json
from pathlib import Path
from typing import Any

import pytest
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf
from rich.console import Console

from minirl.record import Busy
from minirl.sweep.command import SweepCommand, has_result, was_busy
from minirl.sweep.plan import Cell


def cell(folder: Path, arm: str) -> Cell:
    return Cell(arm, 0, "abc", str(folder / arm), (f"run.name={arm}",), None, None)


def recorded(folder: Path, arm: str, **record: Any) -> Cell:
    (folder / arm).mkdir(parents=True)
    (folder / arm / "run.json").write_text(json.dumps(record))
    return cell(folder, arm)


@pytest.mark.parametrize(
    ("state", "as_long", "longer"),
    [
        ("finished", True, False),
        ("collapsed", True, False),  # it was trained to the end of its plan
        ("diverged", True, True),  # it would only diverge again
        ("degenerate", True, True),
        ("failed", False, False),
        ("interrupted", False, False),
        ("running", False, False),
    ],
)
def test_a_result_counts_for_the_horizon_it_was_made_for(
    tmp_path: Path, state: str, as_long: bool, longer: bool
) -> None:
    run = recorded(tmp_path, "a", state=state, num_updates=8)
    assert has_result(run, 8) is as_long
    assert has_result(run, 16) is longer
    assert not has_result(cell(tmp_path, "nothing yet"), 8)


class Recorder:
    """A launcher that notes which arms it is given."""

    def __init__(self) -> None:
        self.launched: list[str] = []

    def launch(self, job_overrides: list[list[str]], initial_job_idx: int) -> list[JobReturn]:
        self.launched += [overrides[0].removeprefix("run.name=") for overrides in job_overrides]
        done = JobReturn(status=JobStatus.COMPLETED)
        done.return_value = "finished"
        return [done] * len(job_overrides)


def test_every_arm_has_a_horizon_of_its_own(tmp_path: Path) -> None:
    """The first arm's says nothing of the others: neither is a short one run again, nor a longer one left short."""
    cells = [recorded(tmp_path, arm, state="finished", num_updates=4) for arm in ("first", "short", "extended")]
    launcher = Recorder()
    command = SweepCommand(OmegaConf.create(), None, launcher, None, Console(quiet=True))
    command._launch(cells, {"first": 4, "short": 2, "extended": 8})
    assert launcher.launched == ["extended"]


@pytest.mark.parametrize(("ended_by", "was"), [(Busy("taken"), True), (ValueError("no"), False)])
def test_a_run_that_another_process_took_is_told_apart_without_hydras_words(
    ended_by: Exception, was: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    job = JobReturn(overrides=["seed=0"], status=JobStatus.FAILED)
    job.return_value = ended_by
    assert was_busy(job) == was
    assert capsys.readouterr().err == ""
