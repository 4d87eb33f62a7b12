"""The cold starts of a sweep, made before its runs: each distinct one once, in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from pathlib import Path

from minirl.config import Config, ConfigError, TargetMissed
from minirl.identity import coldstart_key
from minirl.models.content import content_hash
from minirl.sweep.job import Answer, refusal, settle
from minirl.sweep.plan import PlannedArm, made_start
from minirl.sweep.processes import Child, Nursery, stop


class StartFailed(Exception):
    """A cold start's process ended without a checkpoint, and not because of its configuration."""


def work(config: Config, log: Path, environment: Mapping[str, str], answer: connection.Connection) -> None:
    """Makes the cold start of `config`: progress as text, then where it is."""
    os.environ |= environment
    settle(log)
    from minirl.coldstart import ensure
    from minirl.world import World

    def report(line: str) -> None:
        print(line, flush=True)
        answer.send(line)

    world = World.join(config.run.device)
    try:
        answer.send(Answer(str(ensure(config, world, report))))
    except Exception as error:
        answer.send(refusal(error))
    finally:
        world.leave()


def made(
    arms: Sequence[PlannedArm], nursery: Nursery, environments: Sequence[Mapping[str, str]], say: Callable[[str], None]
) -> dict[str, str]:
    """coldstart_key -> content hash of the checkpoint, for every arm that runs; what is missing is made, side by side.

    Raises ConfigError where the configuration is to blame, StartFailed otherwise.
    """
    wanted = {coldstart_key(planned.config): planned.config for planned in arms if planned.excluded is None}
    folders = {key: made_start(config) for key, config in wanted.items()}
    missing = [key for key, folder in folders.items() if folder is None]
    while missing:
        batch, missing = missing[: len(environments)], missing[len(environments) :]
        children = {}
        for key, environment in zip(batch, environments, strict=False):
            log = Path(wanted[key].run.outputs) / "coldstarts" / f"{key}.log"
            children[key] = nursery.start(work, wanted[key], log, environment)
            say(f"cold start {key} is made first (log: {log})")
        try:
            answers = {key: _followed(child, say) for key, child in children.items()}
        finally:
            stop(list(children.values()))
        folders |= {key: _folder(key, answer) for key, answer in answers.items()}
    return {key: content_hash(folder) for key, folder in folders.items() if folder is not None}


def _followed(child: Child, say: Callable[[str], None]) -> Answer | None:
    """Passes the process's progress on until it ends."""
    last: Answer | None = None
    while child.process.is_alive():
        connection.wait([child.answers, child.process.sentinel], 1.0)
        for message in child.said():
            if isinstance(message, Answer):
                last = message
                child.process.join()
            else:
                say(message)
    return last


def _folder(key: str, answer: Answer | None) -> Path:
    if answer is None:
        raise StartFailed(f"cold start {key}: its process died, see its log")
    if answer.state is not None:
        return Path(answer.state)
    if answer.error == ConfigError.__name__:
        raise ConfigError(answer.reason)
    if answer.error == TargetMissed.__name__:
        raise StartFailed(f"cold start {key}: {answer.reason}")
    raise StartFailed(f"cold start {key}: {answer.error}: {answer.reason}")
