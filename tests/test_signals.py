"""A run that is asked to stop."""

import os
import signal
from pathlib import Path

import pytest
import torch
from small_runs import rows, start

from minirl.policy.checkpoint import numbered
from minirl.policy.fsdp import FsdpPolicy
from minirl.record import RunRecord, State
from minirl.signals import REQUESTS, Leave
from minirl.world import World


@pytest.mark.parametrize("number", REQUESTS)
def test_a_signal_is_a_request_however_often_it_comes(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    leave = Leave(World(0, 1, torch.device("cpu")))
    with leave.listening():
        assert not leave()
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        assert leave()
    assert signal.getsignal(number) == before


def test_a_told_run_saves_what_it_did_and_goes_on_as_if_nobody_had_asked(
    outputs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the middle of a step; the step is finished, and saved although no checkpoint is due."""
    extra = ["num_mini_batches=2", "train.checkpoint_every=8"]
    update, whole = FsdpPolicy.update, outputs / "whole"
    whole.mkdir()
    (whole / "coldstarts").symlink_to(outputs / "coldstarts")
    _, unasked = start(whole, *extra)

    def told(policy: FsdpPolicy, *rest: object) -> object:
        if policy.version == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        return update(policy, *rest)

    monkeypatch.setattr(FsdpPolicy, "update", told)
    state, folder = start(outputs, *extra)
    assert state is State.interrupted and list(numbered(folder / "checkpoints")) == [4]
    record = RunRecord(folder).read()
    assert record["state"] == "interrupted" and "saved at update 4" in record["reason"]
    assert "SIGUSR1: this step is finished and saved" in capfd.readouterr().err
    monkeypatch.undo()
    monkeypatch.chdir(outputs)
    assert start(outputs, *extra)[0] in (State.finished, State.collapsed)
    assert rows(folder) == rows(unasked)
    assert not (folder / "metrics.cut.jsonl").exists()  # nothing was done twice
