"""metrics.jsonl: whole rows, each version once, whatever happened to the process that wrote them."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minirl.tracking import jsonlines
from minirl.tracking.local import LocalTracker


def rows(path: Path) -> list[dict]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text("utf-8").splitlines()]


def write_versions(tracker: LocalTracker, versions: range) -> None:
    for version in versions:
        if version % 2 == 0:
            tracker.log(version, {"eval/avg": version / 7})
            tracker.samples(version, [{"position": version, "response": "a\nb\u2028c"}])
            tracker.histograms(version, {"length": ([0.0, 1.0, 2.0], [version, 1])})
        tracker.write(version, {"loss": version / 3})


def test_a_row_is_the_version_then_what_was_logged_and_written(tmp_path: Path) -> None:
    tracker = LocalTracker(tmp_path, [])
    tracker.log(0, {"eval/avg": 0.1 + 0.2})
    tracker.log(0, {"reward/mean": 1})
    tracker.write(0, {"optim/grad_norm": 1e-17})
    tracker.write(1, {"optim/grad_norm": 2.5})
    found = rows(tmp_path / "metrics.jsonl")
    assert found == [
        {"version": 0, "eval/avg": 0.1 + 0.2, "reward/mean": 1.0, "optim/grad_norm": 1e-17},
        {"version": 1, "optim/grad_norm": 2.5},
    ]
    assert next(iter(found[0])) == "version"


def test_what_is_not_a_number_is_null(tmp_path: Path) -> None:
    LocalTracker(tmp_path, []).write(0, {"a": float("nan"), "b": float("inf"), "c": -float("inf"), "d": 0.0})
    assert rows(tmp_path / "metrics.jsonl") == [{"version": 0, "a": None, "b": None, "c": None, "d": 0.0}]


def test_a_row_is_on_disk_when_write_returns(tmp_path: Path) -> None:
    tracker = LocalTracker(tmp_path, [])
    tracker.write(0, {"loss": 1.0})
    assert len(rows(tmp_path / "metrics.jsonl")) == 1


def test_close_writes_the_open_row_once(tmp_path: Path) -> None:
    tracker = LocalTracker(tmp_path, [])
    tracker.write(0, {"loss": 1.0})
    tracker.log(1, {"eval/avg": 0.5})
    tracker.close("finished")
    tracker = LocalTracker(tmp_path, [])
    tracker.close("finished")
    assert [row["version"] for row in rows(tmp_path / "metrics.jsonl")] == [0, 1]


def test_rows_cannot_be_mixed_doubled_or_written_backwards(tmp_path: Path) -> None:
    tracker = LocalTracker(tmp_path, [])
    tracker.log(3, {"a": 1.0})
    with pytest.raises(ValueError, match="version 4 while the row of version 3"):
        tracker.log(4, {"b": 1.0})
    with pytest.raises(ValueError, match="a has two values at version 3"):
        tracker.log(3, {"a": 2.0})
    tracker.write(3, {})
    for version in (3, 2):
        with pytest.raises(ValueError, match="cut it back"):
            LocalTracker(tmp_path, []).write(version, {"a": 1.0})
    assert rows(tmp_path / "metrics.jsonl") == [{"version": 3, "a": 1.0}]


def test_sampled_text_stays_one_line(tmp_path: Path) -> None:
    text = "line\nbreak \u2028 separator \u0085 next \ud800 lone surrogate"
    LocalTracker(tmp_path, []).samples(0, [{"response": text}, {"response": ""}])
    found = rows(tmp_path / "samples.jsonl")
    assert [row["response"] for row in found] == [text, ""]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kept=st.integers(0, 400))
def test_a_file_torn_anywhere_opens_with_its_whole_rows(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "torn" / "metrics.jsonl"
    path.unlink(missing_ok=True)
    write_versions(LocalTracker(path.parent, []), range(8))
    content = path.read_bytes()[:kept]
    path.write_bytes(content)
    LocalTracker(path.parent, [])
    whole = content.count(b"\n")
    assert [row["version"] for row in rows(path)] == list(range(whole))
    for name in ("samples", "histograms"):
        (path.parent / f"{name}.jsonl").unlink()


def test_resumed_equals_uninterrupted_and_cut_rows_are_kept(tmp_path: Path) -> None:
    write_versions(LocalTracker(tmp_path / "whole", []), range(10))
    write_versions(LocalTracker(tmp_path / "cut", []), range(7))
    resumed = LocalTracker(tmp_path / "cut", [])
    resumed.truncate(4)
    write_versions(resumed, range(4, 10))
    for name in ("metrics", "samples", "histograms"):
        whole, cut = (tmp_path / folder / f"{name}.jsonl" for folder in ("whole", "cut"))
        assert whole.read_text() == cut.read_text()
        assert len(rows(whole)) >= 5
    assert [row["version"] for row in rows(tmp_path / "cut" / "metrics.cut.jsonl")] == [4, 5, 6]
    assert [row["version"] for row in rows(tmp_path / "cut" / "samples.cut.jsonl")] == [4, 6]


def test_truncating_nothing_leaves_no_trace(tmp_path: Path) -> None:
    tracker = LocalTracker(tmp_path, [])
    tracker.truncate(0)
    write_versions(tracker, range(3))
    tracker.truncate(3)
    assert not list(tmp_path.glob("*.cut.jsonl"))
    assert len(rows(tmp_path / "metrics.jsonl")) == 3


@pytest.mark.parametrize("survived", [0, 1])
def test_killed_while_cutting_each_version_is_there_exactly_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    """A cut is two renames; the process dies before the first or between them, and the resume begins again."""
    write_versions(LocalTracker(tmp_path, []), range(6))
    rename, renames = jsonlines.write_atomically, []

    def dying(path: Path, text: str) -> None:
        if len(renames) == survived:
            raise KeyboardInterrupt
        renames.append(path)
        rename(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(jsonlines, "write_atomically", dying)
        with pytest.raises(KeyboardInterrupt):
            LocalTracker(tmp_path, []).truncate(4)
    assert len(renames) == survived
    LocalTracker(tmp_path, []).truncate(4)
    assert [row["version"] for row in rows(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3]
    assert [row["version"] for row in rows(tmp_path / "metrics.cut.jsonl")] == [4, 5]


WRITER = """
import sys
from pathlib import Path
from minirl.tracking.local import LocalTracker
tracker = LocalTracker(Path(sys.argv[1]), [])
for version in range(10**9):
    tracker.write(version, {f"figure/{number}": version / 3 for number in range(200)})
"""


def test_kill_9_loses_no_written_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)])
    deadline = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size > 100_000) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    LocalTracker(tmp_path, [])
    versions = [row["version"] for row in rows(path)]
    assert versions == list(range(len(versions)))
    assert len(versions) > 10
