"""The real wandb package offline; metrics.jsonl is the judge."""

import json
import logging
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from wandb_files import OfflineRun, offline_runs
from wandb_store import same, written

from minirl.compose import load
from minirl.config import Config
from minirl.interfaces import Tracker
from minirl.record import RunRecord
from minirl.tracking.designation import of_coldstart, of_evaluation, of_training
from minirl.tracking.local import LocalTracker
from minirl.tracking.registry import MIRRORS, build, build_aside
from minirl.validate import ARTIFACTS, TRACKER_MODES


def config(*overrides: str) -> Config:
    return load(["tracker=wandb", *overrides])


@pytest.fixture(scope="module")
def plain() -> Config:
    return config(
        "seed=3", "run.name='R3, no clip'", "run.group='off policy'", "num_mini_batches=4", "tracker.tags=[mine]"
    )


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def begun(config: Config, folder: Path, version: int = 0, identity: str = "0123456789") -> Tracker:
    tracker = build(config, folder, identity, 0)
    tracker.truncate(version)
    return tracker


def write_versions(tracker: Any, versions: range) -> None:
    for version in versions:
        tracker.log(version, {"reward/mean": math.sin(version), "eval/avg": 1 / (1 + version), "eval/se": 0.5})
        tracker.write(
            version, {"optim/grad_norm": float("nan") if version == 3 else version / 3, "tokens/count": 2.0**40}
        )


def test_every_row_of_metrics_jsonl_is_in_wandb(tmp_path: Path, plain: Config) -> None:
    RunRecord(tmp_path).update(arm="R3, no clip", git={"sha": "abc", "dirty": True}, pid=12)
    tracker = begun(plain, tmp_path)
    tracker.samples(0, [{"position": 0, "prompt": "1+1=", "response": "2$", "reward": 1.0}])
    tracker.histograms(0, {"length": ([0.0, 1.0, 2.0], [5, 7])})
    write_versions(tracker, range(6))
    tracker.log(6, {"eval/avg": 0.25})
    tracker.close("finished")

    (run,) = offline_runs(tmp_path)
    assert same(run.rows, written(tmp_path))
    assert len(run.rows) == 7
    assert [row["_step"] for row in run.history] == list(range(7))
    assert run.exit_code == 0

    assert run.run.run_id == "off-policy-0123456789-s3"
    assert run.run.display_name == "R3, no clip-s3"
    assert (run.run.run_group, run.run.job_type, run.run.project) == ("off policy", "train", "minirl")
    assert list(run.run.tags) == ["mine", "minirl", "tiny_moe", "addition", "live", "fp8", "N4"]
    assert run.config["algo"]["trust_region"]["high"] == 0.27
    assert run.config["algo"]["routing"] == "live"
    assert run.config["num_mini_batches"] == 4
    assert run.config["arm"] == "R3, no clip"
    assert run.config["record"] == {
        "identity": "0123456789",
        "arm": "R3, no clip",
        "git": {"sha": "abc", "dirty": True},
    }

    steps = {metric.name or metric.glob_name: metric.step_metric for metric in run.metrics}
    assert steps["*"] == "version"
    assert run.summary["eval/avg"] == {"max": 1.0, "last": 0.25}
    assert run.summary["reward/mean"] == {"max": math.sin(2), "last": math.sin(5)}
    assert run.summary["ending"] == "finished"

    assert run.history[0]["histogram/length.values"] == [5, 7]
    (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/*.json")
    assert json.loads(table.read_text())["data"] == [[0, "1+1=", "2$", 1.0]]


def test_six_runs_of_one_process_are_six_runs(tmp_path: Path, plain: Config) -> None:
    """Three one after another, three at the same time (W07)."""
    folders = [tmp_path / str(number) for number in range(6)]
    trackers = []
    for number, folder in enumerate(folders):
        tracker = begun(plain, folder, identity=f"{number:010d}")
        if number < 3:
            write_versions(tracker, range(number + 1))
            tracker.close("finished")
        else:
            trackers.append(tracker)
    for number, tracker in enumerate(trackers, start=3):
        write_versions(tracker, range(number + 1))
        tracker.close("collapsed")
    runs = [run for folder in folders for run in offline_runs(folder)]
    assert len({run.run.run_id for run in runs}) == 6
    assert {run.run.run_group for run in runs} == {"off policy"}
    for number, (folder, run) in enumerate(zip(folders, runs, strict=True)):
        assert len(run.rows) == number + 1
        assert same(run.rows, written(folder))


def test_a_resumed_run_is_recorded_whole_and_once(tmp_path: Path, plain: Config) -> None:
    """Rows 4 to 6 are cut and made again; what is there to be synced has each version once, samples included."""
    first = begun(plain, tmp_path)
    first.samples(0, [{"response": "2"}])
    write_versions(first, range(7))
    first.close("interrupted")
    second = begun(plain, tmp_path, 4)
    write_versions(second, range(4, 10))
    second.close("finished")
    (run,) = offline_runs(tmp_path)
    assert run.run.run_id == "off-policy-0123456789-s3"
    assert same(run.rows, written(tmp_path))
    assert [row["_step"] for row in run.history] == list(range(10))
    assert "samples._type" in run.history[0]
    (before,) = tmp_path.glob("wandb/superseded-offline-run-*/*.wandb")
    assert OfflineRun(before).exit_code == 1


def test_a_longer_horizon_is_the_same_run_and_both_are_recorded(tmp_path: Path, plain: Config) -> None:
    """W10: resuming with a changed configuration neither fails nor forgets."""
    for num_updates, horizons in ((4, [4]), (8, [4, 8])):
        RunRecord(tmp_path).update(horizons=horizons)
        tracker = begun(replace(plain, num_updates=num_updates), tmp_path, num_updates - 4)
        write_versions(tracker, range(num_updates - 4, num_updates))
        tracker.close("finished")
    (second,) = offline_runs(tmp_path)
    (first,) = map(OfflineRun, tmp_path.glob("wandb/superseded-*/*.wandb"))
    assert first.run.run_id == second.run.run_id
    assert (first.config["num_updates"], second.config["num_updates"]) == (4, 8)
    assert second.config["record"]["horizons"] == [4, 8]
    assert len(second.rows) == 8


def test_names_tell_a_run_its_evaluations_and_its_cold_start_apart() -> None:
    alone = of_training(config("seed=1"), "0123456789", {})
    assert (alone.id, alone.name, alone.group, alone.job_type) == ("0123456789-s1", "minirl-s1", None, "train")
    evaluated = of_evaluation(config("run.group=sweep"), "0123456789-s1-32-abcdef", {})
    assert (evaluated.id, evaluated.job_type) == ("sweep-eval-0123456789-s1-32-abcdef", "eval")
    start = of_coldstart(config("run.group=sweep"), "abcdef")
    assert (start.id, start.group, start.job_type) == ("coldstart-abcdef", "sweep", "coldstart")


@pytest.mark.parametrize("broken", ["log", "finish"])
def test_a_failing_wandb_costs_one_warning(
    tmp_path: Path,
    plain: Config,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: str,
) -> None:
    import wandb

    monkeypatch.setattr(wandb.Run, broken, lambda *_, **__: (_ for _ in ()).throw(RuntimeError("the service is gone")))
    tracker = begun(plain, tmp_path, identity=broken)
    write_versions(tracker, range(5))
    tracker.samples(5, [{"response": "2"}])
    tracker.close("finished")
    assert [row["version"] for row in written(tmp_path)] == list(range(5))
    (warning,) = warnings_of(caplog)
    assert "the service is gone" in warning
    assert warning.endswith(f"minirl sync {tmp_path}")


def test_wandb_that_cannot_start_costs_one_warning(
    tmp_path: Path, plain: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import wandb

    monkeypatch.setattr(wandb, "init", lambda **_: (_ for _ in ()).throw(OSError("no space left")))
    tracker = begun(plain, tmp_path)
    write_versions(tracker, range(2))
    tracker.close("finished")
    assert len(written(tmp_path)) == 2
    (warning,) = warnings_of(caplog)
    assert "no space left" in warning


def test_nobody_waits_for_wandb(tmp_path: Path, plain: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library hangs in its very first call: every row is written all the same, before it has answered."""
    import threading

    import wandb

    answer = threading.Event()
    monkeypatch.setattr(wandb, "init", lambda **_: answer.wait() and None)
    tracker = begun(plain, tmp_path)
    write_versions(tracker, range(50))
    assert len(written(tmp_path)) == 50
    answer.set()
    tracker.close("finished")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "set WANDB_API_KEY, or take tracker.mode=offline"),
        ("too-short", "tracker.mode=online: WANDB_API_KEY invalid"),
    ],
)
def test_online_without_a_usable_key_is_bad_input(tmp_path: Path, key: str, message: str) -> None:
    """In a process of its own: a key that the library has once seen is kept until its process ends."""
    code = """
import sys
from pathlib import Path
from minirl.compose import load
from minirl.config import ConfigError
from minirl.tracking.registry import build
try:
    build(load(["tracker=wandb", "tracker.mode=online"]), Path(sys.argv[1]), "0123456789", 0)
except ConfigError as error:
    print(error)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(command, env=os.environ | {"WANDB_API_KEY": key}, capture_output=True, text=True)
    assert message in done.stdout, done.stderr
    assert not (tmp_path / "run").exists()


def test_every_valid_name_is_known_to_the_room() -> None:
    from minirl.tracking.wandb import ARTIFACTS as FOLDERS

    assert MIRRORS.keys() == TRACKER_MODES.keys()
    assert FOLDERS.keys() == set(ARTIFACTS)


def test_only_rank_0_tells(tmp_path: Path, plain: Config) -> None:
    for tracker in (
        build(plain, tmp_path, "0123456789", 1),
        build_aside(plain, tmp_path, of_coldstart(plain, "abc"), 1),
        build_aside(config("tracker=local"), tmp_path, of_coldstart(plain, "abc"), 0),
    ):
        tracker.truncate(0)
        write_versions(tracker, range(3))
        tracker.samples(0, [])
        tracker.histograms(0, {})
        tracker.close("finished")
    assert not list(tmp_path.iterdir())


def test_a_disabled_wandb_is_the_local_tracker(tmp_path: Path) -> None:
    code = "import sys, minirl.tracking.registry; sys.exit('wandb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    for words in ("tracker=local", "tracker.mode=disabled"):
        tracker = begun(config(words), tmp_path / words)
        write_versions(tracker, range(2))
        tracker.close("finished")
        assert isinstance(tracker, LocalTracker)
        assert not (tmp_path / words / "wandb").exists()
