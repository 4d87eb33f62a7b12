"""`minirl export RUN --to hf`: the trained weights as a folder in Hugging Face format."""

from __future__ import annotations

import shutil
from pathlib import Path

from minirl.compose import read
from minirl.config import ConfigError
from minirl.examine import recorded_start, restored, run_of
from minirl.world import World


def publish(checkpoint: Path, out: Path) -> Path:
    """The weights of a run's newest checkpoint, or of one of them, as `out`: in the names, the precision and with the
    tokenizer of the folder that the run began from. The folder appears whole or not at all. Under torchrun the ranks
    share the work. Raises ConfigError."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: it is there already; give a new folder")
    config = read(run_of(checkpoint) / "config.yaml")
    world = World.join(config.run.device)
    try:
        found = restored(config, checkpoint, world)
        draft = out.with_name(f".{out.name}.partial")
        if world.rank == 0:
            shutil.rmtree(draft, ignore_errors=True)
        world.barrier()
        found.policy.export(draft, recorded_start(checkpoint))
        if world.rank == 0:
            if out.exists():
                out.rmdir()
            draft.rename(out)
        world.barrier()
    finally:
        world.leave()
    return out
