"""What `test_every_key` sees change is another experiment exactly where the schema says so; the rest is one run."""

from dataclasses import fields, is_dataclass
from functools import cache

import pytest
from test_every_key import COLDSTART, MODEL, RUN, SHORT

from minirl.compose import load
from minirl.config import Config
from minirl.identity import coldstart_key, identity


@cache
def composed(*overrides: str) -> Config:
    return load(list(overrides))


def belongs_to_identity(key: str) -> bool:
    """As the schema marks it."""
    node, spec = composed(), None
    for name in key.split("."):
        spec = next(each for each in fields(node) if each.name == name)
        node = getattr(node, name)
    assert spec is not None and not is_dataclass(node), key
    return bool(spec.metadata["identity"])


def experiment(*overrides: str) -> tuple[str, str]:
    """(what is run, what it starts from)."""
    config = composed(*overrides)
    return identity(config, "start"), coldstart_key(config)


@pytest.mark.parametrize("key", RUN)
def test_a_key_that_changes_the_figures_of_a_run(key: str) -> None:
    """Seed, horizon and evaluation change what is seen and not which experiment it is."""
    differs = experiment(*SHORT, *RUN[key]) != experiment(*SHORT)
    assert differs == belongs_to_identity(key)


@pytest.mark.parametrize("key", MODEL)
def test_a_key_that_changes_the_weights_of_the_model(key: str) -> None:
    assert belongs_to_identity(key) and experiment(*MODEL[key])[1] != experiment()[1]


@pytest.mark.parametrize("key", COLDSTART)
def test_a_key_that_changes_the_cold_start(key: str) -> None:
    """It enters through the weights that it leads to."""
    assert belongs_to_identity(key) and experiment(*COLDSTART[key])[1] != experiment()[1]
