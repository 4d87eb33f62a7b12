"""A W&B report's specification taken apart again, and the same numbers straight from the files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from wandb_store import written


def tables(spec: dict[str, Any]) -> list[list[dict[str, str]]]:
    """The Markdown tables of a report, as rows by column; escapes removed."""
    found = []
    for block in spec["blocks"]:
        lines = [line for line in block.get("content", "").splitlines() if line.startswith("|")]
        rows = [[re.sub(r"\\(.)", r"\1", cell.strip()) for cell in line.split(" | ")] for line in lines]
        rows = [[cell.strip("| ") for cell in row] for row in rows]
        if rows:
            found.append([dict(zip(rows[0], row, strict=True)) for row in rows[2:]])
    return found


def grids(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [block["metadata"] for block in spec["blocks"] if block["type"] == "panel-grid"]


def end_of(run: Path, metric: str) -> float:
    """The mean over the last tenth of the planned updates, straight from the file."""
    horizon = yaml.safe_load((run / "config.yaml").read_text())["num_updates"]
    rows = [row for row in written(run) if row.get(metric) is not None]
    late = [row[metric] for row in rows if row["version"] >= 0.9 * horizon]
    return float(np.mean(late)) if late else rows[-1][metric]


def runs_of(folder: Path) -> dict[str, dict[int, Path]]:
    cells = json.loads((folder / "sweep.json").read_text())["cells"]
    found: dict[str, dict[int, Path]] = {}
    for cell in cells:
        found.setdefault(cell["arm"], {})[cell["seed"]] = folder / Path(cell["folder"]).name
    return found
