"""A run without training: it behaves as the name of its arm says, and keeps its record as a real one does."""

import json
import os
import signal
import time
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from minirl.record import RunRecord, State, environment

SLEEP_SECONDS = 60.0


def task(cfg: DictConfig) -> str:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(HydraConfig.get().runtime.output_dir)
    if cfg.run.name == "tells its rank":
        place = {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")}
        (folder / f"rank{place['RANK']}.json").write_text(json.dumps(place))
        if place["RANK"] != "0":
            return "finished"
    record = RunRecord(folder)
    with record.locked():
        before = record.read()
        if before and State(before["state"]).is_result and before["num_updates"] >= cfg.num_updates:
            return str(before["state"])
        record.update(
            identity=folder.name.rpartition("-s")[0],
            seed=cfg.seed,
            arm=cfg.run.name,
            sweep=cfg.run.group,
            state=State.running,
            reason=None,
            num_updates=cfg.num_updates,
            cpu_seconds=0.5,
            **environment(),
        )
        try:
            with (folder.parent / "starts.txt").open("a") as starts:
                print(cfg.run.name, cfg.seed, os.environ.get("CUDA_VISIBLE_DEVICES"), file=starts)
            return _behave(cfg, record)
        except KeyboardInterrupt:
            record.update(state=State.interrupted, reason="told to stop")
            if cfg.run.name != "leaves when asked":
                raise
            print("asked to stop: saved", flush=True)
            return "interrupted"


def _behave(cfg: DictConfig, record: RunRecord) -> str:
    print("a line of the log", flush=True)
    if cfg.run.name == "raises":
        raise RuntimeError("this arm raises")
    if cfg.run.name == "segfaults":
        os.kill(os.getpid(), signal.SIGSEGV)
    if cfg.run.name == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if cfg.run.name == "sleeps" or (cfg.run.name == "leaves when asked" and not (record.folder / "asked").exists()):
        (record.folder / "asked").touch()
        time.sleep(SLEEP_SECONDS)
    if cfg.run.name.startswith("naps"):
        time.sleep(1.0)
    with (record.folder / "metrics.jsonl").open("a") as rows:
        for version in range(cfg.num_updates):
            row = {"version": version, "reward/mean": 0.5, "eval/avg": 0.25, "time/update": 0.1, "time/update_cpu": 0.1}
            print(json.dumps(row), file=rows)
    state = State.diverged if cfg.run.name == "diverges" else State.finished
    record.update(state=state, version=cfg.num_updates, ended=time.time())
    return str(state)
