"""Runs with one identity compute the same updates, and nothing else has one identity."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from schema_leaves import leaves
from stub_checkpoint import write as write_checkpoint

from minirl.compose import load
from minirl.config import Config, ConfigError
from minirl.identity import canonical, coldstart_key, direction, identity
from minirl.suggest import schema_keys
from minirl.validate import select


@cache
def config(*overrides: str) -> Config:
    return load(list(overrides))


def same(left: Config, right: Config) -> bool:
    return identity(left, "x") == identity(right, "x")


def mark(key: str) -> bool:
    node: Any = Config
    for name in key.split("."):
        spec = next(spec for spec in fields(node) if spec.name == name)
        default = spec.default_factory() if callable(spec.default_factory) else None
        node = type(default) if is_dataclass(default) else None
    return bool(spec.metadata["identity"])


def mutated(key: str, value: Any) -> list[Any]:
    """Other values of the same kind."""
    if value is None:
        owner: Any = Config
        for name in key.split(".")[:-1]:
            owner = get_type_hints(owner)[name]
        kinds = get_args(get_type_hints(owner)[key.rpartition(".")[2]])
        return ["x"] if str in kinds else [3]
    if isinstance(value, Enum):
        return [member for member in type(value) if member is not value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value * 2 + 1]
    if isinstance(value, dict):
        return [value | {"new": 1}]
    if isinstance(value, list):
        return [[*value, "new"]]
    return [f"{value}x"]


def changed(whole: Config, key: str, value: Any) -> Config:
    def rebuilt(node: Any, names: list[str]) -> Any:
        inner = value if len(names) == 1 else rebuilt(getattr(node, names[0]), names[1:])
        return replace(node, **{names[0]: inner})

    return rebuilt(whole, key.split("."))


# configurations in which each switch is thrown somewhere
BUSY = (
    ("num_mini_batches=2",),
    ("num_mini_batches=2", "algo=icepop", "algo.routing=r2", "algo.is_weight.staleness.low=0.1"),
    ("num_mini_batches=2", "algo=icepop", "algo.is_weight.product.low=0.1", "algo.routing=r3"),
    ("num_mini_batches=2", "algo=cispo", "algo.is_weight.staleness.low=0.1"),
    ("num_mini_batches=2", "algo=sapo"),
    ("num_mini_batches=2", "algo=dppo"),
    ("num_mini_batches=2", "algo=dr_grpo"),
    ("num_mini_batches=2", "algo=geo_rs"),
    ("num_mini_batches=2", "algo=dapo"),
    ("task=chain",),
    ("task=reasoning_gym",),
)


# a part that may be null is no key; those of its keys that tasks in files read: tests/tasks/test_math_keys.py
KEYS = sorted(set(schema_keys()) & set(leaves(Config)))


@pytest.mark.parametrize("key", KEYS)
def test_a_key_changes_the_identity_exactly_if_it_is_marked(key: str) -> None:
    """The keys of model and cold start do so through the checkpoint: through its key, then its content."""
    write_checkpoint(Path("x"), b"1")  # for model.path=x
    through_checkpoint = key.split(".")[0] in ("model", "coldstart")
    hits, tries = 0, 0
    for overrides in BUSY:
        before = config(*overrides)
        for value in mutated(key, select(before, key)):
            after = changed(before, key, value)
            moved = coldstart_key(before) != coldstart_key(after) if through_checkpoint else not same(before, after)
            hits, tries = hits + moved, tries + 1
    assert tries > 0
    if key == "coldstart.checkpoint":
        assert hits == tries and identity(config(), "x") != identity(config(), "y")
    elif mark(key):
        assert hits > 0
    else:
        assert hits == 0


def test_every_field_of_a_factor_and_of_the_product_counts() -> None:
    """Bounds and what happens outside them, one by one."""
    bounds = [
        f"algo.is_weight.{part}.{side}" for part in ("staleness", "discrepancy", "product") for side in ("low", "high")
    ]
    base = ["num_mini_batches=2", "algo.is_weight.product.high=null"]
    found = {identity(config(*base, f"{key}={value}"), "x") for key in bounds for value in (0.5, 2)}
    found |= {identity(config(*base, f"{key}=2", f"{key.rpartition('.')[0]}.outside=zero"), "x") for key in bounds}
    assert len(found) == 18


OFF = ("num_mini_batches=8",)
NO_CLIP = (*OFF, "algo=minirl_no_clip")
UNCAPPED = "algo.is_weight.product.high=null"
CAPPED = (UNCAPPED, "algo.is_weight.discrepancy.high=5")
UNCLIPPED = (*OFF, "train.optim.clip=none")
TWINS: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    ("N=1: no clipping is clipping", ("algo=minirl",), ("algo=minirl_no_clip",)),
    ("N=1: R2 is live", ("algo=minirl",), ("algo.routing=r2",)),
    ("N=1: reinforce is no IS", ("algo=reinforce",), ("algo=minirl_no_is",)),
    ("N=1: old-anchored divergence is inert", ("algo=dppo_old",), ("algo=minirl_no_clip", UNCAPPED)),
    ("N=1: soft gate is 1", ("algo=sapo",), ("algo=grpo",)),
    ("N=1: the geometric ratio is 1 too", ("algo=gspo",), ("algo=grpo",)),
    ("N=1: a cap on the product of one factor", ("algo=minirl",), CAPPED),
    ("N=1: bounds of the staleness factor hold 1", ("algo=cispo",), ("algo=cispo", "algo.is_weight.staleness.high=2")),
    ("a label is no difference", OFF, (*OFF, "algo.name=other", "run.name=a", "run.group=b")),
    ("what happens outside no bounds", OFF, (*OFF, "algo.is_weight.discrepancy.outside=zero")),
    ("a lower bound of 0", OFF, (*OFF, "algo.is_weight.discrepancy.low=0")),
    ("level of no trust region", NO_CLIP, (*NO_CLIP, "algo.trust_region.level=sequence")),
    ("anchor of no trust region", NO_CLIP, (*NO_CLIP, "algo.trust_region.anchor=mu")),
    ("counted where nothing is rejected", OFF, (*OFF, "algo.reject.counted=false")),
    ("missing routes where none is replayed", OFF, (*OFF, "algo.routing_missing=drop")),
    ("a norm that does not clip", UNCLIPPED, (*UNCLIPPED, "train.optim.max_norm=null")),
    ("the horizon", (), ("num_updates=8",)),
    ("the seed", (), ("seed=8",)),
    ("evaluation", (), ("eval.every=4", "eval.num_problems=8")),
    ("micro-batching and threads", (), ("train.max_tokens_per_micro_batch=99", "run.num_threads=2", "run.device=cpu")),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), [case[1:] for case in TWINS], ids=[case[0] for case in TWINS])
def test_inert_switches_make_no_difference(left: tuple[str, ...], right: tuple[str, ...]) -> None:
    assert same(config(*left), config(*right))


DIFFERENT: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    ("N>1: clipping", OFF, (*OFF, "algo=minirl_no_clip")),
    ("N>1: R2", OFF, (*OFF, "algo.routing=r2")),
    ("N>1: reinforce and no IS", (*OFF, "algo=reinforce"), (*OFF, "algo=minirl_no_is")),
    ("N=1: a ratio against mu binds", ("algo=grpo_mu",), ("algo=minirl_no_clip", UNCAPPED)),
    ("N=1: R3", (), ("algo.routing=r3",)),
    ("N=1: bounds that exclude 1", ("algo=cispo",), ("algo=cispo", "algo.is_weight.staleness.high=0.5")),
    ("both factors: cap of the product or of one", OFF, (*OFF, *CAPPED)),
    ("counted where something is rejected", ("algo=geo_rs",), ("algo=geo_rs", "algo.reject.counted=true")),
    ("two factors that are both there", OFF, (*OFF, "algo.is_weight.staleness.level=none")),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), [case[1:] for case in DIFFERENT], ids=[case[0] for case in DIFFERENT])
def test_switches_that_bind_make_a_difference(left: tuple[str, ...], right: tuple[str, ...]) -> None:
    assert not same(config(*left), config(*right))


def test_constants_on_the_loss_are_told_apart_and_recognised() -> None:
    line: Callable[..., str] = lambda *overrides: direction(config(*overrides), "x")  # noqa: E731
    scaled = ["algo.advantage=leave_one_out", "algo.aggregation.scale=2"]
    norm = ("algo.aggregation.kind=token_sum_norm", "algo.aggregation.length=12")
    for overrides in ((scaled[0],), (scaled[1],), norm):
        assert line(*overrides) == line() and not same(config(*overrides), config())
    assert line("algo=minirl_length_norm") != line()
    assert line("algo.advantage=group_mean_std") != line()


def test_the_start_is_its_content() -> None:
    """Two paths to one checkpoint are one experiment; another checkpoint is another."""
    here, there = config("coldstart.checkpoint=a"), config("coldstart.checkpoint=b")
    assert identity(here, "hash") == identity(there, "hash") == identity(config(), "hash")
    assert identity(here, "hash") != identity(here, "other")
    assert coldstart_key(here) != coldstart_key(there)


def test_a_model_folder_is_its_content() -> None:
    """Another model at the same path needs another cold start; the same one elsewhere does not."""
    write_checkpoint(Path("here"), b"first")
    write_checkpoint(Path("there"), b"first")
    here, there = config("model.path=here"), config("model.path=there")
    before = coldstart_key(here)
    assert before == coldstart_key(there) != coldstart_key(config())
    write_checkpoint(Path("here"), b"another")
    assert coldstart_key(here) != before == coldstart_key(there)
    Path("here/model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model.path=here: here: no .safetensors file"):
        coldstart_key(here)


def test_an_arm_does_not_choose_its_start() -> None:
    for overrides in (("algo=grpo",), OFF, ("engine.numerics=int4",), ("train.optim.lr=1",), ("seed=3",)):
        assert coldstart_key(config(*overrides)) == coldstart_key(config())
    assert coldstart_key(config("coldstart.style=carry")) != coldstart_key(config())


def test_a_new_key_that_is_null_changes_no_identity() -> None:
    assert "null" not in str(canonical(config())) and "None" not in str(canonical(config()))


def test_ten_digits_and_the_same_in_another_process(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "from minirl.compose import load; from minirl.identity import identity; print(identity(load([]), 'x'))"
    found = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() for _ in "ab"}
    assert found == {identity(config(), "x")}
    assert len(identity(config(), "x")) == 10 and int(identity(config(), "x"), 16) >= 0
