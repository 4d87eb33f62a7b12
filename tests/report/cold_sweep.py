"""A made-up sweep that compares three cold starts: their scores come together, their lengths do not."""

from __future__ import annotations

import json
from pathlib import Path

from synthetic_sweep import BASE, Behaviour, identity_of, write_sweep

STARTS = {  # overrides; how far below the first one it begins; tokens of a response
    "careful teacher": ([], 0.0, 10.0),
    "careless teacher": (["coldstart.wrong_step_rate=0.08"], 0.12, 7.0),
    "terse teacher": (["coldstart.style=plain"], 0.24, 4.0),
}


def write_cold_sweep(folder: Path, *, margin: float = 0.05) -> Path:
    base = BASE | {"coldstart": {"style": "count", "wrong_step_rate": 0.02}}
    claim = {"text": "The scores come together", "metric": "eval/avg", "at": "end", "relation": "converges"}
    claims = [claim | {"arms": list(STARTS), "margin": margin}]
    arms = {name: (words, Behaviour(noise=0.0)) for name, (words, _, _) in STARTS.items()}
    write_sweep(folder, arms=arms, claims=claims, base=base, title="Cold starts, N=8")
    for name, (_, behind, length) in STARTS.items():
        for run in folder.glob(f"{identity_of(name)}-s*"):
            _begin_elsewhere(run, identity_of(name), behind, length)
    return folder


def _begin_elsewhere(run: Path, content: str, behind: float, length: float) -> None:
    record = json.loads((run / "run.json").read_text())
    record["coldstart"]["content"] = content * 4
    (run / "run.json").write_text(json.dumps(record))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if "eval/avg" in row:
            left = 1 - row["version"] / record["num_updates"]
            row["eval/avg"] = max(row["eval/avg"] - left * behind, 0.0)
            row["eval/length"] = length + 0.01 * record["seed"]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
