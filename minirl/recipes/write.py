"""`minirl export RUN --to STACK`: the recipe of a run as a snippet of that stack's configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml

from minirl.compose import read
from minirl.config import Config, ConfigError
from minirl.recipes import prime_rl, skyrl, trl, verl
from minirl.recipes.recipe import LEFT_OUT, Recipe
from minirl.record import write_atomically
from minirl.suggest import did_you_mean

RECIPES: Mapping[str, Callable[[Config], Recipe]] = {
    "verl": verl.recipe,
    "trl": trl.recipe,
    "prime-rl": prime_rl.recipe,
    "skyrl": skyrl.recipe,
}
WIDTH = 116


def export(folder: Path, stack: str, out: Path | None) -> tuple[str, Recipe]:
    """The snippet of the run in `folder`, written to `out` if that is given. Raises ConfigError."""
    if stack not in RECIPES:
        raise ConfigError(f"--to {stack}: no such stack{did_you_mean(stack, [*RECIPES, 'hf'])}")
    made = RECIPES[stack](read(folder / "config.yaml"))
    text = snippet(made, folder)
    if out is not None:
        write_atomically(out, text)
    return text, made


def snippet(made: Recipe, folder: Path) -> str:
    """Comments first: of what, for which version, and what it does not say. TOML for prime-rl, else YAML."""
    record = folder / "run.json"
    known = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    name = f'arm "{known["arm"]}" of {known.get("sweep") or "no sweep"}, ' if known.get("arm") else ""
    lines = _comment(f"{made.stack} {made.version}: {name}run {folder.resolve().name}, by minirl export")
    lines += _comment(f"Only the algorithm, its sizes, sampling and optimizer; {LEFT_OUT} are yours.")
    for text in made.unexpressed:
        lines += _comment(f"NOT EXPRESSED: {text}.")
    for text in made.notes:
        lines += _comment(f"Note: {text}.")
    body = toml(made.tree) if made.stack == "prime-rl" else yaml.safe_dump(made.tree, sort_keys=False, width=WIDTH)
    return "\n".join([*lines, "", body])


def _comment(text: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)


def toml(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Tables of strings, numbers and truth values, which is all that a recipe has."""
    leaves = {name: value for name, value in tree.items() if not isinstance(value, Mapping)}
    head = [f"[{'.'.join(path)}]"] if path and leaves else []
    lines = [*head, *(f"{name} = {json.dumps(value)}" for name, value in leaves.items())]
    own = "\n".join(lines) + "\n" if lines else ""
    rest = [toml(value, (*path, name)) for name, value in tree.items() if isinstance(value, Mapping)]
    return "\n".join(part for part in (own, *rest) if part)
