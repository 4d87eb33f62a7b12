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
