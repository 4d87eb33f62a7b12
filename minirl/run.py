"""Config in, objects wired, loop called, ending recorded. The only room that sees all others together.

`python -m minirl.run [-m] [OVERRIDES]` is Hydra's own door to the same conf/; `minirl run` is the usual one.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from minirl import coldstart
from minirl.agreement import self_check
from minirl.algo.algorithm import build as build_algorithm
from minirl.batches import Recorder, keep_nothing
from minirl.clock import Clock
from minirl.compose import conf_dir, explanation, read, register_schema
from minirl.config import Config, ConfigError, TargetMissed
from minirl.engine.registry import build as build_engine
from minirl.engine.registry import require as require_engine
from minirl.evaluate import Evaluator, RecordedEvaluator
from minirl.grading import grade
from minirl.identity import identity
from minirl.interfaces import Algorithm, Engine, Policy, Task
from minirl.lookout import Lookout, lookout
from minirl.loop import Left, Loop, Plan
from minirl.models.content import content_hash
from minirl.policy.build import build as build_policy
from minirl.policy.checkpoint import newest
from minirl.record import RunRecord, State, code_version, environment, run_folder, write_atomically
from minirl.signals import Leave
from minirl.tasks.registry import build as build_task
from minirl.tracking.console import ConsoleTracker
from minirl.tracking.registry import build as build_tracker
from minirl.types import Collapsed, Degenerate, Diverged, Sampling, TrainBatch
from minirl.validate import refuse_ranks, validate
from minirl.watch import WatchedEngine
from minirl.world import World, fault

# what ends the loop before its last update, or after it
ENDINGS: dict[type[Exception], State] = {
    Collapsed: State.collapsed,
    Diverged: State.diverged,
    Degenerate: State.degenerate,
    Left: State.interrupted,
}


def run(cfg: DictConfig, overrides: list[str]) -> State:
    """Runs, or continues, the run that `cfg` describes; returns how it ended. A run with a result is not run again.

    Raises ConfigError on bad input, before anything is written, TargetMissed where the cold start falls short, and
    whatever stopped the run otherwise.
    """
    config: Config = OmegaConf.to_object(cfg)  # type: ignore[assignment]
    notes = validate(config)
    refuse_ranks(config)
    require_engine(config.engine)
    torch.set_num_threads(config.run.num_threads)
    world = World.join(config.run.device, config.engine.max_rollout_seconds)
    try:
        say = print if world.rank == 0 else _silence
        start = coldstart.ensure(config, world, say)
        content = world.gather(content_hash(start) if world.rank == 0 else "")[0]  # one rank reads it all
        name = identity(config, content)
        record = RunRecord(run_folder(config, name))
        for note in notes:
            say(f"note: {note}")
        leave = Leave(world)
        with record.locked() if world.rank == 0 else nullcontext(), leave.listening():
            refuse_other_evaluation(record.folder, config)
            done = world.gather(_result(record, config))[0]  # one rank looks, so that all do the same
            if done is not None:
                say(f"{record.folder}: {done} already, nothing to do")
                return done
            training = partial(_train, config, start, name, record.folder, world, leave)
            if world.rank != 0:
                return _ending(training)[0]
            facts = {"identity": name, "coldstart": {"folder": str(start), "content": content}, "notes": notes}
            write_atomically(record.folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True))
            return _recorded(record, _description(config, overrides) | facts, training)
    finally:
        world.leave()


def refuse_other_evaluation(folder: Path, config: Config) -> None:
    """A run has one evaluation from its first row to its last: eval.* is not part of what a run is, so a changed one
    would find the old run's folder and continue it with other problems or other draws."""
    if not (folder / "config.yaml").exists():
        return
    before = read(folder / "config.yaml").eval
    for spec in fields(before):
        kept, asked = getattr(before, spec.name), getattr(config.eval, spec.name)
        if kept != asked:
            raise ConfigError(
                f"eval.{spec.name}={asked}: {folder} is evaluated with eval.{spec.name}={kept}; keep that, use "
                "`minirl eval` on its checkpoint, or another run.outputs"
            )


def _result(record: RunRecord, config: Config) -> State | None:
    """The result that the run has already, if it is one of as many updates as are asked for."""
    before = record.read()
    finished = before and State(before["state"]).is_result and before["num_updates"] >= config.num_updates
    return State(before["state"]) if finished else None


def _description(config: Config, overrides: list[str]) -> dict[str, Any]:
    """What the record says of a run before it has begun."""
    return {
        "seed": config.seed,
        "arm": config.run.name,
        "sweep": config.run.group,
        "overrides": overrides,
        "num_updates": config.num_updates,
    }


def _ending(training: Callable[[], State]) -> tuple[State, str]:
    """How the loop ended, and why: collapse, divergence and degeneration are results, on every rank."""
    try:
        return training(), ""
    except tuple(ENDINGS) as ending:
        return ENDINGS[type(ending)], str(ending)


def _recorded(record: RunRecord, description: dict[str, Any], training: Callable[[], State]) -> State:
    """The run with its record kept: what it is before it starts, how it ended after."""
    before, here = record.read(), environment()
    horizons = [*before.get("horizons", []), description["num_updates"]]
    codes = [*before.get("codes", []), code_version(here)]
    if len(set(codes)) > 1:
        print(f"note: this run was begun by code {codes[0]} and goes on with {codes[-1]}")
    history = {"horizons": horizons, "codes": list(dict.fromkeys(codes))}
    record.update(**description, **history, state=State.running, reason=None, ended=None, **here)
    state, reason = State.failed, ""
    spent, cpu = record.cpu_seconds(), time.process_time()
    try:
        state, reason = _ending(training)
    except KeyboardInterrupt:
        state, reason = State.interrupted, "stopped from outside: repeat the command to go on"
        raise
    except Exception as error:
        reason = fault(error)
        traceback.print_exc()
        raise
    finally:
        spent += time.process_time() - cpu
        record.update(
            state=state, reason=reason or None, ended=time.time(), cpu_seconds=spent, version=_last_version(record)
        )
    return state


@dataclass(frozen=True)
class Wired:
    """The objects that the loop calls."""

    task: Task
    algo: Algorithm
    policy: Policy
    engine: Engine
    evaluate: RecordedEvaluator
    tracker: Lookout


def _wired(config: Config, start: Path, name: str, folder: Path, world: World) -> Wired:
    """Everything built, with the weights of the newest checkpoint if there is one."""
    task = build_task(config.task, config.coldstart)
    trainee = build_policy(config, vocab_size=task.vocab_size, checkpoint=start, world=world)
    latest = newest(folder / "checkpoints")
    if latest is not None:
        trainee.policy.load(latest)
    shown = ConsoleTracker(build_tracker(config, folder, name, world.rank), config.num_updates, world.rank)
    tracker = lookout(config, folder, shown, world)
    tracker.truncate(trainee.policy.version)
    engine: Engine = build_engine(config, trainee.model(), pad=task.pad, world=world)
    if config.engine.max_rollout_seconds is not None and world.rank == 0:
        engine = WatchedEngine(engine, RunRecord(folder), config.engine.max_rollout_seconds)
    evaluator = RecordedEvaluator(
        Evaluator.of(config, task, model=trainee.model, rollouts=lambda: engine, world=world), folder
    )
    return Wired(task, build_algorithm(config.algo), trainee.policy, engine, evaluator, tracker)


def _train(config: Config, start: Path, name: str, folder: Path, world: World, leave: Callable[[], bool]) -> State:
    """Wires the objects and runs the loop from the newest checkpoint to its end."""
    wired = _wired(config, start, name, folder, world)
    ending = State.failed
    try:
        Loop(
            plan=_plan(config, wired.task.eos, folder / "checkpoints"),
            algo=wired.algo,
            policy=wired.policy,
            engine=wired.engine,
            task=wired.task,
            grade=partial(grade, wired.task, max_error_rate=config.task.max_verifier_error_rate, world=world),
            evaluate=wired.evaluate,
            verify=self_check(config, RunRecord(folder), wired.policy.version, world),
            keep=_recorder(config, folder, name, world),
            judge=wired.tracker.judge,
            leave=leave,
            tracker=wired.tracker,
            world=world,
            clock=Clock(),
        ).train()
        wired.tracker.conclude()
        ending = State.finished
    except tuple(ENDINGS) as result:
        ending = ENDINGS[type(result)]
        raise
    except KeyboardInterrupt:
        ending = State.interrupted
        raise
    finally:
        wired.policy.close()  # before the engine, which may take the process group along
        wired.engine.close()
        wired.tracker.close(ending)
    return ending


def _recorder(config: Config, folder: Path, name: str, world: World) -> Callable[[TrainBatch], None]:
    """What is done with every rollout batch beside training on it."""
    if not config.run.record_rollouts:
        return keep_nothing
    return Recorder(folder / "rollouts", world, {"identity": name, "seed": config.seed})


def _plan(config: Config, eos: int, checkpoints: Path) -> Plan:
    return Plan(
        num_updates=config.num_updates,
        num_mini_batches=config.num_mini_batches,
        prompts_per_mini_batch=config.prompts_per_mini_batch,
        group_size=config.group_size,
        eval_every=config.eval.every,
        checkpoint_every=config.train.checkpoint_every,
        live_every=config.metrics.live_every,
        samples_every=config.metrics.samples_every,
        histograms_every=config.metrics.histograms_every,
        extreme_ratio=config.metrics.extreme_ratio,
        min_route_overlap=config.metrics.min_route_overlap,
        sampling=Sampling(
            temperature=config.sampling.temperature,
            max_response_tokens=config.sampling.max_response_tokens,
            eos=eos,
            seed=config.seed,
            purpose="rollout",
        ),
        checkpoints=checkpoints,
    )


def _last_version(record: RunRecord) -> int:
    path = record.folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return json.loads(lines[-1])["version"] if lines else 0


def _silence(text: str) -> None:
    """What the other ranks say."""


def _hydra_task(cfg: DictConfig) -> str:
    from hydra.core.hydra_config import HydraConfig

    try:
        state = run(cfg, list(HydraConfig.get().overrides.task))
    except (ConfigError, TargetMissed) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    if state is State.interrupted:
        sys.exit(130)
    return state


def _main() -> None:
    """Hydra's own door, but for its answer to bad input: one line and exit code 2."""
    import hydra

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra passes errors on instead of ending the process with 1
    register_schema()
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(_hydra_task)()
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        print(f"error: {error if isinstance(error, ConfigError) else explanation(error, ())}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    _main()
    sys.exit(0)
