"""Arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minirl import completion

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[OVERRIDES]...", help="key=value, group=choice, +new=value", autocompletion=completion.overrides
    ),
]
ConfigDirs = Annotated[
    list[Path] | None,
    typer.Option("--config-dir", help="A folder with groups of your own (algo/, model/, ...); may be repeated."),
]
Outputs = Annotated[Path, typer.Option("--outputs", help="Where results are.")]
NewOutputs = Annotated[
    Path | None, typer.Option("--outputs", help="Where results go: run.outputs, by the name that all commands have.")
]
RESULTS = Path("outputs")
