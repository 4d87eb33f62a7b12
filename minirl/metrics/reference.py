"""The metric reference page, made from the code that logs: `python -m minirl.metrics.reference > docs/metrics.md`.

Every estimator says in its docstring what it is, and on the last line, in brackets, where it comes from. A family
binds estimators to the names under which they are logged; all families of the package are looked up here, so there is
no second list that could say something else.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import minirl
from minirl.metrics.alarms import BANDS, Band, alarm, alarms
from minirl.metrics.collapse import collapse_onset
from minirl.metrics.statistics import Family

PACKAGE = Path(minirl.__file__).parent
# logged by code that has numbers, not statistics: its docstrings speak for it
ELSEWHERE = {"eval/": ("evaluate.py", "figures"), "time/": ("clock.py", "seconds")}

HEADER = """# Metrics

Generated from the code that logs them; do not edit: `python -m minirl.metrics.reference > docs/metrics.md`.

One row of `metrics.jsonl` per version (optimizer update). Figures of a rollout batch stand in the row of the version
that sampled it, figures of an update in the row of the version that it starts from. All are taken over all ranks and
micro-batches, on every response token of valid responses *before* any rejection, unless the formula says otherwise. A
metric that is absent had nothing to be measured on.

r = pi_theta / pi_old (staleness), rho = pi_old / mu_old (discrepancy), d = the log of the ratio in question,
m(.) = mean over response tokens, S = sum of d over a response. Logarithms are natural.
"""


@dataclass(frozen=True)
class Entry:
    """One estimator. names: all under which it is logged · module: where it is written."""

    names: tuple[str, ...]
    formula: str
    source: str
    module: ModuleType


def families() -> Iterator[Family]:
    """Every family that a module of the package declares, by file name."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if re.search(r"^\w+ = Family\(", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            module = import_module(".".join(["minirl", *path.relative_to(PACKAGE).with_suffix("").parts]))
            yield from (value for value in vars(module).values() if isinstance(value, Family))


def declared(estimate: Callable[..., object]) -> tuple[str, str]:
    """(formula, source) from the docstring. Raises ValueError where either is missing."""
    found = re.fullmatch(r"(.+?)\s*\[([^\[\]]+)\]", inspect.getdoc(estimate) or "", flags=re.DOTALL)
    if found is None:
        raise ValueError(
            f"{estimate.__module__}.{estimate.__qualname__}: its docstring must be a formula and [a source]"
        )
    return " ".join(found[1].split()), found[2]


def suffixes(estimate: Callable[..., object]) -> tuple[str, ...]:
    """What the estimator's statistic appends to its name."""
    return vars(get_type_hints(estimate)["return"]).get("suffixes", ("",))


def entries() -> list[Entry]:
    """One entry per estimator, by module and in the order of its family."""
    names: dict[Callable[..., object], list[str]] = {}
    for family in sorted(families(), key=lambda family: len(family.prefix)):  # the plain name before its variants
        for name, estimate in family.estimators.items():
            known = names.setdefault(estimate, [])
            known += [full for end in suffixes(estimate) if (full := family.prefix + name + end) not in known]
    found = [
        Entry(tuple(known), *declared(made), sys.modules[made.__module__]) for made, known in names.items() if known
    ]
    return sorted(found, key=lambda entry: entry.module.__name__)


def docstring(file: str, name: str) -> str:
    """The docstring of a function, read without importing its module."""
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    function = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)
    return ast.get_docstring(function) or ""


def table(rows: list[Entry]) -> list[str]:
    """Markdown; a bar inside a cell is escaped."""
    lines = ["| metric | what it is | source |", "|---|---|---|"]
    for row in rows:
        names = "<br>".join(f"`{name}`" for name in row.names)
        cells = (names, row.formula, row.source)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return lines


def page() -> str:
    lines = [HEADER]
    found = entries()
    for module in dict.fromkeys(entry.module for entry in found):
        rows = [entry for entry in found if entry.module is module]
        title = ", ".join(dict.fromkeys(name.split("/")[0] for row in rows for name in row.names))
        place = module.__name__.replace(".", "/")
        lines += [f"## {title}", "", inspect.getdoc(module) or "", "", f"Code: `{place}.py`", "", *table(rows), ""]
    for prefix, (file, name) in ELSEWHERE.items():
        lines += [f"## {prefix.rstrip('/')}", "", docstring(file, name), ""]
    lines += ["## Collapse", "", inspect.getdoc(collapse_onset) or "", ""]
    lines += ["## Warnings", "", inspect.getdoc(alarms) or "", "", inspect.getdoc(alarm) or "", ""]
    lines += [inspect.getdoc(Band) or "", "", "| metric | a warning |", "|---|---|"]
    lines += [f"| `{name}` | {band} |" for name, band in BANDS.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
