"""A run that tells W&B, in a process of its own (the client reads its environment once per process)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wandb_server import KEY

CODE = """
import json, logging, os, signal, sys, time
from pathlib import Path
from omegaconf import OmegaConf
from minirl.compose import compose, typed
from minirl.record import RunRecord
from minirl.tracking import wandb_run
from minirl.tracking.registry import build

logging.basicConfig(format="%(message)s")
given = json.loads(sys.argv[1])
wandb_run.INIT_SECONDS, wandb_run.FINISH_SECONDS, wandb_run.TRANSMIT_SECONDS = given["patience"]
folder = Path(given["folder"])
RunRecord(folder).update(identity="0123456789", state="running", arm="an arm", git={"sha": "c0ffee", "dirty": False})
cfg = compose(["tracker=wandb", *given["overrides"]])
(folder / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
tracker = build(typed(cfg), folder, "0123456789", 0)
tracker.truncate(given["first"])
for version in range(given["first"], given["last"]):
    if version % 2 == 0:
        tracker.samples(version, [{"position": version, "prompt": "1+1=", "response": "2", "reward": 1.0}])
        tracker.histograms(version, {"is_weight/value": ([0.0, 1.0, 2.0], [version, 1])})
    tracker.log(version, {"eval/avg": given["level"] * (1 + version), "eval/se": 0.01})
    tracker.write(version, {"loss": None or version / 3, "time/update": time.time()})
    while version == given["halt"] and not (folder / "sent").exists():
        time.sleep(0.05)
if given["ending"] == "kill -9":
    os.kill(os.getpid(), signal.SIGKILL)
RunRecord(folder).update(state=given["ending"], seed=2)
tracker.close(given["ending"])
"""


PATIENT, IMPATIENT = (30.0, 30.0, 0.5), (3.0, 4.0, 0.5)


@dataclass(frozen=True)
class Told:
    """The run's folder and what it printed."""

    folder: Path
    output: str

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.output.splitlines() if line.startswith("W&B")]


def online(folder: Path, address: str, versions: range, *overrides: str, **more: Any) -> Told:
    """ending: how the run ends, or "kill -9" after its last row · halt: the version after which it waits until
    FOLDER/sent is there · level: of its evaluations · patience: seconds for the start, the finish, and between two
    parcels of rows."""
    folder.mkdir(exist_ok=True)
    given = {"ending": "finished", "halt": -1, "level": 0.05, "patience": PATIENT} | more
    words = ["tracker.mode=online", "seed=2", *overrides]
    given |= {"folder": str(folder), "overrides": words, "first": versions.start, "last": versions.stop}
    done = speak([sys.executable, "-c", CODE, json.dumps(given)], address)
    output = done.stdout + done.stderr
    assert done.returncode == (-9 if given["ending"] == "kill -9" else 0), output
    refuse_key(folder, output)
    return Told(folder, output)


def command(address: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`minirl WORDS` with a key for the server at `address`."""
    return speak([sys.executable, "-m", "minirl.cli", *words], address)


def wandb_sync(address: str, *folders: Path) -> None:
    executable = Path(sys.executable).with_name("wandb")
    done = speak([str(executable), "sync", "--yes", *map(str, folders)], address)
    assert done.returncode == 0, done.stderr


def environment(address: str) -> dict[str, str]:
    """Without the service process that the library may have left to this process and its children."""
    own = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    return own | {"WANDB_BASE_URL": address, "WANDB_API_KEY": KEY, "COLUMNS": "200"}


def speak(words: list[str], address: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, env=environment(address), capture_output=True, text=True, timeout=180)
    assert KEY not in done.stdout + done.stderr
    return done


def refuse_key(folder: Path, output: str) -> None:
    """W&B's own files and logs under the run's folder are searched too."""
    assert KEY not in output
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files and not [path for path in files if KEY.encode() in path.read_bytes()]
