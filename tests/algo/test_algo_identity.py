"""Two values of a key of algo.* that do different things are two experiments: the identity changes with them."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from functools import cache
from typing import Any

import pytest
from algo_cases import METHODS, algo_config
from test_algo_mutation import MUTATIONS, leaves, written

from minirl.compose import load
from minirl.config import AlgoConfig, Config
from minirl.identity import identity


@cache
def off_policy() -> Config:
    return load(["num_mini_batches=8"])


def identity_of(algo: AlgoConfig) -> str:
    return identity(replace(off_policy(), algo=algo), "start")


@pytest.mark.parametrize(("key", "kind"), [each for each in leaves(AlgoConfig) if each[0] != "name"])
def test_every_value_is_an_experiment_of_its_own(key: str, kind: Any) -> None:
    base, values = MUTATIONS.get(key, ([], []))
    if not values:
        assert issubclass(kind, StrEnum)
        values = list(kind)
    found = [identity_of(algo_config("minirl", *base, written(key, value))) for value in values]
    assert len(set(found)) == len(values), f"two values of algo.{key} have one identity: {values}"


def test_a_name_is_no_experiment() -> None:
    assert identity_of(replace(algo_config("minirl"), name="other")) == identity_of(algo_config("minirl"))


def test_every_method_is_an_experiment_of_its_own() -> None:
    found = {name: identity_of(algo_config(name)) for name in METHODS}
    assert len(set(found.values())) == len(METHODS)
