"""Which problems can teach the model that a run starts from: those that it solves sometimes.

A group whose responses are all right or all wrong has no advantage and gives no gradient (arXiv 2512.01374, eq 7), so
a problem is kept iff its pass rate over `group_size` responses, sampled as in training, lies strictly between 0 and 1.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from minirl import coldstart
from minirl.clock import duration
from minirl.config import Config, ConfigError
from minirl.engine.registry import build as build_engine
from minirl.evaluate import refuse_broken_verifier, sampled_outcomes
from minirl.examine import restored
from minirl.identity import curation_key
from minirl.interfaces import Engine
from minirl.models.content import content_hash
from minirl.record import write_atomically
from minirl.tasks.mathematics import MathTask
from minirl.tracking.jsonlines import JsonLines
from minirl.types import Prompt, Sampling
from minirl.world import World

SUFFIXES = (".parquet", ".jsonl")
COLUMNS = "task.train.question=question task.train.answer=answer task.train.gold=whole"  # how a task reads the result


@dataclass(frozen=True)
class Measurement:
    """What samples the training problems, and where their rows are kept until all are there."""

    task: MathTask
    engine: Engine
    sampling: Sampling
    num_samples: int
    chunk: int
    max_error_rate: float
    world: World

    def rows(self, start: int) -> Iterator[list[dict[str, Any]]]:
        """The rows of the problems at positions start, start + 1, ..., a chunk at a time; the same on all ranks."""
        number = len(self.task.train)
        for first in range(start, number, self.chunk):
            # whole chunks, so that no rank of a shared engine is without prompts: what is beyond the last is put aside
            prompts = self.task.prompts(first, self.chunk, self.sampling.seed)
            outcomes = sampled_outcomes(
                self.task, self.engine, prompts, self.sampling, num_samples=self.num_samples, world=self.world
            )
            refuse_broken_verifier(outcomes, max_error_rate=self.max_error_rate)
            rows = [row(prompt, outcome) for prompt, outcome in zip(prompts, outcomes, strict=True)]
            yield rows[: number - first]


def row(prompt: Prompt, outcome: Tensor) -> dict[str, Any]:
    """A problem and how it went. pass_rate: correct of graded responses; null where the verifier failed on all."""
    rewards, graded, lengths, truncated = outcome.T.tolist()
    num_correct, num_graded = sum(reward >= 1.0 for reward in rewards), int(sum(graded))
    return {
        "question": prompt.problem.question,
        "answer": prompt.problem.answer,
        "num_correct": num_correct,
        "num_graded": num_graded,
        "pass_rate": num_correct / num_graded if num_graded else None,
        "mean_length": sum(lengths) / len(lengths),
        "truncated": sum(truncated) / len(truncated),
    }


def can_teach(found: dict[str, Any]) -> bool:
    return found["pass_rate"] is not None and 0.0 < found["pass_rate"] < 1.0


def curate(config: Config, target: Path, report: Callable[[str], None]) -> None:
    """Writes the problems that can teach to `target`. Every measured problem stands in NAME.measured.jsonl beside it,
    from which a repeated command goes on. Raises ConfigError before anything is sampled on bad input."""
    if target.suffix not in SUFFIXES:
        raise ConfigError(f"{target}: expected a name that ends with {' or '.join(SUFFIXES)}")
    world = World.join(config.run.device)
    try:
        start = coldstart.ensure(config, world, report)
        key = curation_key(config, content_hash(start))
        measured = target.with_suffix(".measured.jsonl")
        refuse_other_measurement(measured.with_suffix(".key"), key)
        found = measure(config, start, measured, key, world, report)
        if world.rank == 0:
            kept = [each for each in found if can_teach(each)]
            write(target, kept)
            report(f"{target}: {len(kept)} of {len(found)} problems can teach; to train on them:")
            report(f"  task.train.path={target} {COLUMNS}")
    finally:
        world.leave()


def refuse_other_measurement(path: Path, key: str) -> None:
    """Pass rates of one model, one way of sampling and one set of problems stand in one file."""
    if path.exists() and path.read_text(encoding="ascii") != key:
        raise ConfigError(
            f"{path.with_suffix('.jsonl')} holds pass rates of other problems, another model or another way of "
            "sampling: choose another FILE, or remove it"
        )


def measure(
    config: Config, start: Path, path: Path, key: str, world: World, report: Callable[[str], None]
) -> list[dict[str, Any]]:
    """All rows: those that the file has already, and the rest."""
    restarted = restored(config, start, world)
    task = restarted.task
    if not isinstance(task, MathTask):
        raise ConfigError(f"task.name={config.task.name}: its problems are drawn, not stored; curate task=math")
    measurement = Measurement(
        task=task,
        engine=build_engine(config, restarted.model(), pad=task.pad, world=world),
        sampling=Sampling(
            temperature=config.sampling.temperature,
            max_response_tokens=config.sampling.max_response_tokens,
            eos=task.eos,
            seed=config.seed,
            purpose="curate",
        ),
        num_samples=config.group_size,
        chunk=config.prompts_per_mini_batch * config.num_mini_batches,
        max_error_rate=config.task.max_verifier_error_rate,
        world=world,
    )
    done = opened(path, key, world)
    measurement.engine.load_parameters(restarted.policy.parameters(), restarted.policy.version)
    kept = JsonLines(path) if world.rank == 0 else None
    begun, first = time.monotonic(), len(done)
    try:
        for part in measurement.rows(first):
            for each in part:
                if kept is not None:
                    kept.append(len(done), each)
                done.append(each)
            report(progress(done, first, len(task.train), time.monotonic() - begun))
    finally:
        measurement.engine.close()
        if kept is not None:
            kept.close()
    return done


def opened(path: Path, key: str, world: World) -> list[dict[str, Any]]:
    """The rows of an earlier call, on every rank; a line that it was killed in is dropped."""
    if world.rank == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path.with_suffix(".key"), key)
        JsonLines(path).close()
    world.barrier()
    lines = map(json.loads, path.read_text(encoding="ascii").splitlines())
    return [{name: value for name, value in line.items() if name != "version"} for line in lines]


def progress(rows: Sequence[dict[str, Any]], first: int, number: int, seconds: float) -> str:
    share = sum(map(can_teach, rows)) / len(rows)
    left = seconds / (len(rows) - first) * (number - len(rows))
    return f"measured {len(rows)} of {number} problems: {share:.0%} can teach ({duration(left)} left)"


def write(target: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The rows as parquet or JSONL, whole or not at all."""
    if target.suffix == ".jsonl":
        write_atomically(target, "".join(json.dumps(each) + "\n" for each in rows))
        return
    from pyarrow import Table, float64, int64, schema, string
    from pyarrow.parquet import write_table

    kinds = {"question": string(), "answer": string(), "num_correct": int64()}
    kinds |= {"num_graded": int64(), "pass_rate": float64(), "mean_length": float64(), "truncated": float64()}
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    write_table(Table.from_pylist(list(rows), schema=schema(kinds)), draft)
    draft.replace(target)
