"""Slots and what is in the environment of each."""

from typing import Any

import pytest

from minirl.compose import load
from minirl.config import ConfigError, EngineConfig, RunConfig
from minirl.sweep import sites
from minirl.sweep.devices import environments, gpus, num_slots, threads


def side_by_side(run: RunConfig, asked: int | None, processes: int) -> int:
    return num_slots(run, asked, processes=processes, engine_gpus=0)


def test_gpus_are_dealt_out_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    run = load([]).run
    assert gpus(run) == ["3", "5"] and side_by_side(run, None, 1) == 2
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in environments(run, 4, 1)] == ["3", "5", "3", "5"]
    assert gpus(load(["run.device=cpu"]).run) == []


def test_cores_are_shared_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert side_by_side(load([]).run, None, 1) == 8
    assert side_by_side(load(["run.num_threads=3"]).run, None, 1) == 2
    assert side_by_side(load(["run.num_threads=16"]).run, None, 1) == 1
    assert side_by_side(load([]).run, 3, 1) == 3
    assert environments(load(["run.num_threads=3"]).run, 1, 1)[0]["OMP_NUM_THREADS"] == "3"


def test_a_run_of_several_ranks_has_a_set_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
    run = load([]).run
    assert side_by_side(run, None, 2) == 2
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in environments(run, 3, 2)] == ["0,1", "2,3", "0,1"]
    with pytest.raises(ConfigError, match=r"hydra\.launcher\.processes=8: this machine has 5 GPUs"):
        side_by_side(run, None, 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert side_by_side(run, None, 4) == 2


def test_an_engine_on_gpus_of_its_own_has_them_behind_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6")
    run = load([]).run
    assert num_slots(run, None, processes=2, engine_gpus=1) == 2
    with pytest.raises(ConfigError, match=r"processes=4: .* 7 GPUs for a run's ranks and the 4 of its engine"):
        num_slots(run, None, processes=4, engine_gpus=4)


class Jobs:
    """Three runs of the configuration that these words make."""

    task = "minirl.sweep.job:task"
    context = None

    def __init__(self, *overrides: str) -> None:
        self.config = load(list(overrides))

    def __len__(self) -> int:
        return 3

    def run_config(self) -> RunConfig:
        return self.config.run

    def engine_config(self) -> EngineConfig:
        return self.config.engine


@pytest.mark.parametrize(("placement", "sets"), [("shared", ["0,1", "2,3", "4,5"]), ("separate", ["0,1,2", "3,4,5"])])
def test_a_local_run_sees_its_ranks_gpus_and_its_engines(
    placement: str, sets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: Any = Jobs("engine=vllm", f"engine.placement={placement}")
    for name in threads(jobs.run_config()):  # what is set already is left alone
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6")
    site: Any = sites.local(jobs, None, processes=2)
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in site.environments] == sets
