"""What a person sees of a run without a terminal, and what a wrapped tracker still gets."""

from typing import Any

import pytest

from minirl.tracking import console
from minirl.tracking.console import ConsoleTracker


class Inner:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *words: self.told.append((name, *words))


def test_a_zero_loss_is_not_what_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is 0 at ratio 1 with centred advantages and says nothing: |A| and the gradient norm stand there."""
    monkeypatch.setattr(console, "QUIET_SECONDS", 0.0)
    tracker = ConsoleTracker(Inner(), 2, rank=0)
    tracker.log(0, {"reward/mean": 0.25, "reward/advantage_abs": 0.375})
    tracker.write(0, {"optim/grad_norm": 1.5})
    line = capsys.readouterr().out
    assert line.startswith("update 0/2") and "reward 0.25" in line and "|A| 0.375" in line and "grad 1.5" in line
    assert "loss" not in line


def test_the_last_version_is_always_said(capsys: pytest.CaptureFixture[str]) -> None:
    tracker = ConsoleTracker(Inner(), 3, rank=0)
    for version in range(4):
        tracker.write(version, {"eval/avg": version / 4})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("update 0/3") and lines[-1].startswith("update 3/3") and "eval 0.75" in lines[-1]
    assert len(lines) == 2  # what lies between came too soon after the first


@pytest.mark.parametrize("rank", [0, 1])
def test_everything_is_passed_on_and_other_ranks_are_silent(capsys: pytest.CaptureFixture[str], rank: int) -> None:
    inner = Inner()
    tracker = ConsoleTracker(inner, 1, rank=rank)
    tracker.truncate(1)
    tracker.log(1, {"a": 1.0})
    tracker.samples(1, [{"prompt": "x"}])
    tracker.histograms(1, {"h": ([0.0, 1.0], [2])})
    tracker.write(1, {"b": 2.0})
    tracker.close("finished")
    assert inner.told == [
        ("truncate", 1),
        ("log", 1, {"a": 1.0}),
        ("samples", 1, [{"prompt": "x"}]),
        ("histograms", 1, {"h": ([0.0, 1.0], [2])}),
        ("write", 1, {"b": 2.0}),
        ("close", "finished"),
    ]
    printed = capsys.readouterr().out
    assert ("resuming at update 1" in printed) is (rank == 0) and (printed == "") is (rank == 1)
