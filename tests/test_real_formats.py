"""A model in each family's real Hugging Face format through the whole chain: cold start, run on two ranks, evaluation,
export; and stock transformers loads what comes out, with identical logits."""

import json
import socket
from pathlib import Path

import pytest
import torch
from family_ranks import rank_main
from moe_families import LAYOUTS, SIZES, family_model
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config
from typer.testing import CliRunner

from minirl import coldstart
from minirl.cli import app
from minirl.compose import load, read
from minirl.examine import restored
from minirl.models.load import initialised
from minirl.record import RunRecord
from minirl.world import World

DENSE = {"qwen2": (Qwen2Config, {}), "qwen3, tied": (Qwen3Config, {"head_dim": 8, "tie_word_embeddings": True})}
FAMILIES = ["qwen3_moe", "qwen2_moe", "olmoe", "mixtral", "deepseek_v3", "glm4_moe", "gpt_oss", "qwen3_next"]
FAMILIES += ["qwen3_5_moe_text", *DENSE]
VOCAB = 20  # the characters of addition
COURSE = ["coldstart.min_steps=1", "coldstart.max_steps=2", "coldstart.target_accuracy=0", "coldstart.eval_every=1"]
COURSE += ["coldstart.eval_problems=8", "coldstart.batch_size=8"]
RUN = ["prompts_per_mini_batch=4", "group_size=4", "num_mini_batches=2", "num_updates=2", "eval.every=2"]
RUN += ["eval.num_problems=4", "train.checkpoint_every=2", "engine.numerics=bf16", "task.digits=2"]


def saved(name: str, dtype: torch.dtype, folder: Path) -> None:
    """A random model, as its family is published."""
    if name in DENSE:
        kind, own = DENSE[name]
        sizes = {key: value for key, value in SIZES.items() if key != "num_experts_per_tok"}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = initialised(kind(**(sizes | own | {"vocab_size": VOCAB})))
    else:
        model = family_model(name, vocab_size=VOCAB)
    model.to(dtype).save_pretrained(folder, max_shard_size="30KB")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def started(words: list[str]) -> Path:
    """A cold start made in this process."""
    world = World.join("cpu")
    made = coldstart.ensure(load(words), world, print)
    world.leave()
    return made


def chain(names: list[str], place: Path) -> dict[str, Path]:
    """Cold start in this process, the run on two ranks; the run's folder by family."""
    words = {}
    for number, name in enumerate(names):
        folder = place / f"model{number}"
        saved(name, torch.bfloat16 if number % 2 else torch.float32, folder)
        outputs = place / f"outputs{number}"
        begin = [f"model.path={folder}", f"run.outputs={outputs}", *RUN]
        start = started([*begin, *COURSE])
        replay = [] if name in DENSE else ["algo.routing=r3"]
        words[name] = [*begin, f"coldstart.checkpoint={start}", *replay]
    torch.multiprocessing.spawn(rank_main, args=([free_port() for _ in names], list(words.values()), place), nprocs=2)
    assert (place / "states.txt").read_text().split() == ["finished"] * len(names)
    return {name: next((place / f"outputs{number}" / "runs").glob("*-s0")) for number, name in enumerate(names)}


def parameters_of(run: Path) -> dict[str, torch.Tensor]:
    """What the trainer ended with."""
    world = World.join("cpu")
    found = restored(read(run / "config.yaml"), run, world)
    values = {name: value.clone() for name, value in found.policy.parameters()}
    world.leave()
    return values


def check(name: str, run: Path, dtype: torch.dtype, out: Path) -> None:
    assert RunRecord(run).read()["state"] == "finished"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["version"] for row in rows] == [0, 1, 2] and "eval/avg" in rows[0] and "eval/avg" in rows[2]
    evaluated = CliRunner().invoke(app, ["eval", str(run), "eval.num_problems=3"])
    assert evaluated.exit_code == 0 and "eval/avg" in evaluated.stdout, evaluated.output
    exported = CliRunner().invoke(app, ["export", str(run), "--to", "hf", "--out", str(out)])
    assert exported.exit_code == 0, exported.output
    stock = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    trained = {name: value.to(dtype).float() for name, value in parameters_of(run).items()}
    ours = AutoModelForCausalLM.from_config(stock.config, dtype=torch.float32).eval()
    ours.load_state_dict(trained)
    ids = torch.randint(VOCAB, (3, 6), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(stock(ids).logits, ours(ids).logits), name


def through(names: list[str], place: Path) -> None:
    for number, (name, run) in enumerate(chain(names, place).items()):
        check(name, run, torch.bfloat16 if number % 2 else torch.float32, place / f"exported{number}")


def test_a_family_goes_through(tmp_path):
    """gpt-oss, whose experts are laid out as no other's."""
    through(["gpt_oss"], tmp_path)


@pytest.mark.slow
def test_every_family_goes_through(tmp_path):
    assert {LAYOUTS[name][0] for name in FAMILIES if name not in DENSE} == {each[0] for each in LAYOUTS.values()}
    through(FAMILIES, tmp_path)


def test_an_export_overwrites_nothing_and_needs_a_place(tmp_path):
    """Of whatever model: a cold start of two steps is enough."""
    from small_runs import SMALL, start

    made = started([*SMALL, *COURSE, f"run.outputs={tmp_path}"])
    once = ["num_updates=1", "eval.every=1", "train.checkpoint_every=1"]
    _, run = start(tmp_path, f"coldstart.checkpoint={made}", *once)
    here = tmp_path / "here"
    here.mkdir()
    (here / "mine.txt").write_text("kept")
    invoke = lambda *words: CliRunner().invoke(app, ["export", str(run), "--to", "hf", *words])  # noqa: E731
    assert invoke().exit_code == 2 and "name it with --out" in invoke().output
    refused = invoke("--out", str(here))
    assert refused.exit_code == 2 and "is there already" in refused.output and list(here.iterdir())
    assert invoke("--out", str(tmp_path / "new")).exit_code == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} >= {"config.json", "model.safetensors"}
