"""What happens inside the process of one run: its own session, its own log, and an answer to the launcher."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import unwrap
from multiprocessing import connection, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

from hydra import version
from hydra.core.utils import JobReturn, JobRuntime, JobStatus, run_job, setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig

from minirl.compose import VERSION_BASE
from minirl.record import JOB

LOG = "log.txt"
ORPHAN_SECONDS = 60.0  # a run whose launcher is gone may finish its step and save it
PRELOAD = ("torch", "transformers", "minirl.run")  # what a fork server imports once for all runs


@dataclass(frozen=True)
class Answer:
    """What the process says of itself before it ends. state: as the task returned it, None where it raised;
    error, reason: the exception's class and text."""

    state: str | None
    error: str = ""
    reason: str = ""


def task(cfg: DictConfig) -> str:
    """One run, as Hydra calls it."""
    from hydra.core.hydra_config import HydraConfig

    from minirl.run import run

    return run(cfg, list(HydraConfig.get().overrides.task))


def reference(function: Callable[..., Any]) -> str:
    """module:name under which another process finds the function, also when its module was started as a script."""
    inner = unwrap(function)
    module = sys.modules[inner.__module__]
    name = module.__spec__.name if inner.__module__ == "__main__" and module.__spec__ else inner.__module__
    return f"{name}:{inner.__qualname__}"


def preload_for(name: str) -> list[str]:
    """The modules that a process needs for the task of a reference."""
    module = name.partition(":")[0]
    return [module, *PRELOAD] if module.startswith("minirl.") else [module]


def resolved(name: str) -> Callable[..., Any]:
    """The function of a reference."""
    module, _, attribute = name.partition(":")
    return unwrap(getattr(import_module(module), attribute))


def work(
    name: str,
    config: DictConfig,
    context: HydraContext,
    folder: Path,
    environment: Mapping[str, str],
    answer: connection.Connection,
) -> None:
    """Runs Hydra's job `config` with the task of that name; stdout and stderr go to the folder's log."""
    os.environ |= environment
    settle(folder / LOG)
    answer.send(performed(resolved(name), config, context))


def performed(task: Callable[..., Any], config: DictConfig, context: HydraContext) -> Answer:
    """What Hydra's job `config` answers, however it ends."""
    setup_globals()
    version.setbase(VERSION_BASE)
    JobRuntime.instance().set("name", config.hydra.job.name)
    try:
        result = run_job(
            hydra_context=context,
            task_function=task,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
    except KeyboardInterrupt:
        return Answer("interrupted")
    return _answer(result)


def settle(path: Path) -> None:
    """Makes the process independent of the terminal, but not of the launcher: when that dies, this one stops too.
    What it prints goes to the log at `path`."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with it ignored
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
    parent = parent_process()
    assert parent is not None  # settle is called in a child process only
    follow(lambda: connection.wait([parent.sentinel]))


def follow(launcher_is_gone: Callable[[], object]) -> None:
    """Stops this process when its launcher is gone (the call returns then): politely first, then as Ctrl-C does."""

    def wait() -> None:
        launcher_is_gone()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHAN_SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    faulthandler.enable()
    Thread(target=wait, daemon=True).start()
    print(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}  process {os.getpid()}  job {os.environ.get(JOB)}", flush=True)


def _answer(result: JobReturn) -> Answer:
    if result.status == JobStatus.COMPLETED:
        return Answer(str(result.return_value))
    try:
        _ = result.return_value
    except Exception as error:
        return refusal(error)
    return Answer(None, "HydraException", "the task ended without a result")


def refusal(error: Exception) -> Answer:
    """The answer of a process that ends by an exception, which goes to the log."""
    traceback.print_exception(error)
    return Answer(None, type(error).__name__, str(error))
