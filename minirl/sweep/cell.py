"""A run in a process that does not descend from the sweep's: `python -m minirl.sweep.cell FOLDER`, of which torchrun
may start several. What to run lies in the folder, composed: an edit of conf/ while a job waits changes nothing."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from hydra._internal.callbacks import Callbacks
from hydra.conf import HydraConf
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict

from minirl.config import Config
from minirl.record import JOB, write_atomically
from minirl.sweep.job import Answer, follow, performed, resolved

ORDER, ANSWER = "job.yaml", "answer.json"


def write(folder: Path, task: str, config: DictConfig) -> None:
    """The order: the task's reference (`job.reference`) and Hydra's configuration of the job."""
    order = OmegaConf.create({"task": task})
    order.config = config
    write_atomically(folder / ORDER, OmegaConf.to_yaml(order))


def read(folder: Path) -> tuple[str, DictConfig]:
    """The same, with the schema's types."""
    order = OmegaConf.load(folder / ORDER)
    assert isinstance(order, DictConfig)
    whole = order.config
    own = OmegaConf.masked_copy(whole, [key for key in whole if key != "hydra"])
    config = OmegaConf.merge(OmegaConf.structured(Config), own)
    assert isinstance(config, DictConfig)
    hydra = OmegaConf.structured(HydraConf)
    OmegaConf.set_struct(hydra, False)  # groups that Hydra's configuration has beyond its schema
    with open_dict(config):
        config.hydra = OmegaConf.merge(hydra, whole.hydra)
    return order.task, config


def answer(folder: Path, job: str) -> Answer | None:
    """What the process of that job said, None if it died without a word."""
    path = folder / ANSWER
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return Answer(**found["answer"]) if found.get("job") == job else None


def main(folder: Path) -> None:
    """Runs the order. The first rank answers."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    follow(lambda: os.read(sys.stdin.fileno(), 1))  # the launcher holds the other end, and writes nothing
    task, config = read(folder)
    context = HydraContext(config_loader=None, callbacks=Callbacks())  # type: ignore[arg-type]  # nothing is composed
    said = performed(resolved(task), config, context)
    if os.environ.get("RANK", "0") == "0":
        write_atomically(folder / ANSWER, json.dumps({"job": os.environ[JOB], "answer": asdict(said)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
