import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
import torch
from coldstart_ranks import rank_main
from safetensors.torch import load_file
from typer.testing import CliRunner

from minirl import coldstart, sft
from minirl.cli import app
from minirl.coldstart import ensure, held
from minirl.compose import load
from minirl.config import ConfigError, TargetMissed
from minirl.models.content import content_hash
from minirl.models.load import build as build_model
from minirl.sft import demonstration_batch, log_likelihood
from minirl.tasks.registry import build as build_task
from minirl.world import World

# 1-digit addition by a very small model: what is tested is the machinery, not the skill
TINY = [
    "task.digits=1",
    "model.hidden_size=32",
    "model.num_layers=1",
    "model.num_experts=4",
    "model.num_experts_per_token=2",
    "coldstart.batch_size=32",
    "coldstart.min_steps=20",
    "coldstart.max_steps=40",
    "coldstart.eval_every=10",
    "coldstart.target_accuracy=0.0",
    "coldstart.eval_problems=16",
]


@contextmanager
def one_process():
    world = World.join("cpu")
    try:
        yield world
    finally:
        world.leave()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A cold start, what was said while it was made, and its configuration."""
    said = []
    words = [*TINY, f"run.outputs={tmp_path_factory.mktemp('outputs')}"]
    with one_process() as world:
        folder = ensure(load(words), world, said.append)
    return folder, said, words


def test_it_learns_and_says_so(made):
    folder, said, _ = made
    record = json.loads((folder / "coldstart.json").read_text())
    assert record["steps"] == 20 and record["cpu_seconds"] > 0
    assert [each["step"] for each in record["examinations"]] == [10, 20]
    first, last = record["examinations"]
    assert last["loss"] < first["loss"] < 2.7, "below log(16), the loss of knowing nothing"
    assert first["accuracy"] is None and 0 <= record["accuracy"] <= 1, "not asked before min_steps"
    assert record["config"]["task"]["digits"] == 1 and record["config"]["coldstart"]["style"] == "reversed"
    assert [line.split(":")[0] for line in said] == ["cold start, step 10", "cold start, step 20"]


def test_it_is_a_folder_that_a_run_can_start_from(made):
    folder, _, words = made
    cfg = load(words)
    task = build_task(cfg.task, cfg.coldstart)
    trained = build_model(cfg.model, vocab_size=task.vocab_size, checkpoint=folder).state_dict()
    untrained = build_model(cfg.model, vocab_size=task.vocab_size, checkpoint=None).state_dict()
    assert trained.keys() == untrained.keys()
    assert all(not trained[name].equal(untrained[name]) for name in trained if name.endswith("weight"))
    [lock] = folder.parent.glob("*.lock")
    assert sorted(path.name for path in folder.parent.iterdir()) == sorted([folder.name, lock.name])


def test_it_is_made_once(made, monkeypatch):
    folder, _, words = made
    content = content_hash(folder)
    monkeypatch.setattr(coldstart, "learn", lambda *arguments: pytest.fail("made again"))
    with one_process() as world:
        assert ensure(load(words), world, pytest.fail) == folder
        # a key that only says how a run goes on does not make another cold start
        assert ensure(load([*words, "seed=3", "train.optim.lr=1e-2", "algo=grpo"]), world, pytest.fail) == folder
        assert ensure(load([*words, f"coldstart.checkpoint={folder}"]), world, pytest.fail) == folder
    assert content_hash(folder) == content


def test_it_is_the_same_again_and_another_with_another_key(made, tmp_path):
    folder, _, words = made
    with one_process() as world:
        again = ensure(load([*words, f"run.outputs={tmp_path}", "num_mini_batches=4"]), world, str)
        other = ensure(load([*words, f"run.outputs={tmp_path}", "coldstart.seed=1"]), world, str)
    assert again.name == folder.name and content_hash(again) == content_hash(folder)
    assert other.name != folder.name and content_hash(other) != content_hash(folder)


def content_and_rows(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return content_hash(folder), [{name: row[name] for name in row if name != "cpu_seconds"} for row in rows]


def test_a_killed_one_goes_on_from_its_checkpoint_and_ends_the_same(made, tmp_path, monkeypatch):
    folder, _, words = made
    words = [*words, f"run.outputs={tmp_path}", "train.checkpoint_every=4"]
    updates = []
    original = sft.Course.batch
    monkeypatch.setattr(
        sft.Course, "batch", lambda self, step, size: updates.append(step) or original(self, step, size)
    )

    def stop(text):
        if text.startswith("cold start, step 10"):
            raise KeyboardInterrupt

    with one_process() as world:
        with pytest.raises(KeyboardInterrupt):
            ensure(load(words), world, stop)
        partial = (tmp_path / "coldstarts" / folder.name).with_suffix(".partial")
        assert (partial / "checkpoints" / "8").is_dir() and not partial.with_suffix("").exists()
        (partial / "model.safetensors").write_bytes(b"half an export")
        updates.clear()
        again = ensure(load(words), world, str)
    assert updates[0] == 8, "not from the beginning"
    assert content_and_rows(again) == content_and_rows(folder)
    assert not (again / "checkpoints").exists() and not partial.exists()
    record = json.loads((again / "coldstart.json").read_text())
    assert [each["step"] for each in record["examinations"]] == [10, 20]


def test_its_curve_lies_beside_it_and_what_is_left_is_said(made):
    folder, said, _ = made
    _, rows = content_and_rows(folder)
    assert [(row["version"], row["accuracy"] is None) for row in rows] == [(10, True), (20, False)]
    assert all({"loss", "optim/grad_norm", "optim/lr"} <= row.keys() for row in rows)
    assert all("CPU seconds, at most 0:" in line and line.endswith(" left)") for line in said)


def test_without_a_target_it_takes_its_steps_and_asks_for_no_accuracy(tmp_path):
    words = [*TINY, f"run.outputs={tmp_path}", "coldstart.target_accuracy=null", "coldstart.max_steps=12"]
    said = []
    with one_process() as world:
        folder = ensure(load(words), world, said.append)
    record = json.loads((folder / "coldstart.json").read_text())
    assert record["steps"] == 12 and record["accuracy"] is None
    assert [line.split(":")[0] for line in said] == ["cold start, step 10", "cold start, step 12"]
    assert "accuracy" not in "".join(said) and said[-1].endswith(", 0:00 left)")


def test_a_target_out_of_reach_is_said(tmp_path):
    words = [*TINY, f"run.outputs={tmp_path}", "coldstart.target_accuracy=1.0", "coldstart.max_steps=20"]
    with (
        one_process() as world,
        pytest.raises(
            TargetMissed,
            match=r"reached accuracy 0\.\d+ within coldstart.max_steps=20, not coldstart.target_accuracy=1.0",
        ),
    ):
        ensure(load(words), world, str)
    assert [path.suffix for path in (tmp_path / "coldstarts").iterdir()] == [".lock"], "nothing half made is left"


@pytest.mark.parametrize("command", ["run", "coldstart", "sweep"])
def test_a_target_out_of_reach_is_a_failure_in_one_line(own_folder, command):
    """The input was good, so this is no bad input: exit code 1."""
    words = [*TINY, "coldstart.target_accuracy=1.0", "coldstart.max_steps=20"]
    (own_folder / "one.yaml").write_text("arms: {a: []}\n")
    result = CliRunner().invoke(app, [command, *(["one.yaml"] if command == "sweep" else []), *words])
    assert result.exit_code == 1, result.output
    [said] = [line for line in result.output.splitlines() if "reached accuracy" in line]
    assert "within coldstart.max_steps=20, not coldstart.target_accuracy=1.0" in said
    assert "Error" not in result.output and "--debug" not in result.output
    assert result.stderr.splitlines() in ([], [said])


def test_demonstrations_must_fit_the_limit(tmp_path):
    cfg = load([f"run.outputs={tmp_path}", "coldstart.style=carry"])
    with (
        one_process() as world,
        pytest.raises(
            ConfigError,
            match=r"sampling.max_response_tokens=12 is too small: .*coldstart.style=carry have up to 32 tokens",
        ),
    ):
        ensure(cfg, world, str)


def test_a_checkpoint_of_ones_own_is_checked(made, tmp_path):
    folder, _, words = made
    empty = tmp_path / "empty"
    empty.mkdir()
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text((folder / "config.json").read_text())
    with one_process() as world:
        for path, what in ((tmp_path / "none", "config.json"), (empty, "config.json"), (bare, "safetensors")):
            with pytest.raises(ConfigError, match=rf"coldstart.checkpoint={path}.*{what}"):
                ensure(load([*words, f"coldstart.checkpoint={path}"]), world, str)
        with pytest.raises(ConfigError, match="16 tokens, the task needs 31"):
            ensure(load(["task=chain", f"coldstart.checkpoint={folder}"]), world, str)


def test_processes_that_ask_at_once_make_it_once(tmp_path, monkeypatch):
    """flock is per opened file, so two threads stand for two processes."""
    made, waiting = [], []
    cfg = load([*TINY, f"run.outputs={tmp_path}"])

    def save(folder, *rest):
        folder.mkdir()
        time.sleep(0.3)
        (folder / coldstart.RECORD).write_text("{}")
        made.append(folder)

    monkeypatch.setattr(coldstart, "make", save)
    monkeypatch.setattr(coldstart.Course, "of", lambda *arguments: None)
    alone = World(0, 1, torch.device("cpu"))
    threads = [threading.Thread(target=ensure, args=(cfg, alone, waiting.append)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and len(waiting) == 2 and "waiting for another process" in waiting[0]


def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path):
    """Its lock is dropped by the kernel, its half-made folder is cleared away."""
    words = [*TINY, f"run.outputs={tmp_path}"]
    with one_process() as world:
        folder = ensure(load(words), world, str)
        content = content_hash(folder)
        (folder / coldstart.RECORD).unlink()
        (folder / "model.safetensors").write_bytes(b"half")
        partial = folder.with_suffix(".partial")
        partial.mkdir()
        (partial / "model.safetensors").write_bytes(b"half")
        program = (
            f"import fcntl, time\nf = open({str(folder.with_suffix('.lock'))!r}, 'a')\nfcntl.flock(f, fcntl.LOCK_EX)\n"
        )
        killed = subprocess.Popen(
            [sys.executable, "-c", program + "print('held', flush=True); time.sleep(60)"], stdout=subprocess.PIPE
        )
        assert killed.stdout.readline() == b"held\n"
        said = []

        def kill(text):
            said.append(text)
            killed.kill()

        with held(folder.with_suffix(".lock"), world, kill):
            assert len(said) == 1 and "waiting" in said[0]
        killed.wait()
        assert ensure(load(words), world, str) == folder
    assert content_hash(folder) == content and not partial.exists()


def test_sft_is_maximum_likelihood():
    """The loss line on demonstrations = the mean negative log likelihood of response tokens, computed apart."""
    cfg = load(TINY)
    task = build_task(cfg.task, cfg.coldstart)
    demonstrations = [
        *task.demonstrations(0, 5, 0),
        *build_task(cfg.task, load(["coldstart.style=carry"]).coldstart).demonstrations(0, 3, 0),
    ]
    batch = demonstration_batch(demonstrations, 0, version=0)
    algo = log_likelihood()
    batch = algo.coefficients(batch, algo.counts(batch))
    logprobs = torch.randn(batch.rollouts.tokens.shape, dtype=torch.float64) * batch.rollouts.response_mask
    logprobs.requires_grad_(True)
    loss = algo.loss(logprobs, batch, True).loss
    count = sum(len(response) for _, response in demonstrations)
    assert loss.item() == pytest.approx(-logprobs.sum().item() / count)
    [gradient] = torch.autograd.grad(loss, logprobs)
    assert torch.allclose(gradient, -batch.rollouts.response_mask.double() / count)
    sequences = torch.split(batch.rollouts.tokens, batch.rollouts.lengths.tolist())
    for sequence, (prompt, response) in zip(sequences, demonstrations, strict=True):
        assert tuple(sequence.tolist()) == prompt + response


@pytest.mark.slow
def test_two_ranks_make_what_one_makes(made, tmp_path):
    folder, _, words = made
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(rank_main, args=(port, [*words, f"run.outputs={tmp_path}"]), nprocs=2)
    shared = tmp_path / "coldstarts" / folder.name
    one, two = (load_file(path / "model.safetensors") for path in (folder, shared))
    assert one.keys() == two.keys()
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-2  # 20 Adam steps on rounding
    records = [json.loads((path / coldstart.RECORD).read_text()) for path in (folder, shared)]
    assert records[0]["steps"] == records[1]["steps"]
    assert records[0]["loss"] == pytest.approx(records[1]["loss"], abs=1e-3)
