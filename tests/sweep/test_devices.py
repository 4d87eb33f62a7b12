"""Slots and what is in the environment of each."""

import pytest

from minirl.compose import load
from minirl.config import ConfigError
from minirl.sweep.devices import environments, gpus, num_slots


def test_gpus_are_dealt_out_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    run = load([]).run
    assert gpus(run) == ["3", "5"] and num_slots(run, None, 1) == 2
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in environments(run, 4, 1)] == ["3", "5", "3", "5"]
    assert gpus(load(["run.device=cpu"]).run) == []


def test_cores_are_shared_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert num_slots(load([]).run, None, 1) == 8
    assert num_slots(load(["run.num_threads=3"]).run, None, 1) == 2
    assert num_slots(load(["run.num_threads=16"]).run, None, 1) == 1
    assert num_slots(load([]).run, 3, 1) == 3
    assert environments(load(["run.num_threads=3"]).run, 1, 1)[0]["OMP_NUM_THREADS"] == "3"


def test_a_run_of_several_ranks_has_a_set_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
    run = load([]).run
    assert num_slots(run, None, 2) == 2
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in environments(run, 3, 2)] == ["0,1", "2,3", "0,1"]
    with pytest.raises(ConfigError, match=r"hydra\.launcher\.processes=8: this machine has 5 GPUs"):
        num_slots(run, None, 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert num_slots(run, None, 4) == 2
