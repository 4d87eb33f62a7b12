"""Folders as they are found after crashes, kills and moves."""

import json
from pathlib import Path

import pytest
from synthetic_sweep import ARMS, write_sweep

from minirl.config import ConfigError
from minirl.report.claims import evaluate
from minirl.report.read import read_run, read_sweep


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    arms = {name: ARMS[name] for name in ("MiniRL", "R3")}
    return write_sweep(tmp_path / "off_policy", arms=arms, seeds=range(3), claims=[])


def runs_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def change(run: Path, **record: object) -> None:
    path = run / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | record))


def test_a_whole_sweep(folder: Path) -> None:
    sweep = read_sweep(folder)
    assert list(sweep.arms) == ["MiniRL", "R3"]
    assert [run.seed for run in sweep.arms["R3"].runs] == [0, 1, 2]
    run = sweep.arms["R3"].runs[0]
    assert (run.state, run.version, run.horizon, run.remarks) == ("finished", 96, 96, ())
    assert run.config["algo.routing"] == "r3"
    assert run.config["task.options"] == {}
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert run.curves["eval/avg"].values.tolist() == [row["eval/avg"] for row in lines if "eval/avg" in row]
    assert run.curves["eval/avg"].versions.tolist() == list(range(0, 97, 8))


def test_a_torn_last_line_is_left_out_and_said(folder: Path) -> None:
    path = runs_of(folder)[0]
    text = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(text[:40]) + text[40][:25])
    run = read_run(path)
    assert run.version == 39
    assert run.remarks == ("metrics.jsonl: the last line is torn, left out",)


def test_a_broken_line_and_a_version_twice_are_said(folder: Path) -> None:
    path = runs_of(folder)[0] / "metrics.jsonl"
    lines = path.read_text().splitlines()
    lines[3] = "\x00\x00"
    lines.insert(8, json.dumps({"version": 7, "reward/mean": 0.123}))
    path.write_text("\n".join(lines) + "\n")
    run = read_run(path.parent)
    assert run.remarks == (
        "metrics.jsonl: line 4 is no row, left out",
        "metrics.jsonl: version 7 appears twice, the later row counts",
    )
    assert run.curves["reward/mean"].until(7) == 0.123
    assert len(run.curves["optim/grad_norm"]) == 94


def test_a_cell_that_never_began(folder: Path) -> None:
    for file in (gone := runs_of(folder)[0]).iterdir():
        file.unlink()
    gone.rmdir()
    run = next(run for run in read_sweep(folder).runs if run.folder == gone)
    assert (run.state, run.curves, run.version, run.has_result) == ("missing", {}, 0, False)


def test_a_record_or_configuration_that_cannot_be_read(folder: Path) -> None:
    first, second, *_ = runs_of(folder)
    (first / "run.json").write_text('{"state": "fin')
    (second / "config.yaml").write_text("a: [1\nb: }")
    run = read_run(first, seed=4)
    assert (run.state, run.seed, run.has_result, run.horizon) == ("unreadable", 4, False, 96)
    assert "run.json cannot be read" in run.remarks[0]
    assert "config.yaml cannot be read" in read_run(second).remarks[0]


@pytest.mark.parametrize("state", ["running", "failed", "interrupted"])
def test_an_unfinished_run_has_no_end(folder: Path, state: str) -> None:
    change(runs_of(folder)[0], state=state)
    run = read_run(runs_of(folder)[0])
    assert not run.has_result
    assert run.curve("eval/avg") is run.curves["eval/avg"]


def test_a_diverged_run_is_a_result_carried_to_its_plan(folder: Path) -> None:
    path = runs_of(folder)[0]
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:50]))
    change(path, state="diverged", version=49)
    run = read_run(path)
    assert run.has_result
    carried, recorded = run.curve("eval/avg"), run.curves["eval/avg"]
    assert carried is not None
    assert (recorded.versions[-1], carried.versions[-1]) == (48, 96)
    assert carried.values[-1] == recorded.values[-1]


def test_arms_that_share_runs_or_have_none(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", seeds=[0, 1], same_as={"again": "R2"}, excluded={"dense": "no experts"})
    sweep = read_sweep(folder)
    assert sweep.arms["again"].same_as == "R2"
    assert sweep.arms["again"].runs == sweep.arms["R2"].runs
    assert (sweep.arms["dense"].excluded, sweep.arms["dense"].runs) == ("no experts", ())
    assert [arm.name for arm in sweep.distinct_arms] == list(ARMS)
    assert len(sweep.runs) == 8


def test_a_sweep_that_was_moved_is_read_where_it_lies(folder: Path, tmp_path: Path) -> None:
    before = read_sweep(folder)
    moved = folder.rename(tmp_path / "elsewhere")
    assert [run.state for run in read_sweep(moved).runs] == [run.state for run in before.runs]


def test_no_sweep(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run `minirl sweep"):
        read_sweep(tmp_path)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        read_sweep(tmp_path)


def test_reading_changes_nothing(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    evaluate(read_sweep(folder))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
