"""Every command of docs/running_at_scale.md composes and passes the checks, and its tables are the accounting's."""

import re
import shlex
from pathlib import Path

import pytest

from minirl.accounting.estimate import estimate
from minirl.accounting.machine import machine
from minirl.compose import compose, load, typed
from minirl.sweep.expand import Request, expand
from minirl.sweep.file import names, read
from minirl.sweep.plan import plan_arms
from minirl.validate import validate

PAGE = (Path(__file__).parents[1] / "docs" / "running_at_scale.md").read_text(encoding="utf-8")
LINES = [
    line for block in re.findall(r"^```\n(.*?)^```", PAGE, re.M | re.S) for line in block.splitlines() if line.strip()
]
FIGURES = {"on_policy", "off_policy_n2", "off_policy_n4", "off_policy_n8", "cold_start"}


def overrides(words: list[str]) -> list[str]:
    return [word for word in words if "=" in word and not word.startswith("-")]


def test_the_page_has_commands_of_every_kind():
    assert len(LINES) > 12
    assert {line.split()[2] for line in LINES if line.startswith("minirl sweep")} >= FIGURES
    assert all(line.split()[0] in ("minirl", "torchrun") for line in LINES)


def by_cost(line: str):
    """Sweeps compose at every scale in a test of their own (tests/sweep): here the launchers' words are new."""
    return pytest.param(line, marks=pytest.mark.slow) if "minirl sweep" in line and "cold_start" not in line else line


@pytest.mark.parametrize("line", map(by_cost, LINES))
def test_every_command_composes_and_is_checked(line):
    words = shlex.split(line, comments=True)
    if "export" in words:
        assert "--to" in words and "hf" in words
        return
    given = overrides(words)
    if "sweep" not in words:
        validate(load(given))
        return
    scale = next(word.partition("=")[2] for word in given if word.startswith("experiment="))
    design = expand(read(names()[words[2]]), scale, Request(tuple(given), {}, None, None))
    assert sum(planned.excluded is None for planned in plan_arms(design, compose)) >= 2


def figure(number: int) -> str:
    return f"{number / 1e9:.3g}"


@pytest.mark.parametrize(("column", "scale"), [(1, "sanity"), (2, "node"), (3, "paper")])
def test_the_table_of_memory_is_the_accounting_s(column, scale):
    table = PAGE[PAGE.index("| part |") :].split("\n\n")[0].splitlines()[2:]
    shown = [[cell.strip() for cell in row.strip("|").split("|")][column] for row in table]
    config = typed(compose([f"experiment={scale}", "num_mini_batches=4"]))
    size = estimate(config, None, machine(config.machine, config.run, ()))
    part = size.memory
    expected = [part.parameters, part.gradients, part.optimizer, part.gathered, part.activations, part.engine]
    expected += [part.cache, part.phases["rollout"], part.phases["update"], size.checkpoint_bytes]
    assert shown == [figure(number) for number in expected]
