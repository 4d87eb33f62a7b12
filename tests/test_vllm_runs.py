"""Real runs with real vLLM: they learn, stay the trainer's policy wherever vLLM runs, and survive its death."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from minirl.compose import compose, load
from minirl.record import RunRecord, State

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).resolve().parents[1]

VLLM = ["engine=vllm", "engine.max_sequence_tokens=64", "engine.cache_mib=64", "metrics.live_every=96"]
LEARNING = [*VLLM, "num_updates=96", "eval.every=96", "eval.num_problems=16", "train.checkpoint_every=96"]
ON_POLICY = [*LEARNING, "engine.numerics=fp32"]
OFF_POLICY_R3 = [*LEARNING, "engine.numerics=bf16", "algo.routing=r3", "num_mini_batches=4"]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outputs folder with the cold start that all runs of this file begin with."""
    from minirl import coldstart
    from minirl.world import World

    folder = tmp_path_factory.mktemp("outputs")
    world = World.join("cpu")
    coldstart.ensure(load([*VLLM, f"run.outputs={folder}"]), world, print)
    world.leave()
    return folder


def ran(outputs: Path, overrides: list[str]) -> Path:
    """The folder of a run that has finished."""
    from minirl.run import run

    words = [*overrides, f"run.outputs={outputs}"]
    before = set((outputs / "runs").glob("*"))
    assert run(compose(words), words) in (State.finished, State.collapsed)
    (folder,) = set((outputs / "runs").glob("*")) - before
    return folder


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def improvement(folder: Path) -> float:
    """Mean reward of the last 20 % of rollout batches above that of the first 20 %."""
    rewards = [row["reward/mean"] for row in rows(folder) if "reward/mean" in row]
    fifth = len(rewards) // 5
    return sum(rewards[-fifth:]) / fifth - sum(rewards[:fifth]) / fifth


def largest_gap_without_flips(overrides: list[str], folder: Path) -> tuple[float, int]:
    """max |log pi - log mu| with the run's last weights in an fp32 engine, over the sequences all of whose tokens met
    the same experts on both sides, and their number."""
    from minirl.doctor.measure import measure

    measured = measure(load([*overrides, "engine.numerics=fp32"]), folder)
    batch, own = measured.rollouts, measured.live.routes
    differs = (batch.routes.experts.long().sort(-1).values != own.experts.long().sort(-1).values).any(-1).any(-1)
    flipped = torch.zeros(len(batch), dtype=torch.bool)
    flipped[batch.sequence_ids[differs & batch.routes.present & own.present]] = True
    same = batch.response_mask & ~flipped[batch.sequence_ids]
    return float((measured.live.logprobs - batch.rollout_logprobs)[same].abs().max()), int((~flipped).sum())


@pytest.mark.parametrize("overrides", [ON_POLICY, OFF_POLICY_R3], ids=["on-policy", "N=4, R3"])
def test_a_run_learns_and_the_engine_stays_the_trainer(outputs: Path, overrides: list[str]) -> None:
    folder = ran(outputs, overrides)
    assert improvement(folder) >= 0.1
    gap, sequences = largest_gap_without_flips(overrides, folder)
    assert gap <= 1e-5 and sequences > 50


def test_r3_has_routes_to_replay(outputs: Path) -> None:
    (folder,) = (path for path in (outputs / "runs").glob("*") if "routing: r3" in (path / "config.yaml").read_text())
    table = rows(folder)
    assert all(row["routing/replayed"] == 1.0 for row in table[:-1])
    assert table[0]["mismatch/kl_k3"] < table[0]["mismatch_live/kl_k3"]


@pytest.mark.parametrize("tensor_parallel", [1, 2], ids=["an engine each", "one engine"])
def test_two_ranks(outputs: Path, tmp_path: Path, tensor_parallel: int) -> None:
    """Under torchrun: engines of their own, or one engine cut in two that both drive."""
    (tmp_path / "coldstarts").symlink_to(outputs / "coldstarts")
    steps = ["num_updates=4", "eval.every=4", "train.checkpoint_every=4", "eval.num_problems=4", "num_mini_batches=2"]
    exact = ["engine.numerics=fp32", "algo.routing=r3", f"engine.tensor_parallel={tensor_parallel}"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "minirl.run"]
    words = [*VLLM, *steps, *exact, f"run.outputs={tmp_path}"]
    subprocess.run([sys.executable, *launch, *words], check=True, stdout=subprocess.DEVNULL, timeout=600)
    (folder,) = (tmp_path / "runs").iterdir()
    assert RunRecord(folder).read()["state"] == "finished"
    mismatch = [row["mismatch/kl_k3"] for row in rows(folder) if "mismatch/kl_k3" in row]
    assert len(mismatch) == 2 and all(value < 1e-9 for value in mismatch)


@pytest.mark.parametrize(
    ("placement", "tensor_parallel"),
    [("separate", 1), ("shared", 1), ("shared", 2)],
    ids=["separate", "an engine each on the trainer's devices", "one engine on the trainer's devices"],
)
def test_vllm_in_processes_of_its_own_serves_two_ranks(tmp_path: Path, placement: str, tensor_parallel: int) -> None:
    """Weights go through both sides of vLLM's transfer; only NCCL is replaced by a store, a GPU's memory by a file. The
    ranks end by being killed, and vLLM's processes end with them."""
    script = ROOT / "tests" / "engine" / "apart_ranks.py"
    words = [str(tmp_path), placement, str(tensor_parallel)]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script), *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, *launch], env=environment, timeout=600, cwd=tmp_path, **quiet)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for rank, positions in ((first, [100, 101]), (second, [102, 103])):
        assert [after["version"] for after in rank["seen"]] == [0, 1]
        for after in rank["seen"]:
            assert after["gap"] < 1e-5 and after["positions"] == [place for place in positions for _ in range(4)]
    started = [Path("/proc", str(pid)) for pid in first["started"]]
    deadline = time.monotonic() + 60
    while any(process.exists() for process in started) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(started) >= 2 and not any(process.exists() for process in started)


# a vLLM whose step kills its process, or never returns, in the first rollout of a version
FAILING = """
import os, signal, sys, time
from minirl.compose import compose
from minirl.engine.vllm_server import LocalServer
from minirl.run import run

respond = LocalServer.respond

def failing(self, prompts, sampling, group_size, version):
    if version == 4:
        self.llm.llm_engine.step = lambda: {failure}
    return respond(self, prompts, sampling, group_size, version)

LocalServer.respond = failing
run(compose(sys.argv[1:]), sys.argv[1:])
"""
FAILURES = {
    "died in the middle of a rollout": "os.kill(os.getpid(), signal.SIGKILL)",
    "the engine hangs": "time.sleep(3600)",
}


def test_an_engine_that_dies_or_hangs_leaves_a_record_and_a_run_that_goes_on(outputs: Path, tmp_path: Path) -> None:
    (tmp_path / "coldstarts").symlink_to(outputs / "coldstarts")
    steps = ["num_updates=6", "eval.every=6", "train.checkpoint_every=2", "eval.num_problems=4"]
    words = [*VLLM, *steps, "engine.max_rollout_seconds=20", f"run.outputs={tmp_path}"]
    for said, failure in FAILURES.items():
        command = [sys.executable, "-c", FAILING.format(failure=failure), *words]
        ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600)
        assert ended.returncode == -signal.SIGKILL
        (folder,) = (tmp_path / "runs").iterdir()
        record = recorded(folder)
        assert record["state"] == "failed" and said in record["reason"] and "repeat the command" in record["reason"]
        assert (folder / "checkpoints" / "4").is_dir()
    command = [sys.executable, "-m", "minirl.run", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)
    assert RunRecord(folder).read()["state"] == "finished"
    assert [row["version"] for row in rows(folder)] == list(range(7))


def recorded(folder: Path) -> dict[str, object]:
    """What the watcher writes after the process is gone."""
    deadline = time.monotonic() + 60
    while RunRecord(folder).read()["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    return RunRecord(folder).read()
