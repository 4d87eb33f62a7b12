"""What a run does about its own curves: it warns, it keeps the last good checkpoint, and it may end."""

import json
from pathlib import Path

import pytest
from small_runs import rows as recorded
from small_runs import start

from minirl.lookout import Lookout, recorded_rows
from minirl.metrics.alarms import BANDS
from minirl.metrics.collapse import Collapse
from minirl.policy.checkpoint import good, mark_good, prune
from minirl.record import RunRecord, State
from minirl.types import Collapsed

FALL = [0.5, 0.6, 0.7, 0.75, 0.8, 0.8, 0.2, 0.1, 0.05, 0.05]
STEADY = [0.5, 0.6, 0.7, 0.75, 0.8, 0.8, 0.79, 0.81, 0.8, 0.8]


class Inner:
    """A tracker that takes everything."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.closed = ""

    def log(self, version, values): ...

    def write(self, version, values):
        self.written.append(version)

    def samples(self, version, rows): ...

    def histograms(self, version, counts): ...

    def truncate(self, version): ...

    def close(self, ending):
        self.closed = ending


def watching(folder: Path, *, stops: bool, rows=()) -> Lookout:
    return Lookout(
        Inner(),
        margin=4.0,
        early=3,
        stops=lambda found: found.confirmed and stops,
        rows=rows,
        record=RunRecord(folder),
        num_checkpoints=1,
    )


def lived(lookout: Lookout, scores: list[float], first: int = 0, **curves: list[float]) -> None:
    """One update per score; the reward follows the evaluation, with a little noise."""
    for i, score in enumerate(scores[first:], first):
        lookout.log(i, {"eval/avg": score, "eval/se": 0.02})
        extra = {name.replace("__", "/"): values[i] for name, values in curves.items()}
        lookout.write(i, {"reward/mean": score + 0.01 * (-1) ** i, **extra})
        lookout.judge()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record = RunRecord(tmp_path / "run")
    record.folder.mkdir()
    record.update(state="running")
    return record.folder


def test_a_confirmed_collapse_ends_the_run_where_it_is_told_to(folder: Path) -> None:
    lookout = watching(folder, stops=True)
    with pytest.raises(Collapsed, match=r"collapsed at update 6; .*; last good evaluation at update 5"):
        lived(lookout, FALL)
    assert lookout.inner.written == list(range(9))  # the third evaluation in a row below
    assert RunRecord(folder).read()["collapse"]["onset"] == 6


def test_elsewhere_it_goes_on_and_is_told_at_the_end(folder: Path) -> None:
    lookout = watching(folder, stops=False)
    lived(lookout, FALL)
    assert RunRecord(folder).read().get("collapse") is None
    with pytest.raises(Collapsed):
        lookout.conclude()
    assert RunRecord(folder).read()["collapse"]["last_good"] == 5


@pytest.mark.parametrize("metric", BANDS)
@pytest.mark.parametrize(("direction", "value"), [("below", -100.0), ("above", 100.0)])
def test_the_record_holds_whichever_metric_was_first(folder: Path, metric: str, direction: str, value: float) -> None:
    """A band without one of its bounds is no reason to lose the ending of a run."""
    lookout = watching(folder, stops=False)
    lived(lookout, FALL, **{metric.replace("/", "__"): [0.3] * 5 + [value] * 5})
    with pytest.raises(Collapsed):
        lookout.conclude()
    first = RunRecord(folder).read()["collapse"]["first"]
    band = BANDS[metric]
    if (band.low_factor if direction == "below" else band.high_factor) is None:
        assert first is None
    else:
        assert (first["metric"], first["direction"]) == (metric, direction)


def test_a_warning_is_said_once_and_stops_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three of five runs that warned have recovered."""
    lookout = watching(folder, stops=True)
    lived(lookout, STEADY, entropy__mean=[0.3] * 4 + [0.02] * 6, mismatch__kl_k1=[3e-3] * 6 + [0.1] * 4)
    lookout.conclude()
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning:")]
    assert len(said) == 2
    assert "entropy/mean below its band since update" in said[0] and "mismatch/kl_k1 above its band" in said[1]


def test_a_run_that_was_resumed_judges_all_of_its_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entropy = [0.3] * 4 + [0.02] * 6
    before = [
        {"version": i, "eval/avg": score, "eval/se": 0.02, "reward/mean": score, "entropy/mean": entropy[i]}
        for i, score in enumerate(FALL[:9])
    ]
    lookout = watching(folder, stops=True, rows=before)
    lookout.truncate(8)  # the row of version 8 is made again
    with pytest.raises(Collapsed, match="collapsed at update 6"):
        lived(lookout, FALL, first=8, entropy__mean=entropy)
    assert "warning" not in capsys.readouterr().out  # it was said before


def test_a_torn_last_row_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert recorded_rows(path) == []
    path.write_text('{"version": 0, "reward/mean": null}\n{"version": 1, "rew')
    assert recorded_rows(path) == [{"version": 0, "reward/mean": None}]


def saved(checkpoints: Path, *versions: int) -> None:
    for version in versions:
        (checkpoints / str(version)).mkdir(parents=True)


def left(checkpoints: Path) -> set[str]:
    return {path.name for path in checkpoints.iterdir() if path.is_dir()}


def test_pruning_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path, 8, 16, 24, 32)
    mark_good(tmp_path, 20)
    prune(tmp_path, 1)
    assert left(tmp_path) == {"16", "32"} and good(tmp_path) == tmp_path / "16"
    mark_good(tmp_path, 40)
    prune(tmp_path, 1)
    assert left(tmp_path) == {"32"}


def test_before_any_evaluation_the_newest_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, 8, 16)
    prune(tmp_path, 1)
    assert left(tmp_path) == {"16"} and good(tmp_path) is None


def test_the_last_good_evaluation_is_marked_as_it_is_made(folder: Path) -> None:
    lookout, checkpoints = watching(folder, stops=False), folder / "checkpoints"
    marks = []
    for count in range(1, len(FALL) + 1):
        lived(lookout, FALL[:count], first=count - 1)
        marks.append(int((checkpoints / "last_good").read_text()))
    assert marks == [0, 1, 2, 3, 4, 5, 5, 5, 5, 5]


def scripted(monkeypatch: pytest.MonkeyPatch, onset: int) -> None:
    """Runs whose collapse is found at the given update, and whose last good evaluation is two updates before."""
    found = Collapse(onset=onset, first=None, last_good=onset - 2, confirmed=True)

    def judged(rows, *, margin, early):
        return found if rows and rows[-1]["version"] >= onset else None

    monkeypatch.setattr("minirl.lookout.collapse", judged)
    monkeypatch.setattr("minirl.lookout.last_good", lambda versions, *rest, before: min(onset - 2, versions[-1]))


ONE_BY_ONE = ["eval.every=1", "train.checkpoint_every=1"]


def test_a_run_that_stops_is_a_result_with_its_last_good_checkpoint(
    outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, 4)
    state, folder = start(outputs, *ONE_BY_ONE, "run.on_collapse=stop")
    record = RunRecord(folder).read()
    assert state == record["state"] == State.collapsed and State(state).is_result
    assert record["reason"].startswith("collapsed at update 4") and record["collapse"]["onset"] == 4
    assert [row["version"] for row in recorded(folder)] == list(range(5))
    assert left(folder / "checkpoints") == {"2", "4"}
    assert start(outputs, *ONE_BY_ONE, "run.on_collapse=stop")[0] == State.collapsed
    assert json.dumps(record["collapse"]) == json.dumps(RunRecord(folder).read()["collapse"])


def test_a_run_that_goes_on_says_so_at_its_end(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, 4)
    state, folder = start(outputs, *ONE_BY_ONE)
    assert state == State.collapsed and recorded(folder)[-1]["version"] == 8
    assert RunRecord(folder).read()["reason"].startswith("collapsed at update 4")
