"""One thread, no network, nothing written outside the test's own folder."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# before anything imports torch, numpy or wandb
os.environ |= {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MPLBACKEND": "agg",
    "HF_HUB_OFFLINE": "1",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
}
for name in ("WANDB_API_KEY", "WANDB_MODE", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
    os.environ.pop(name, None)


@pytest.fixture(scope="session", autouse=True)
def no_user_settings(tmp_path_factory: pytest.TempPathFactory) -> None:
    """W&B keeps settings, caches and keys in the home folder: neither read nor written by a test."""
    home = tmp_path_factory.mktemp("wandb")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        os.environ[name] = str(home)
    os.environ["NETRC"] = str(home / "netrc")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of every test, so that a relative `outputs` lands there; child processes find minirl."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


@pytest.fixture(scope="session")
def small_coldstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outputs folder that holds the cold start of SMALL: made once for all tests that run something."""
    from small_runs import SMALL

    from minirl import coldstart
    from minirl.compose import load
    from minirl.world import World

    made = tmp_path_factory.mktemp("outputs")
    world = World.join("cpu")
    coldstart.ensure(load([*SMALL, f"run.outputs={made}"]), world, print)
    world.leave()
    return made


@pytest.fixture
def outputs(small_coldstart: Path, tmp_path: Path) -> Path:
    """A fresh outputs folder that shares the small cold start."""
    (tmp_path / "coldstarts").symlink_to(small_coldstart / "coldstarts")
    return tmp_path
