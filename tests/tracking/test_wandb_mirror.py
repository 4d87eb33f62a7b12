"""The real wandb package, offline or against a server on the loopback address; metrics.jsonl is the judge."""

import json
import logging
import math
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from wandb_oracle import offline_runs, serve

from minirl.compose import load
from minirl.config import Config, ConfigError
from minirl.record import RunRecord
from minirl.tracking import wandb as mirror
from minirl.tracking.local import LocalTracker
from minirl.tracking.registry import MIRRORS, build
from minirl.validate import TRACKER_MODES

KEY = "0123456789abcdef" * 3


def config(*overrides: str) -> Config:
    return load(["tracker=wandb", *overrides])


@pytest.fixture(scope="module")
def plain() -> Config:
    return config(
        "seed=3", "run.name='R3, no clip'", "run.group='off policy'", "num_mini_batches=4", "tracker.tags=[mine]"
    )


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]


def same(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> bool:
    """Row by row, number by number; null in a file is NaN in W&B."""
    spelled = [
        [{k: "nan" if v is None or v != v else v for k, v in row.items()} for row in rows] for rows in (left, right)
    ]
    return spelled[0] == spelled[1]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def write_versions(tracker: Any, versions: range) -> None:
    for version in versions:
        tracker.log(version, {"reward/mean": math.sin(version), "eval/avg": 1 / (1 + version)})
        tracker.write(
            version, {"optim/grad_norm": float("nan") if version == 3 else version / 3, "tokens/count": 2.0**40}
        )


def test_every_row_of_metrics_jsonl_is_in_wandb(tmp_path: Path, plain: Config) -> None:
    RunRecord(tmp_path).update(arm="R3, no clip", git={"sha": "abc", "dirty": True}, pid=12)
    tracker = build(plain, tmp_path, "0123456789", 0)
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
        tracker = build(plain, folder, f"{number:010d}", 0)
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


def test_resume_continues_the_same_run(tmp_path: Path, plain: Config) -> None:
    first = build(plain, tmp_path, "0123456789", 0)
    write_versions(first, range(7))
    first.close("interrupted")
    second = build(plain, tmp_path, "0123456789", 0)
    second.truncate(4)
    write_versions(second, range(4, 10))
    second.close("finished")
    files = offline_runs(tmp_path)
    assert len(files) == 2
    assert {run.run.run_id for run in files} == {"off-policy-0123456789-s3"}
    assert sorted(run.exit_code for run in files) == [0, 1]
    by_version: dict[int, dict[str, Any]] = {}
    for row in (row for run in files for row in run.rows):
        assert same([by_version.setdefault(row["version"], row)], [row])
    assert same([by_version[version] for version in range(10)], written(tmp_path))


def test_a_longer_horizon_is_the_same_run_and_both_are_recorded(tmp_path: Path, plain: Config) -> None:
    """W10: resuming with a changed configuration neither fails nor forgets."""
    for num_updates, horizons in ((4, [4]), (8, [4, 8])):
        RunRecord(tmp_path).update(horizons=horizons)
        tracker = build(replace(plain, num_updates=num_updates), tmp_path, "0123456789", 0)
        tracker.truncate(num_updates - 4)
        write_versions(tracker, range(num_updates - 4, num_updates))
        tracker.close("finished")
    first, second = sorted(offline_runs(tmp_path), key=lambda run: run.config["num_updates"])
    assert first.run.run_id == second.run.run_id
    assert (first.config["num_updates"], second.config["num_updates"]) == (4, 8)
    assert second.config["record"]["horizons"] == [4, 8]


def test_a_single_run_needs_no_sweep() -> None:
    facts = mirror.designation(config("seed=1"), "0123456789")
    assert (facts["id"], facts["name"], facts["group"]) == ("0123456789-s1", "minirl-s1", None)


def test_the_key_is_written_nowhere(tmp_path: Path, plain: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    tracker = build(plain, tmp_path, "0123456789", 0)
    write_versions(tracker, range(2))
    tracker.close("finished")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_a_failing_wandb_costs_one_warning(
    tmp_path: Path, plain: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import wandb

    monkeypatch.setattr(wandb.Run, "log", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("the service is gone")))
    tracker = build(plain, tmp_path, "0123456789", 0)
    write_versions(tracker, range(5))
    tracker.samples(5, [{"response": "2"}])
    tracker.close("finished")
    assert [row["version"] for row in written(tmp_path)] == list(range(5))
    (warning,) = warnings_of(caplog)
    assert "the service is gone" in warning
    assert f"wandb sync {tmp_path}" in warning


def test_wandb_that_cannot_start_costs_one_warning(
    tmp_path: Path, plain: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import wandb

    monkeypatch.setattr(wandb, "init", lambda **_: (_ for _ in ()).throw(OSError("no space left")))
    tracker = build(plain, tmp_path, "0123456789", 0)
    write_versions(tracker, range(2))
    tracker.close("finished")
    assert len(written(tmp_path)) == 2
    (warning,) = warnings_of(caplog)
    assert "no space left" in warning
    assert "wandb sync" not in warning


@pytest.mark.parametrize(
    ("key", "message"),
    [("", "set WANDB_API_KEY, or take tracker.mode=offline"), ("too-short", "tracker.mode=online: WANDB_API_KEY")],
)
def test_online_without_a_usable_key_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, message: str
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", key)
    with pytest.raises(ConfigError, match=message):
        build(config("tracker.mode=online"), tmp_path, "0123456789", 0)
    assert not list(tmp_path.iterdir())


def test_every_valid_name_is_a_tracker() -> None:
    assert MIRRORS.keys() == TRACKER_MODES.keys()


def test_only_rank_0_tells(tmp_path: Path, plain: Config) -> None:
    tracker = build(plain, tmp_path, "0123456789", 1)
    write_versions(tracker, range(3))
    tracker.samples(0, [])
    tracker.histograms(0, {})
    tracker.truncate(0)
    tracker.close("finished")
    assert not list(tmp_path.iterdir())


def test_the_local_tracker_does_not_import_wandb(tmp_path: Path) -> None:
    code = "import sys, minirl.tracking.registry; sys.exit('wandb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert isinstance(build(config("tracker=local"), tmp_path, "0123456789", 0), LocalTracker)


ONLINE = """
import logging, pickle, sys
from pathlib import Path
from minirl.tracking.registry import build
logging.basicConfig(format="%(message)s")
config, folder = pickle.loads(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2])
tracker = build(config, folder, "0123456789", 0)
first, last = int(sys.argv[3]), int(sys.argv[4])
tracker.truncate(first)
for version in range(first, last):
    tracker.write(version, {"loss": version / 3})
tracker.close("finished")
"""


def online(tmp_path: Path, address: str, versions: range) -> tuple[Path, str]:
    """A run with tracker.mode=online in a process of its own (wandb reads its environment once); what it printed."""
    given, folder = tmp_path / "config.pickle", tmp_path / "run"
    given.write_bytes(pickle.dumps(config("tracker.mode=online", "seed=2")))
    command = [sys.executable, "-c", ONLINE, given, folder, str(versions.start), str(versions.stop)]
    variables = os.environ | {"WANDB_BASE_URL": address, "WANDB_API_KEY": KEY}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert KEY not in told
    assert not [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    return folder, told


def test_online_rows_arrive_once_each_also_after_a_resume(tmp_path: Path) -> None:
    with serve() as (server, address):
        online(tmp_path, address, range(4))
        assert len(server.rows) == 4
        folder, told = online(tmp_path, address, range(2, 6))
    assert "W&B" not in told
    sent = [{name: value for name, value in row.items() if name[0] != "_"} for row in server.rows]
    assert same(sent, written(folder))
    assert len(sent) == 6
    assert {variables["name"] for variables in server.created} == {"0123456789-s2"}
    assert server.complete == [0, 0]


@pytest.mark.slow
def test_a_server_that_is_away_does_not_stop_the_run(tmp_path: Path) -> None:
    folder, told = online(tmp_path, "http://127.0.0.1:9", range(4))
    assert len(written(folder)) == 4
    (recorded,) = folder.glob("wandb/offline-run-*")
    assert f"wandb sync {recorded}" in told
    (run,) = offline_runs(folder)
    assert same(run.rows, written(folder))
