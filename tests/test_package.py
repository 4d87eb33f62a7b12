"""The wheel carries conf/, sweeps/ and the Hydra plugins; an editable install reads those of the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
hatchling = pytest.importorskip("hatchling.build")


def built(folder: Path, monkeypatch: pytest.MonkeyPatch, build: str) -> zipfile.ZipFile:
    monkeypatch.chdir(ROOT)  # a build backend builds the project of the working folder
    return zipfile.ZipFile(folder / getattr(hatchling, build)(str(folder)))


def test_the_wheel_works_away_from_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = built(tmp_path, monkeypatch, "build_wheel")
    inside = set(wheel.namelist())
    for folder in ("conf", "sweeps"):
        ours = {f"minirl/_data/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*.yaml")}
        assert ours <= inside
        assert ours
    plugins = {str(path.relative_to(ROOT)) for path in (ROOT / "hydra_plugins").rglob("*.py")}
    assert plugins <= inside
    assert plugins
    assert not [name for name in inside if name.split("/")[0] in ("tests", "bench", "docs")]

    wheel.extractall(tmp_path / "site")
    code = (
        "from minirl.compose import compose, conf_dir, sweeps_dir\n"
        "print(conf_dir(), sweeps_dir(), compose(['algo=grpo', 'seed=3']).algo.name, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
    )
    here = tmp_path / "site" / "minirl" / "_data"
    assert done.stdout.splitlines() == [str(here / "conf"), str(here / "sweeps"), "grpo"], done.stderr


def test_an_editable_install_is_a_pointer_to_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy of conf/ that could go stale."""
    wheel = built(tmp_path, monkeypatch, "build_editable")
    files = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert [Path(name).suffix for name in files] == [".pth"]
    assert Path(wheel.read(files[0]).decode().strip()) == ROOT


def test_the_command_is_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = built(tmp_path, monkeypatch, "build_wheel")
    (entry,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "minirl = minirl.cli:app" in wheel.read(entry).decode()
