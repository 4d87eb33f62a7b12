"""No key that silently does nothing: every key of the schema, and what is seen to change when it changes.

`algo.*` has its own crafted batch in tests/algo. Keys of the experiment are seen in the figures of a short run, in the
weights of a model or in the record of a short cold start; keys of the infrastructure in what they govern.
"""

import json
from pathlib import Path

import pytest
import torch
from keys_seen_elsewhere import SEEN_ELSEWHERE
from schema_leaves import leaves
from small_runs import SMALL, rows, start

from minirl import coldstart
from minirl.compose import load
from minirl.config import Config, ConfigError, TargetMissed
from minirl.identity import identity
from minirl.metrics.collapse import collapse
from minirl.models.load import build as build_model
from minirl.record import RunRecord, State
from minirl.sft import Probe
from minirl.tasks.registry import build as build_task
from minirl.world import World

SHORT = ["num_updates=4", "num_mini_batches=2", "eval.every=2", "train.checkpoint_every=2", "metrics.live_every=2"]

# key -> overrides that change it; the rows of a short run must differ
RUN = {
    "seed": ["seed=1"],
    "prompts_per_mini_batch": ["prompts_per_mini_batch=5"],
    "group_size": ["group_size=3"],
    "num_mini_batches": ["num_mini_batches=1"],
    "num_updates": ["num_updates=6"],
    "engine.numerics": ["engine.numerics=int4"],
    "sampling.temperature": ["sampling.temperature=0.7"],
    "sampling.max_response_tokens": ["sampling.max_response_tokens=5"],
    "train.optim.lr": ["train.optim.lr=1e-3"],
    "train.optim.beta1": ["train.optim.beta1=0.5"],
    "train.optim.beta2": ["train.optim.beta2=0.5"],
    "train.optim.eps": ["train.optim.eps=1e-2"],
    "train.optim.weight_decay": ["train.optim.weight_decay=5.0"],
    "train.optim.warmup_updates": ["train.optim.warmup_updates=4"],
    "train.optim.clip": ["train.optim.clip=none", "train.optim.max_norm=null"],
    "train.optim.max_norm": ["train.optim.max_norm=0.01", "train.optim.eps=1e-3"],
    "train.freeze_router": ["train.freeze_router=true"],
    "train.compute_dtype": ["train.compute_dtype=bfloat16"],
    "eval.every": ["eval.every=4"],
    "eval.num_problems": ["eval.num_problems=9"],
    "eval.num_samples": ["eval.num_samples=3"],
    "eval.numerics": ["eval.numerics=int4"],
    "eval.temperature": ["eval.temperature=3.0"],
    "eval.top_p": ["eval.top_p=0.5"],
    "eval.max_response_tokens": ["eval.max_response_tokens=3"],
    "metrics.live_every": ["metrics.live_every=4"],
    "metrics.extreme_ratio": ["metrics.extreme_ratio=1.0001"],
}

# key -> overrides; the weights that `model` gives must differ in value or shape
MODEL = {
    "model.family": ["model=tiny_dense"],
    "model.hidden_size": ["model.hidden_size=96"],
    "model.num_layers": ["model.num_layers=2"],
    "model.num_heads": ["model.num_heads=2"],
    "model.num_kv_heads": ["model.num_kv_heads=1"],
    "model.head_dim": ["model.head_dim=64"],
    "model.num_experts": ["model.num_experts=8"],
    "model.moe_intermediate_size": ["model.moe_intermediate_size=64"],
    "model.initializer_range": ["model.initializer_range=0.2"],
    "model.init_seed": ["model.init_seed=1"],
}

GYM = ["task=reasoning_gym"]
COURSE = ["coldstart.min_steps=3", "coldstart.max_steps=6", "coldstart.target_accuracy=0", "coldstart.eval_every=3"]
COURSE += ["coldstart.eval_problems=8", "coldstart.batch_size=8"]

# key -> overrides; the record of a cold start of a few steps, or the refusal of one, must differ
COLDSTART = {
    "coldstart.style": ["coldstart.style=carry", "sampling.max_response_tokens=40"],
    "coldstart.batch_size": ["coldstart.batch_size=9"],
    "coldstart.max_steps": ["coldstart.max_steps=7", "coldstart.target_accuracy=1"],
    "coldstart.min_steps": ["coldstart.min_steps=6"],
    "coldstart.lr": ["coldstart.lr=1e-2"],
    "coldstart.beta1": ["coldstart.beta1=0.5"],
    "coldstart.beta2": ["coldstart.beta2=0.5"],
    "coldstart.eps": ["coldstart.eps=1e-1"],
    "coldstart.warmup_steps": ["coldstart.warmup_steps=2"],
    "coldstart.weight_decay": ["coldstart.weight_decay=50"],
    "coldstart.max_norm": ["coldstart.max_norm=1e-6", "coldstart.eps=1e-3"],
    "coldstart.target_accuracy": ["coldstart.target_accuracy=1"],
    "coldstart.eval_every": ["coldstart.eval_every=2"],
    "coldstart.seed": ["coldstart.seed=1"],
}

# what these change is seen in a test of its own below
SEEN_BELOW = {
    "coldstart.checkpoint": "the folder that training starts from",
    "coldstart.eval_problems": "the problems on which accuracy is measured",
    "coldstart.wrong_step_rate": "the demonstrations of a chain",
    "engine.max_sequences": "the number of waves a batch is decoded in",
    "engine.name": "the class of the engine; another name is refused",
    "metrics.collapse_margin": "whether a falling evaluation is a collapse",
    "metrics.histograms_every": "the versions in histograms.jsonl",
    "metrics.min_route_overlap": "whether the first step is refused",
    "metrics.samples_every": "the versions in samples.jsonl",
    "model.intermediate_size": "the MLPs of a dense model",
    "model.name": "the tags of the W&B run",
    "model.num_experts_per_token": "the experts a router chooses",
    "model.path": "where the weights come from",
    "run.device": "where tensors live",
    "run.group": "the folder of the run",
    "run.name": "the arm in the record",
    "run.num_threads": "the threads of torch",
    "run.on_collapse": "whether a collapsed run goes on (tests/test_lookout.py)",
    "run.record_rollouts": "whether batches are kept (tests/test_batches.py)",
    "run.outputs": "the folder of the run",
    "sampling.top_k": "refused unless 0",
    "sampling.top_p": "refused unless 1",
    "task.dataset": "the problems of reasoning-gym",
    "task.digits": "the prompts",
    "task.max_steps": "the prompts of a chain",
    "task.max_verifier_error_rate": "whether a broken verifier stops the run",
    "task.min_steps": "the prompts of a chain",
    "task.name": "the prompts",
    "task.options": "the problems of reasoning-gym",
    "tracker.artifacts": "which files W&B gets",
    "tracker.entity": "the W&B entity",
    "tracker.mode": "whether W&B is offline",
    "tracker.name": "whether a W&B run is written",
    "tracker.project": "the W&B project",
    "tracker.tags": "the W&B tags",
    "train.activation_checkpointing": "how often a layer runs",
    "train.checkpoint_every": "the checkpoints on disk",
    "train.likelihood_chunk_tokens": "the largest chunk of logits",
    "train.max_tokens_per_micro_batch": "the number of backward passes",
    "train.num_checkpoints": "the checkpoints on disk",
    "train.num_replicas": "how many ranks share a copy of the model (tests/policy/test_scale.py)",
    "train.offload": "where the trainer's memory is while the engine samples (tests/policy/test_scale.py)",
    "train.async_checkpoints": "whether training goes on while a checkpoint is written (tests/policy/test_scale.py)",
}


def test_every_key_has_its_test():
    covered = RUN.keys() | MODEL.keys() | COLDSTART.keys() | SEEN_BELOW.keys() | SEEN_ELSEWHERE.keys()
    assert {name for name in leaves(Config) if not name.startswith("algo.")} == covered


@pytest.fixture(scope="session")
def short_rows(small_coldstart, tmp_path_factory):
    place = tmp_path_factory.mktemp("short")
    (place / "coldstarts").symlink_to(small_coldstart / "coldstarts")
    return rows(start(place, *SHORT)[1])


@pytest.mark.parametrize("name", RUN)
def test_the_figures_of_a_run_change(name, outputs, short_rows):
    changed = rows(start(outputs, *SHORT, *RUN[name])[1])
    if name == "train.optim.max_norm":  # with a larger eps, which alone must not be what is seen
        assert changed != rows(start(outputs, *SHORT, "train.optim.eps=1e-3")[1])
    assert changed != short_rows


def fingerprint(overrides):
    config = load(overrides)
    weights = build_model(config.model, vocab_size=20, checkpoint=None).state_dict()
    return {name: (tuple(value.shape), float(value.double().square().sum())) for name, value in weights.items()}


@pytest.mark.parametrize("name", MODEL)
def test_the_weights_of_the_model_change(name):
    assert fingerprint(MODEL[name]) != fingerprint([])


def course(place: Path, *overrides: str):
    """The record of a cold start of a few steps, without what measures the machine; or why it failed."""
    config = load([*SMALL, *COURSE, f"run.outputs={place}", *overrides])
    world = World.join("cpu")
    try:
        record = json.loads((coldstart.ensure(config, world, lambda text: None) / "coldstart.json").read_text())
    except TargetMissed as error:
        return str(error)
    finally:
        world.leave()
    return [(each["step"], each["loss"], each["accuracy"]) for each in record["examinations"]]


@pytest.mark.parametrize("name", COLDSTART)
def test_the_cold_start_changes(name, tmp_path):
    base = ["coldstart.eps=1e-3"] if name == "coldstart.max_norm" else []
    base += ["coldstart.target_accuracy=1"] if name == "coldstart.max_steps" else []
    assert course(tmp_path / "changed", *COLDSTART[name]) != course(tmp_path / "base", *base)


def test_the_accuracy_of_a_cold_start_is_measured_on_so_many_problems(tmp_path, monkeypatch):
    asked = []
    original = Probe.accuracy
    monkeypatch.setattr(
        Probe, "accuracy", lambda self, policy: asked.append(self.num_problems) or original(self, policy)
    )
    course(tmp_path, "coldstart.eval_problems=9")
    assert set(asked) == {9}


def test_a_given_checkpoint_is_where_training_starts(outputs, small_coldstart):
    (made,) = (path for path in (small_coldstart / "coldstarts").iterdir() if path.is_dir())
    _, folder = start(outputs / "elsewhere", "num_updates=1", "eval.every=1", f"coldstart.checkpoint={made}")
    assert RunRecord(folder).read()["coldstart"]["folder"] == str(made)


def test_demonstrations_of_a_chain_take_wrong_steps():
    def shown(rate):
        config = load(["task=chain", f"coldstart.wrong_step_rate={rate}"])
        return build_task(config.task, config.coldstart).demonstrations(0, 20, 0)

    assert shown(0.0) != shown(0.5)


@pytest.mark.parametrize(
    ("name", "base", "change"),
    [
        ("task.name", [], ["task=chain"]),
        ("task.digits", [], ["task.digits=2"]),
        ("task.min_steps", ["task=chain"], ["task=chain", "task.min_steps=15"]),
        ("task.max_steps", ["task=chain"], ["task=chain", "task.max_steps=5"]),
        (
            "task.dataset",
            ["task=reasoning_gym"],
            ["task=reasoning_gym", "task.dataset=basic_arithmetic", "task.options={}"],
        ),
        ("task.options", ["task=reasoning_gym"], ["task=reasoning_gym", "+task.options.max_word_len=4"]),
    ],
)
def test_the_prompts_of_the_task_change(name, base, change):
    def prompts(overrides):
        config = load(overrides)
        return [prompt.tokens for prompt in build_task(config.task, config.coldstart).prompts(0, 20, 0)]

    assert prompts(base) != prompts(change)


def test_a_verifier_that_fails_more_often_stops_the_run(outputs, monkeypatch):
    from minirl.interfaces import VerifierError
    from minirl.tasks.procedural import ProceduralTask

    def fail(self, prompt, response):
        raise VerifierError("no")

    monkeypatch.setattr(ProceduralTask, "grade", fail)
    with pytest.raises(VerifierError):
        start(outputs, "num_updates=1", "eval.every=1")
    state, _ = start(outputs, "num_updates=1", "eval.every=1", "task.max_verifier_error_rate=1.0")
    assert state in (State.finished, State.degenerate)


def test_infrastructure_of_the_trainer(outputs, monkeypatch):
    """One run per key; the figures stay what they are (up to rounding), what the key governs changes."""
    from minirl.models import tape
    from minirl.policy import fsdp, likelihood

    seen = {}

    def watch(owner, name, note):
        original = getattr(owner, name)

        def watched(self, *arguments):
            seen[name] = note(seen.get(name, 0), *arguments)
            return original(self, *arguments)

        monkeypatch.setattr(owner, name, watched)

    watch(fsdp.FsdpPolicy, "_backward", lambda count, *_: count + 1)
    watch(likelihood.Likelihood, "chunk", lambda largest, hidden, *_: max(largest, len(hidden)))
    watch(tape.Pass, "choose", lambda count, *_: count + 1)

    def run(place, *overrides):
        seen.clear()
        _, folder = start(outputs / place, "num_updates=2", "eval.every=1", *overrides)
        return (
            dict(seen),
            rows(folder),
            sorted(path.name for path in (folder / "checkpoints").iterdir() if path.is_dir()),
        )

    for place in ("base", "micro", "chunk", "again", "every", "kept"):
        (outputs / place).mkdir()
        (outputs / place / "coldstarts").symlink_to(outputs / "coldstarts")
    base, figures, saved = run("base", "train.checkpoint_every=1")
    assert saved == ["2"]
    for place, override, name in (
        ("micro", "train.max_tokens_per_micro_batch=40", "_backward"),
        ("chunk", "train.likelihood_chunk_tokens=5", "chunk"),
        ("again", "train.activation_checkpointing=true", "choose"),
    ):
        changed, same, _ = run(place, "train.checkpoint_every=1", override)
        assert changed[name] != base[name], override
        assert same[0]["optim/grad_norm"] == pytest.approx(figures[0]["optim/grad_norm"], rel=1e-3)
    assert run("kept", "train.checkpoint_every=1", "train.num_checkpoints=2")[2] == ["1", "2"]
    assert run("every", "train.checkpoint_every=2", "train.num_checkpoints=2")[2] == ["2"]


def test_the_engine_decodes_in_waves(outputs, monkeypatch):
    from minirl.engine import torch_engine

    waves = []
    original = torch_engine.decode
    monkeypatch.setattr(torch_engine, "decode", lambda *a, **k: waves.append(len(a[3])) or original(*a, **k))
    start(outputs, "num_updates=1", "eval.every=1", "train.checkpoint_every=1")
    whole = len(waves)
    start(outputs, "num_updates=1", "eval.every=1", "train.checkpoint_every=1", "engine.max_sequences=5", "seed=1")
    assert len(waves) - whole > whole and max(waves[whole:]) == 5


def test_what_is_written_when(outputs):
    _, folder = start(outputs, "num_updates=4", "metrics.histograms_every=2", "metrics.samples_every=4")

    def versions(name):
        return {json.loads(line)["version"] for line in (folder / name).read_text().splitlines()}

    assert versions("histograms.jsonl") == {0, 2} and versions("samples.jsonl") == {0}


def test_collapse_depends_on_the_margin():
    scores = [0.5, 0.5, 0.45, 0.45, 0.45, 0.45]
    seen = [{"version": v, "eval/avg": s, "eval/se": 0.02} for v, s in enumerate(scores)]
    assert collapse(seen, margin=4.0, early=2) is None and collapse(seen, margin=1.0, early=2) is not None


def test_the_first_step_is_refused_below_the_overlap_asked_for(outputs):
    with pytest.raises(RuntimeError, match=r"belong to other tokens or layers.*min_route_overlap=0\.999"):
        start(outputs, "engine.numerics=int4", "metrics.min_route_overlap=0.999")


def test_names_places_and_threads(outputs, monkeypatch):
    """Torch is told the number of threads, and keeps its one: two would fight for the cores of a busy machine."""
    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    _, folder = start(outputs, "num_updates=1", "eval.every=1", "run.name=an arm", "run.num_threads=1")
    assert RunRecord(folder).read()["arm"] == "an arm" and threads == [1]
    words = [*SMALL, "num_updates=1", "eval.every=1", f"run.outputs={outputs}", "run.group=figure", "run.num_threads=2"]
    from minirl.compose import compose
    from minirl.run import run

    run(compose(words), words)
    assert threads == [1, 2] and list((outputs / "sweeps" / "figure").glob("*-s0"))


def test_w_and_b_is_told(outputs, monkeypatch):
    import wandb

    told = []
    monkeypatch.setattr(wandb, "init", lambda **given: told.append(given))
    words = ("tracker.project=other", "tracker.entity=me", "tracker.tags=[mine]", "model.name=its_name")
    for artifacts in ("[]", "[checkpoint]"):
        start(outputs, "num_updates=1", "eval.every=1", "tracker=wandb", f"tracker.artifacts={artifacts}", *words)
        (outputs / "runs").rename(outputs / f"runs of {artifacts}")
    plain, patient = told
    assert (plain["project"], plain["entity"], plain["mode"]) == ("other", "me", "offline")
    assert {"mine", "its_name"} <= set(plain["tags"])
    assert patient["settings"].finish_timeout > plain["settings"].finish_timeout  # files take longer than rows
    start(outputs, "num_updates=1", "eval.every=1", "tracker=wandb", "tracker.mode=disabled")
    assert len(told) == 2
    with pytest.raises(ConfigError, match="WANDB_API_KEY"):
        start(outputs, "num_updates=1", "eval.every=1", "tracker=wandb", "tracker.mode=online", "seed=2")


@pytest.mark.parametrize(
    "override", ["sampling.top_p=0.9", "sampling.top_k=5", "engine.name=other", "tracker.mode=online"]
)
def test_what_is_refused(override, outputs):
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        start(outputs, override)
    assert not (outputs / "runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
def test_a_device_that_is_not_there(outputs):
    with pytest.raises(ConfigError, match=r"run\.device=cuda"):
        start(outputs, "run.device=cuda")


def test_a_model_has_these_sizes_and_comes_from_this_folder(tmp_path):
    assert fingerprint(["model=tiny_dense"]) != fingerprint(["model=tiny_dense", "model.intermediate_size=64"])
    two, four = (
        build_model(load([f"model.num_experts_per_token={k}"]).model, vocab_size=20, checkpoint=None) for k in (2, 4)
    )
    assert two.config.num_experts_per_tok == 2 and four.config.num_experts_per_tok == 4
    other = build_model(load(["model.init_seed=5"]).model, vocab_size=20, checkpoint=None)
    other.save_pretrained(tmp_path)
    assert fingerprint([f"model.path={tmp_path}"]) == fingerprint(["model.init_seed=5"]) != fingerprint([])


def test_identity_ignores_what_is_marked_so():
    config = load([])
    for override in ("run.name=a", "train.max_tokens_per_micro_batch=64", "num_updates=16", "seed=5"):
        assert identity(load([override]), "start") == identity(config, "start")
