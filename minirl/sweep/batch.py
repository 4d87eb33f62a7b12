"""One run as a scheduler holds it: a process on each of its nodes that starts the ranks there and passes signals on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from minirl.record import JOB
from minirl.sweep.job import LOG

POLL_SECONDS = 0.2
SAVE_SECONDS = 3600  # torchrun lets its ranks finish a step and save it; a scheduler's own patience is shorter


@dataclass(frozen=True)
class Place:
    """Where a node stands among the nodes of its run. address: of the first one, port: for the ranks to meet."""

    nodes: int = 1
    node: int = 0
    address: str = "localhost"
    port: int = 29400


@dataclass
class Batch:
    """The order in `folder` (`cell.write`), run by so many processes on a node. environment: what theirs has more.
    working_folder: that relative paths of the configuration begin at."""

    folder: Path
    processes: int
    environment: Mapping[str, str] = field(default_factory=dict)
    working_folder: Path = field(default_factory=Path.cwd)
    child: subprocess.Popen[bytes] | None = None

    def run(self, job: str, place: Place) -> int:
        """The exit code of this node's part. SIGTERM asks the ranks to save and leave."""
        log = LOG if place.node == 0 else f"log.node{place.node}.txt"
        with (self.working_folder / self.folder / log).open("ab") as output:
            self.child = subprocess.Popen(
                command(self.folder, self.processes, place),
                stdin=subprocess.PIPE,  # closed when this process dies: `cell.main` follows it
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.working_folder,
                env=os.environ | dict(self.environment) | {JOB: job},
                start_new_session=True,  # a terminal's Ctrl-C and a scheduler's signals come through this process only
            )
        signal.signal(signal.SIGTERM, self._pass_on)
        while (code := self.child.poll()) is None:  # no blocking call: Ray's cancelling does not interrupt one
            time.sleep(POLL_SECONDS)
        return code

    def leave(self) -> None:
        """Asks the ranks here to save and leave, and waits for them; ranks on other nodes follow these. May be called
        by a signal's handler while `run` waits: the child is left to `run` to be reaped."""
        if self.child is None:
            return
        self.child.send_signal(signal.SIGTERM)
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOWAIT)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self.child is not None:
            self.child.send_signal(signal.SIGTERM)


def command(folder: Path, processes: int, place: Place) -> list[str]:
    """The words that start a node's part of the run: python, or torchrun where the run has several ranks."""
    cell = ["-m", "minirl.sweep.cell", str(folder)]
    if processes * place.nodes == 1:
        return [sys.executable, *cell]
    torchrun = [
        *("-m", "torch.distributed.run"),
        f"--nnodes={place.nodes}",
        f"--node-rank={place.node}",
        f"--nproc-per-node={processes}",
        f"--master-addr={place.address}",
        f"--master-port={place.port}",
        f"--shutdown-timeout={SAVE_SECONDS}",
    ]
    return [sys.executable, *torchrun, *cell]
