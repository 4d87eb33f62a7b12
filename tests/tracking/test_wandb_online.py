"""Online, against a server on the loopback address: what arrives is what metrics.jsonl holds, each version once."""

from pathlib import Path

import pytest
from wandb_child import IMPATIENT, command, online, refuse_key, wandb_sync
from wandb_files import offline_runs
from wandb_server import KEY, Fault, Server, serve
from wandb_store import same, written

SLOW = pytest.mark.slow


def arrived(server: Server, run: str = "0123456789-s2") -> list[dict]:
    """The history's figures, without W&B's own keys and media. The order and the steps are those of the server."""
    history = server.runs[run].history
    assert [row["_step"] for row in history] == [row["version"] for row in history] == list(range(len(history)))
    return [
        {name: value for name, value in row.items() if name[0] != "_" and not isinstance(value, dict)}
        for row in history
    ]


def test_a_killed_run_goes_on_where_the_server_stopped_hearing_of_it(tmp_path: Path) -> None:
    """Killed before a row was sent: the resumed process tells what the first one could not. All kinds of facts."""
    with serve() as server:
        killed = online(tmp_path / "run", server.address, range(7), ending="kill -9", patience=(20, 20, 60))
        assert server.runs == {} or not server.run.history
        done = online(tmp_path / "run", server.address, range(4, 10), "run.group=figure", level=-0.01)
    assert killed.warnings == done.warnings == []
    run = server.runs["figure-0123456789-s2"]
    assert same(arrived(server, "figure-0123456789-s2"), written(done.folder))
    assert len(written(done.folder)) == 10
    assert [row["version"] for row in run.history if "samples" in row] == [0, 2, 4, 6, 8]
    assert [row["histogram/is_weight/value"]["values"] for row in run.history[::2]] == [[v, 1] for v in (0, 2, 4, 6, 8)]
    assert len([name for name in run.files if name.startswith("media/table/")]) == 5
    assert run.config["algo"]["trust_region"]["high"] == 0.27
    assert run.config["record"]["git"]["sha"] == run.facts["commit"] == "c0ffee"
    assert (run.facts["groupName"], run.facts["jobType"], run.facts["displayName"]) == ("figure", "train", "minirl-s2")
    assert run.summary["eval/avg"] == {"max": 0.05 * 4, "last": -0.01 * 10}
    assert run.summary["ending"] == "finished"
    assert run.endings == [0]


@pytest.mark.parametrize("rewinds", [True, pytest.param(False, marks=SLOW)])
def test_rows_that_a_resumed_run_makes_again_are_on_the_server_once(tmp_path: Path, rewinds: bool) -> None:
    """The first process had sent rows 4 to 6, behind its checkpoint. A server that can is asked to drop them."""
    with serve() as server:
        server.rewinds = rewinds
        server.mark = 7, tmp_path / "run" / "sent"
        online(tmp_path / "run", server.address, range(7), ending="kill -9", halt=6)
        before = server.run.history
        assert len(before) == 7
        told = online(tmp_path / "run", server.address, range(4, 10))
    rows = arrived(server)
    assert len(rows) == 10
    again = range(10) if rewinds else range(7, 10)
    assert same([rows[version] for version in again], [written(told.folder)[version] for version in again])
    if rewinds:
        assert told.warnings == []
        assert server.run.archived == before[4:]
    else:
        (warning,) = told.warnings
        assert "updates 4 to 6" in warning
        assert server.run.history[:7] == before


FAULTS = {
    "401": {"status": 401},
    "429": {"status": 429},
    "500": {"status": 500},
    "hangs": {"hang": True},
    "drops": {"drop": True},
}


@SLOW
@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_fails_from_the_start_costs_one_warning_and_no_row(tmp_path: Path, fault: str) -> None:
    with serve(Fault(".", **FAULTS[fault])) as server:
        told = online(tmp_path / "run", server.address, range(6), patience=IMPATIENT)
        assert len(written(told.folder)) == 6
        (warning,) = told.warnings
        assert warning.endswith(f"minirl sync {told.folder}")
        server.faults.clear()
        (recorded,) = offline_runs(told.folder)
        assert same(recorded.rows, written(told.folder))
        sent = command(server.address, "sync", str(told.folder))
    assert sent.returncode == 0, sent.stderr
    assert "6 rows" in sent.stdout
    assert same(arrived(server), written(told.folder))
    refuse_key(told.folder, sent.stdout + sent.stderr)


@SLOW
def test_a_server_that_is_away_costs_one_warning_and_no_row(tmp_path: Path) -> None:
    told = online(tmp_path / "run", "http://127.0.0.1:9", range(6), patience=IMPATIENT)
    assert len(written(told.folder)) == 6
    (warning,) = told.warnings
    assert warning.endswith(f"minirl sync {told.folder}")
    assert command("http://127.0.0.1:9", "sync", str(told.folder)).returncode == 1
    with serve() as server:
        assert command(server.address, "sync", str(told.folder)).returncode == 0
        assert "no rows" in command(server.address, "sync", str(told.folder)).stdout
    assert same(arrived(server), written(told.folder))


@pytest.mark.parametrize("fault", ["401", *(pytest.param(name, marks=SLOW) for name in FAULTS if name != "401")])
def test_a_server_that_vanishes_costs_one_warning_and_no_row(tmp_path: Path, fault: str) -> None:
    """It takes the first rows and then fails; what it lacks is sent later, and what it has is not sent again."""
    with serve() as server:
        server.mark, server.later = (6, tmp_path / "run" / "sent"), [Fault("file_stream", **FAULTS[fault])]
        told = online(tmp_path / "run", server.address, range(12), halt=5, patience=(30, 4, 0.5))
        assert len(server.run.history) == (12 if fault == "drops" else 6)  # what it dropped, it took
        (warning,) = told.warnings
        assert warning.endswith(f"minirl sync {told.folder}")
        server.faults.clear()
        sent = command(server.address, "sync", str(told.folder))
    assert sent.returncode == 0, sent.stderr
    assert same(arrived(server), written(told.folder))
    refuse_key(told.folder, sent.stdout + sent.stderr)


@SLOW
def test_an_answer_that_is_lost_doubles_no_row(tmp_path: Path) -> None:
    """The server took two parcels and the connection broke before it could say so; a slow one after that."""
    with serve(Fault("file_stream", times=2, drop=True), Fault(".", times=6, delay=0.3)) as server:
        told = online(tmp_path / "run", server.address, range(8), patience=(30, 30, 0.3))
    assert told.warnings == []
    assert same(arrived(server), written(told.folder))


@pytest.mark.parametrize("ending", ["collapsed", pytest.param("failed", marks=SLOW)])
def test_collapse_and_failure_raise_an_alert(tmp_path: Path, ending: str) -> None:
    level = -0.05 if ending == "collapsed" else 0.0
    with serve() as server:
        online(tmp_path / "run", server.address, range(5), level=level, ending=ending)
    titles = [alert["title"] for alert in server.run.alerts]
    live = ["minirl-s2 is collapsing"] if ending == "collapsed" else []
    assert titles == [*live, f"minirl-s2 {ending}"]
    assert server.run.endings == [0 if ending == "collapsed" else 1]


def test_an_offline_run_is_sent_by_wandb_itself(tmp_path: Path) -> None:
    """Recorded by two processes, the first killed; `wandb sync` sends every version once."""
    folder = tmp_path / "run"
    online(folder, "http://127.0.0.1:9", range(5), "tracker.mode=offline", ending="kill -9")
    online(folder, "http://127.0.0.1:9", range(3, 8), "tracker.mode=offline")
    with serve() as server:
        wandb_sync(server.address, *folder.glob("wandb/offline-run-*"))
        assert same(arrived(server), written(folder))
        assert len(server.run.history) == 8
        assert "no rows" in command(server.address, "sync", str(folder)).stdout
    assert server.run.config["arm"] == "minirl"
    assert len([name for name in server.run.files if name.startswith("media/table/")]) == 4


@SLOW
def test_files_are_sent_where_they_are_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for name in ("checkpoints/8/weights.bin", "checkpoints/16/weights.bin", "rollouts/0.jsonl"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    with serve() as server:
        online(folder, server.address, range(2), "tracker.artifacts=[rollouts,checkpoint]")
    kinds = {made["artifactTypeName"]: made for made in server.artifacts if made["artifactTypeName"] != "run_table"}
    assert kinds.keys() == {"rollouts", "checkpoint"}
    assert kinds["rollouts"]["files"] == {"0.jsonl": b"rollouts/0.jsonl"}
    assert kinds["checkpoint"]["files"] == {"weights.bin": b"checkpoints/16/weights.bin"}


def test_what_cannot_be_sent_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    done = command("http://127.0.0.1:9", "sync", str(tmp_path))
    assert done.returncode == 2
    assert KEY not in done.stderr
    assert "no sweep of this name" in done.stderr
