"""Real runs with real vLLM: they learn, stay the trainer's policy, and survive being killed."""

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


def test_two_ranks_have_an_engine_each(outputs: Path, tmp_path: Path) -> None:
    (tmp_path / "coldstarts").symlink_to(outputs / "coldstarts")
    steps = ["num_updates=4", "eval.every=4", "train.checkpoint_every=4", "eval.num_problems=4", "num_mini_batches=2"]
    words = [*VLLM, *steps, "engine.numerics=fp32", "algo.routing=r3", f"run.outputs={tmp_path}"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "minirl.run"]
    subprocess.run([sys.executable, *launch, *words], check=True, stdout=subprocess.DEVNULL, timeout=300)
    (folder,) = (tmp_path / "runs").iterdir()
    assert RunRecord(folder).read()["state"] == "finished"
    assert all(row["mismatch/kl_k3"] < 1e-9 for row in rows(folder) if "mismatch/kl_k3" in row)


def test_a_killed_run_has_a_record_and_goes_on(outputs: Path, tmp_path: Path) -> None:
    (tmp_path / "coldstarts").symlink_to(outputs / "coldstarts")
    steps = ["num_updates=12", "eval.every=12", "train.checkpoint_every=4", "eval.num_problems=4"]
    words = [*VLLM, *steps, f"run.outputs={tmp_path}"]
    command = [sys.executable, "-m", "minirl.run", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        folder = killed_after_a_checkpoint(process, tmp_path)
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 30
    while RunRecord(folder).read()["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    record = RunRecord(folder).read()
    assert record["state"] == "failed" and "died" in record["reason"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)
    assert RunRecord(folder).read()["state"] == "finished"
    assert [row["version"] for row in rows(folder)] == list(range(13))


def killed_after_a_checkpoint(process: subprocess.Popen[bytes], outputs: Path) -> Path:
    """The run's folder; its process is killed once it has a checkpoint and is not done."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for checkpoint in outputs.glob("runs/*/checkpoints/4"):
            os.kill(process.pid, signal.SIGKILL)
            return checkpoint.parents[1]
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    raise AssertionError("no checkpoint")
