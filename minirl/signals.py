"""Asked from outside to stop: SIGTERM (a scheduler takes the machine back, a launcher ends), SIGUSR1 or SIGUSR2 (a
scheduler's time limit is near). A run saves what it did and leaves. Ctrl-C is another thing: it stops at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from minirl.world import World

REQUESTS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Leave:
    """Whether any rank was asked to stop. Called by all ranks at the same place; a signal that comes twice, from the
    scheduler and from a launcher that passes it on, is one request."""

    def __init__(self, world: World) -> None:
        self.world, self.asked = world, False

    def __call__(self) -> bool:
        return self.world.max(int(self.asked)) > 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """What the signals did before is put back afterwards."""
        previous = {number: signal.signal(number, self._ask) for number in REQUESTS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            name = signal.Signals(number).name
            # not by print: a signal may interrupt a print
            os.write(2, f"{name}: this step is finished and saved, then the run stops (SIGINT: at once)\n".encode())
        self.asked = True
