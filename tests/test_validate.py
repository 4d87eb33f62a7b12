"""Rules across keys: what is refused, in which words, and what is only noted."""

import ast
import json
from functools import cache
from pathlib import Path

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from minirl.algorithm_rules import REGION_KEYS
from minirl.compose import choices, compose, groups, load, typed
from minirl.config import Config, ConfigError, Region
from minirl.suggest import schema_keys
from minirl.validate import (
    COMPUTE_DTYPES,
    ENGINES,
    FAMILIES,
    STYLES,
    TASK_KEYS,
    TRACKER_MODES,
    num_experts,
    validate,
)

ROOT = Path(__file__).resolve().parents[1]
NO_REGION = ["algo.trust_region.low=null", "algo.trust_region.high=null"]

REFUSED = [
    (["group_size=1"], "group_size=1"),
    (["group_size=1", "algo.advantage=leave_one_out"], "algo.advantage=leave_one_out"),
    (["num_mini_batches=0"], "num_mini_batches=0: expected at least 1"),
    (["num_updates=50", "num_mini_batches=8"], "num_updates=50 is not a multiple of num_mini_batches=8: use 48 or 56"),
    (["eval.every=4", "num_mini_batches=8"], "eval.every=4 is not a multiple of num_mini_batches=8: use 8"),
    (["train.checkpoint_every=12", "num_mini_batches=8"], "train.checkpoint_every=12"),
    (["num_updates=0"], "num_updates=0: expected at least 1"),
    (["eval.num_problems=1"], "eval.num_problems=1: expected at least 2"),
    (["eval.num_samples=0"], "eval.num_samples=0"),
    (["eval.temperature=-1"], "eval.temperature=-1.0"),
    (["eval.top_p=0"], "eval.top_p=0.0: expected a share above 0 and up to 1"),
    (["eval.top_p=95"], "eval.top_p=95.0: expected a share above 0 and up to 1"),
    (["sampling.temperature=0"], "sampling.temperature=0.0"),
    (["sampling.top_p=0.9"], "drawn from the full distribution"),
    (["sampling.top_k=20"], "drawn from the full distribution"),
    (["sampling.max_response_tokens=0"], "sampling.max_response_tokens=0"),
    (["train.max_tokens_per_micro_batch=12"], "cannot hold one response"),
    (["train.optim.lr=inf"], "train.optim.lr=inf: expected a finite number; no bound is written null"),
    (["algo.is_weight.product.high=inf"], "algo.is_weight.product.high=inf"),
    (["algo.trust_region.high=nan"], "algo.trust_region.high=nan"),
    (["train.optim.lr=0"], "train.optim.lr=0.0"),
    (["train.optim.weight_decay=-0.1"], "train.optim.weight_decay=-0.1: expected at least 0"),
    (["coldstart.weight_decay=-0.1"], "coldstart.weight_decay=-0.1: expected at least 0"),
    (["coldstart.warmup_steps=-1"], "coldstart.warmup_steps=-1: expected at least 0"),
    (["train.optim.beta2=1"], "train.optim.beta2=1.0"),
    (["train.optim.max_norm=null"], "train.optim.clip=global_norm needs a positive norm"),
    (["algo=tis", "algo.is_weight.discrepancy.level=none"], "algo.is_weight.discrepancy.high=null"),
    (["algo.is_weight.staleness.low=2", "algo.is_weight.staleness.high=1"], "is above algo.is_weight.staleness.high"),
    (["algo.is_weight.product.low=-1"], "a ratio is never negative"),
    (["algo=reinforce", "algo.is_weight.product.high=5"], "both levels are none"),
    (["algo.trust_region.kind=none"], "does not use it, set algo.trust_region.low=null; or choose algo=minirl_no_clip"),
    (["algo.trust_region.kind=tv", *NO_REGION], "algo.trust_region.delta=null"),
    (["algo.trust_region.kind=tv", "algo.trust_region.delta=0.2"], "algo.trust_region.low=0.2"),
    (["algo=dppo", "algo.trust_region.level=sequence"], "is a divergence per token"),
    (["algo=sapo", "algo.trust_region.tau_negative=null"], "algo.trust_region.tau_negative=null"),
    (["algo=sapo", "algo.trust_region.dual=3"], "algo.trust_region.dual=3.0"),
    (["algo.trust_region.dual=0.5"], "algo.trust_region.dual=0.5"),
    (["algo.trust_region.high=null"], "algo.trust_region.kind=ratio needs a number"),
    (["algo.trust_region.low=1.5"], "expected at most 1"),
    (["algo.trust_region.low=-0.2"], "algo.trust_region.low=-0.2: expected a positive number"),
    (["algo.trust_region.level=none"], "leaves nothing to bound"),
    (["algo.reject.low=0.5"], "algo.reject.level=none has no ratio to bound"),
    (["algo.reject.level=token"], "rejects nothing"),
    (["algo=dr_grpo", "algo.aggregation.length=null"], "set a number of tokens"),
    (["algo.aggregation.length=12"], "kind=seq_mean_token_sum does not use it"),
    (["algo.aggregation.scale=0"], "algo.aggregation.scale=0.0"),
    (["model=tiny_dense", "engine.numerics=router_noise"], "engine.numerics=router_noise needs a MoE model"),
    (["model=tiny_dense", "eval.numerics=router_noise"], "eval.numerics=router_noise needs a MoE model"),
    (["model=tiny_dense", "algo.routing=r2"], "algo.routing=r2 needs a MoE model, model=tiny_dense has no routers"),
    (["model=tiny_dense", "algo.routing=r3"], "algo.routing=r3 needs a MoE model"),
    (["model=tiny_dense", "train.freeze_router=true"], "train.freeze_router=true needs a MoE model"),
    (["model.family=qwen4_moe"], "did you mean qwen3_moe"),
    (["model.family=qwen3"], "is dense"),
    (["model=tiny_dense", "model.family=qwen3_moe"], "needs model.num_experts"),
    (["model.num_experts_per_token=17"], "is above model.num_experts=16"),
    (["model.num_kv_heads=3"], "is not a multiple of model.num_kv_heads=3"),
    (["model.path=nowhere"], "model.path=nowhere: no config.json there"),
    (["coldstart.checkpoint=nowhere"], "coldstart.checkpoint=nowhere: no config.json there"),
    (["coldstart.min_steps=1600"], "is above coldstart.max_steps=1500"),
    (["coldstart.target_accuracy=1.5"], "coldstart.target_accuracy=1.5"),
    (["coldstart.style=count"], "coldstart.style=count: unknown; expected carry, reversed"),
    (["task.name=adition"], "did you mean addition"),
    (["task.min_steps=3"], "task.min_steps=3: task=addition has no such key, set it to null"),
    (["+task.options.a=1"], "task=addition has no such key, set it to {}"),
    (["task=chain", "task.digits=null"], "task.digits=null: task=chain needs it"),
    (["task.max_verifier_error_rate=2"], "expected a share from 0 to 1"),
    (["engine.name=troch"], "engine.name=troch: unknown; did you mean torch?"),
    (["engine=vllm", "engine.placement=shared", "run.device=cpu"], "engine.placement=shared: weights travel from GPU"),
    (["engine=vllm", "engine.placement=separate", "run.device=cpu"], "engine.placement=separate: weights travel from"),
    (["engine=vllm", "engine.placement=separate", "engine.sleep=true"], "engine.sleep=true: engine.placement=separate"),
    (["engine=vllm", "engine.placement=shared", "engine.tensor_parallel=2"], "1 ranks cannot be cut into engines of 2"),
    (
        ["engine=vllm", "engine.placement=separate", "engine.tensor_parallel=8", "machine.gpus_per_node=8"],
        "engine.tensor_parallel=8: engine.placement=separate takes as many GPUs, and leaves the trainer none",
    ),
    (["tracker.name=wnadb"], "did you mean wandb?"),
    (["tracker=wandb", "tracker.mode=ofline"], "did you mean offline or online?"),
    (["tracker.mode=online"], "tracker.mode=online: unknown; expected disabled"),
    (["train.compute_dtype=bf16"], "train.compute_dtype=bf16: unknown; did you mean bfloat16"),
    (["run.device=gpu"], "run.device=gpu"),
    (["run.group=''"], "run.group is empty"),
    (["metrics.extreme_ratio=1"], "metrics.extreme_ratio=1.0"),
    (["metrics.collapse_margin=0"], "metrics.collapse_margin=0.0"),
    (["metrics.live_every=0"], "metrics.live_every=0"),
]


@cache
def composed(*choices: str) -> DictConfig:
    return compose(choices)


def changed(overrides: list[str]) -> Config:
    """As `load`, with one composition per choice of groups instead of one per case."""
    lines = [line.partition("=")[::2] for line in overrides]
    cfg = composed(*(f"{key}={value}" for key, value in lines if key in groups())).copy()
    for key, value in lines:
        if key not in groups():
            OmegaConf.update(cfg, key.lstrip("+"), yaml.safe_load(value), force_add=key.startswith("+"))
    return typed(cfg)


@pytest.mark.parametrize(("overrides", "expected"), REFUSED, ids=[" ".join(case[0]) for case in REFUSED])
def test_refused(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        validate(changed(overrides))
    assert expected in str(raised.value)


def test_every_broken_rule_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        validate(load(["group_size=1", "sampling.top_p=0.5", "engine.name=tpu"]))
    assert len(str(raised.value).splitlines()) == 3


@pytest.mark.parametrize("line", ["num_updates=0", "eval.every=0", "train.checkpoint_every=-1"])
def test_a_number_that_is_too_small_is_told_once(line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        validate(load([line]))
    assert str(raised.value) == f"{line}: expected at least 1"


@pytest.mark.parametrize("name", list(choices("algo")))
@pytest.mark.parametrize("updates", [1, 8])
def test_every_algorithm_can_be_run_on_and_off_policy(name: str, updates: int) -> None:
    validate(changed([f"algo={name}", f"num_mini_batches={updates}"]))


@pytest.mark.parametrize("name", list(choices("task")))
def test_every_task_can_be_run(name: str, tmp_path: Path) -> None:
    config = load([f"task={name}"])
    if config.task.name == "math":  # whose problems and tokenizer are files
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "problems.parquet").touch()
        config = load([f"task={name}", f"model.path={tmp_path}"])
    assert validate(config) is not None


def test_sizes_must_divide_by_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    validate(load(["prompts_per_mini_batch=16"]))
    with pytest.raises(ConfigError, match="prompts_per_mini_batch=30 cannot be shared by 8 ranks: use a multiple of 8"):
        validate(load(["prompts_per_mini_batch=30"]))


def test_unknown_keys_are_refused_at_every_door() -> None:
    """`+algo.beta=1` reaches the schema object as an attribute that nothing reads."""
    config = load([])
    config.algo.beta = 1.0  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"algo\.beta: no such key"):
        validate(config)


def notes(*overrides: str) -> str:
    return "\n".join(validate(changed(list(overrides))))


def test_notes_name_switches_that_do_nothing() -> None:
    assert "algo.routing=r2 is live at num_mini_batches=1" in notes("algo.routing=r2")
    assert "is live" not in notes("algo.routing=r2", "num_mini_batches=8")
    assert "the trust region is inert" in notes()
    assert "the trust region is inert" not in notes("num_mini_batches=8")
    assert "the trust region is inert" not in notes("algo=grpo_mu")
    assert "the discrepancy factor is 1" in notes("engine.numerics=fp32")
    assert "mismatch_live" in notes("algo.routing=r3")
    assert notes("num_mini_batches=8") == ""


def test_uncorrected_off_policy_is_allowed_and_said_so() -> None:
    assert "uncorrected off-policy" in notes("algo=reinforce", "num_mini_batches=2")
    assert "uncorrected" not in notes("algo=reinforce")
    assert "uncorrected" not in notes("algo=minirl_no_is", "num_mini_batches=2")


def test_a_folder_tells_its_own_experts(tmp_path: Path) -> None:
    config = load([f"model.path={tmp_path}", "algo.routing=r2", "num_mini_batches=8"])
    for tree, found in (({}, 0), ({"num_experts": 8}, 8), ({"num_local_experts": 4}, 4)):
        (tmp_path / "config.json").write_text(json.dumps(tree))
        assert num_experts(config.model) == found
        if found:
            validate(config)
        else:
            with pytest.raises(ConfigError, match="needs a MoE model"):
                validate(config)


def test_tables_of_names_are_those_of_the_rooms() -> None:
    """The names are repeated here so that a configuration is checked without torch: they must not drift."""
    from minirl.policy.fsdp import PRECISION
    from minirl.tasks import addition, chain
    from minirl.tasks.registry import TASKS
    from minirl.tracking.registry import MIRRORS

    assert set(TASK_KEYS) == set(TASKS) == set(STYLES)
    assert set(STYLES["addition"]) == set(addition.STYLES) and set(STYLES["chain"]) == set(chain.STYLES)
    assert set(MIRRORS) == set(TRACKER_MODES)
    assert set(PRECISION) == set(COMPUTE_DTYPES)
    assert set(choices("engine")) == set(ENGINES)
    assert set(REGION_KEYS) == set(Region)
    models = [load([f"model={name}"]).model for name in choices("model")]
    assert {model.family for model in models if model.path is None} == set(FAMILIES)


def attributes_read(paths: list[Path]) -> set[str]:
    return {
        node.attr
        for path in paths
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


# read by a name that is put together at run time, or by nothing but the eye
READ_OTHERWISE = {
    "algo.name": "a label",
    "model.name": "a label",
    "algo.trust_region.tau_positive": "by name",
    "algo.trust_region.tau_negative": "by name",
    "sampling.top_p": "one value is allowed",
    "sampling.top_k": "one value is allowed",
}


def test_every_key_is_read_by_some_room() -> None:
    """A key that only the schema and these rules know would be a switch that does nothing."""
    own = {
        "config.py",
        "validate.py",
        "algorithm_rules.py",
        "suggest.py",
        "compose.py",
        "identity.py",
        "estimate.py",
        "preview.py",
    }
    rooms = [path for path in (ROOT / "minirl").rglob("*.py") if path.stem not in own]
    read = attributes_read(rooms)
    unread = [key for key in schema_keys() if key.rsplit(".", 1)[-1] not in read and key not in READ_OTHERWISE]
    assert unread == []
