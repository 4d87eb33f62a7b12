"""From overrides to a configuration: what composes, what a person is told, and that nothing is lost on the way."""

from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore
from hydra.types import RunMode
from omegaconf import OmegaConf

from minirl.compose import (
    CONFIG_NAME,
    choices,
    compose,
    conf_dir,
    first_comment,
    groups,
    hydra_session,
    load,
    override,
    read,
    sweeps_dir,
    typed,
)
from minirl.config import Config, ConfigError, Level, Numerics, Routing
from minirl.suggest import schema_keys
from minirl.validate import select


def test_defaults_are_complete_and_typed() -> None:
    config = load([])
    assert isinstance(config, Config)
    assert config.algo.routing is Routing.live
    assert config.engine.numerics is Numerics.fp8
    assert config.algo.is_weight.product.high == 5.0
    for key in schema_keys():
        assert select(config, key) != "???", key


@pytest.mark.parametrize("group", groups())
def test_every_choice_of_every_group_composes_and_says_what_it_is(group: str) -> None:
    found = choices(group)
    assert found
    for name, path in found.items():
        if group != "algo":  # each of those is composed in test_validate
            load([f"{group}={name}"])
        comment = first_comment(path)
        assert group in ("train", "hydra") or len(comment) > 10, f"{path.name} begins with a line of comment"


def test_every_yaml_file_of_conf_is_reached() -> None:
    listed = {path for group in groups() for path in choices(group).values()}
    listed |= set((conf_dir() / "hydra" / "launcher").glob("*.yaml"))  # Hydra's group
    assert set(conf_dir().rglob("*.yaml")) - listed == {conf_dir() / "config.yaml"}
    assert sweeps_dir().is_dir()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("algo.clip_hi=.1", "did you mean algo.trust_region.high?"),
        ("algo.rooting=r2", "did you mean algo.routing?"),
        ("lr=1", "did you mean train.optim.lr or coldstart.lr?"),
        ("alg=grpo", "did you mean algo?"),
        ("algo=grop", "algo=grop: no such algo; did you mean grpo?"),
        ("task=chian", "did you mean chain?"),
        ("experiment=tooy", "did you mean toy?"),
        ("algo.routing=R3", "expected one of [live, r2, r3]; did you mean r3?"),
        ("engine.numerics=float8", "expected one of"),
        ("seed=abc", "could not be converted to Integer"),
        ("num_updates=1.5", "could not be converted to Integer"),
        ("algo.routing=null", "not Optional"),
        ("algo.trust_region=ratio", "algo.trust_region has no value of its own; set one of algo.trust_region.kind, "),
        ("seed", "seed is not an override"),
        ("model.path=[1", "model.path=[1 is not an override"),
        ("seed=0,1", "use `minirl sweep` or `python -m minirl.run -m seed=0,1`"),
        ("+nonsense=1", "nonsense: no such key"),
        ("~seed", "seed: no value"),
        ("algo=null", "not null"),
        ("model.path=${nowhere}", "Interpolation key 'nowhere' not found"),
        ("task.options.min_terms=3", "to add it, write +task.options.min_terms=3"),
        ("algo.kl_coef=0.1", "the loss has no KL term to a reference policy"),
        ("algo.beta=0.1", "the loss has no KL term to a reference policy"),
        ("+algo.entropy_coef=0.1", "the loss has no entropy bonus"),
        ("algo.gae_lambda=0.9", "there is no value function"),
        ("num_generations=4", "did you mean group_size?"),
    ],
)
def test_a_wrong_override_is_answered_in_one_line_with_the_right_one(line: str, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load([line])
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_resolved_configuration_is_a_fixed_point(tmp_path: Path) -> None:
    """null, "null", 1e-6, "1e5", true, "[a]", unicode: written, read, written again."""
    odd = {
        "model.path": "'null'",
        "run.name": "'[a]'",
        "run.group": "'1e5'",
        "tracker.entity": "'ünïcødé: # x'",
        "tracker.tags": "['1', 'null', 'a: b']",
        "train.optim.lr": "1e-6",
        "train.optim.eps": "1e-15",
        "train.optim.max_norm": "null",
        "train.activation_checkpointing": "true",
        "+task.options.a": "'1e5'",
        "+task.options.b": "null",
        "+task.options.c": "'null'",
        "+task.options.d": "true",
        "+task.options.e": "'true'",
        "+task.options.f": "1e-6",
        "+task.options.g": "'[a]'",
        "+task.options.h": "'2001-01-01'",
        "+task.options.i": "[1, null, 2.5]",
    }
    cfg = compose([f"{key}={value}" for key, value in odd.items()])
    config = typed(cfg)
    path = tmp_path / "config.yaml"
    first = OmegaConf.to_yaml(cfg, resolve=True)
    path.write_text(first, encoding="utf-8")
    again = read(path)
    assert again == config
    assert again.task.options == {
        "a": "1e5",
        "b": None,
        "c": "null",
        "d": True,
        "e": "true",
        "f": 1e-6,
        "g": "[a]",
        "h": "2001-01-01",
        "i": [1, None, 2.5],
    }
    assert again.model.path == "null" and again.run.name == "[a]" and again.train.optim.max_norm is None
    assert OmegaConf.to_yaml(OmegaConf.structured(again), resolve=True) == first


def test_reading_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read(tmp_path / "config.yaml")


def test_file_then_experiment_then_command_line(tmp_path: Path) -> None:
    """Precedence for every type, booleans and null included, through a person's own folder of groups."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        """# @package _global_
# mine
num_updates: 7
sampling: {temperature: 0.5}
train: {freeze_router: true, compute_dtype: bfloat16, optim: {max_norm: null}}
engine: {numerics: bf16}
tracker: {tags: [a]}
eval: {temperature: 0.25}
"""
    )
    keys: dict[str, tuple[Any, Any, str, Any]] = {
        "num_updates": (96, 7, "8", 8),
        "sampling.temperature": (1.0, 0.5, "2.0", 2.0),
        "train.freeze_router": (False, True, "false", False),
        "train.compute_dtype": ("float32", "bfloat16", "float32", "float32"),
        "train.optim.max_norm": (1.0, None, "3", 3.0),
        "engine.numerics": (Numerics.fp8, Numerics.bf16, "fp32", Numerics.fp32),
        "tracker.tags": ([], ["a"], "[b,c]", ["b", "c"]),
        "eval.temperature": (None, 0.25, "null", None),
    }
    file, experiment = load([]), load(["experiment=mine"], [tmp_path])
    command = load(["experiment=mine", *(f"{key}={line}" for key, (_, _, line, _) in keys.items())], [tmp_path])
    for key, (first, second, _, third) in keys.items():
        assert [select(config, key) for config in (file, experiment, command)] == [first, second, third], key


def test_a_folder_of_ones_own_is_offered_and_must_exist(tmp_path: Path) -> None:
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "mine.yaml").write_text("# my own\ndefaults: [minirl]\nname: mine\nrouting: r3\n")
    assert load(["algo=mine"], [tmp_path]).algo.routing is Routing.r3
    with pytest.raises(ConfigError, match="did you mean mine"):
        load(["algo=mein"], [tmp_path])
    with pytest.raises(ConfigError, match="no such folder"):
        load([], [tmp_path / "nowhere"])
    (tmp_path / "algo" / "wrong.yaml").write_text("defaults: [minirl]\nroting: r3\n")
    with pytest.raises(ConfigError, match=r"algo/wrong.yaml: Key 'roting' not in 'AlgoConfig'"):
        load(["algo=wrong"], [tmp_path])


@pytest.mark.parametrize(
    "text", ["plain", "no clip", "R2, clip", "it's", "a=b", "null", "1e5", "back\\slash", "end\\", "a\\'b", "ä€", ""]
)
def test_any_text_can_be_a_value(text: str) -> None:
    assert load([override("run.name", text)]).run.name == text


def test_composing_leaves_an_outer_hydra_alone() -> None:
    from hydra.core.global_hydra import GlobalHydra

    from minirl.compose import hydra_session

    with hydra_session() as outer:
        compose([])
        assert GlobalHydra.instance().hydra is outer
    assert not GlobalHydra.instance().is_initialized()


def marks(schema: type, prefix: str = "") -> dict[str, bool]:
    found: dict[str, bool] = {}
    for spec in fields(schema):
        found[f"{prefix}{spec.name}"] = spec.metadata["identity"]
        default = spec.default_factory() if callable(spec.default_factory) else None
        if is_dataclass(default):
            found |= marks(type(default), f"{prefix}{spec.name}.")
    return found


def test_every_field_says_whether_it_belongs_to_the_identity() -> None:
    assert all(isinstance(mark, bool) for mark in marks(Config).values())
    assert set(schema_keys()) <= set(marks(Config))
    assert len(schema_keys()) > 90


def test_words_of_the_schema_are_their_own_names() -> None:
    """Hydra reads an enum by name, files and reports write its value: they are one."""
    import minirl.config

    for kind in vars(minirl.config).values():
        if isinstance(kind, type) and issubclass(kind, Enum):
            assert all(member.name == member.value for member in kind)
    assert Level("token") is Level.token


def test_a_launcher_of_another_distribution_does_not_stand_in_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra would check our file against whatever is registered under its name."""
    launchers = ConfigStore.instance().repo["hydra"]["launcher"]
    monkeypatch.setitem(launchers, "ray.yaml", replace(launchers["basic.yaml"], name="ray.yaml"))
    with hydra_session() as hydra:
        chosen = hydra.compose_config(CONFIG_NAME, ["hydra/launcher=ray"], RunMode.MULTIRUN).hydra.launcher
    assert chosen._target_ == "hydra_plugins.minirl_launcher.RayLauncher" and chosen.address is None
