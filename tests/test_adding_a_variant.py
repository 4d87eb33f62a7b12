"""docs/adding_a_variant.md, done to the letter on a copy: the new variants compose, compute and can be swept."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = r"```\w+\n(.*?)```"
EDIT = re.compile(rf"In `([^`\n]+)`,\s(before|after) `([^`\n]+)`:\n\n{BLOCK}", re.DOTALL)
NEW = re.compile(rf"New file `([^`\n]+)`:\n\n{BLOCK}", re.DOTALL)

USE = """
import torch
from minirl.algo.algorithm import build
from minirl.compose import load
from minirl.types import Rewards
values = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
rewards = Rewards(values, torch.ones(8, dtype=torch.bool))
print(build(load(["algo=group_median"]).algo).advantage(rewards, 4).tolist())
print(load(["algo=loose"]).algo.trust_region.high)
"""


def test_the_page_can_be_followed(tmp_path: Path) -> None:
    for folder in ("minirl", "conf", "sweeps", "hydra_plugins"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    page = (ROOT / "docs" / "adding_a_variant.md").read_text(encoding="utf-8")
    edits, files = EDIT.findall(page), NEW.findall(page)
    assert (len(edits), len(files)) == (3, 3)
    for name, place, line, block in edits:
        path = tmp_path / name
        text = path.read_text(encoding="utf-8")
        assert text.count(f"{line}\n") == 1
        pieces = (f"{block}\n\n", f"{line}\n") if place == "before" else (f"{line}\n", block)
        path.write_text(text.replace(f"{line}\n", "".join(pieces)), encoding="utf-8")
    for name, block in files:
        (tmp_path / name).write_text(block, encoding="utf-8")

    def python(*words: str) -> str:
        variables = os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "200"}
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert python("-c", USE).splitlines() == ["[0.0, 0.0, 1.0, 1.0, -1.0, 0.0, 0.0, 0.0]", "0.4"]
    planned = python("-m", "minirl.cli", "sweep", "median", "--dry-run")
    assert "algo=group_median" in planned
    assert "10 runs" in planned
