"""`minirl rescore`, from a recorded batch to figures."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from minirl.algo.algorithm import PolicyGradient, build
from minirl.batches import find, load
from minirl.compose import load as compose
from minirl.compose import read
from minirl.config import ConfigError
from minirl.rescore.arms import algorithms, choices_of, same
from minirl.rescore.exact import Exact, exact_gradient
from minirl.rescore.plot import write_plot
from minirl.rescore.probe import Probe, probe
from minirl.rescore.situation import Situation, run_of, situation
from minirl.rescore.table import Rescored, notes, rescored, table
from minirl.rescore.table import as_json as values


def show_rescored(place: Path, arms: Sequence[str], *, floor: float | None, plot: Path, as_json: bool) -> None:
    """The table and the picture; for programs the values alone on stdout. What is being done goes to stderr."""
    found = rescore(place, arms, floor=floor, say=lambda line: print(line, file=sys.stderr, flush=True))
    write_plot(found, plot)
    if as_json:
        print(json.dumps(values(found) | {"plot": str(plot)}))
        return
    console = Console()
    console.print(table(found))
    for line in [*notes(found), f"plot: {plot}"]:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def rescore(place: Path, arms: Sequence[str], *, floor: float | None, say: Callable[[str], None]) -> Rescored:
    """All arms on the recorded batch at `place`. floor: of the enumeration of the exact gradient, None for none."""
    folder = find(place)
    run, recorded = run_of(folder), load(folder)
    config = read(run / "config.yaml")
    chosen = choices_of(config, arms)
    found = algorithms(chosen)
    with situation(recorded, run, found) as moment:
        refuse_what_cannot_be_held(moment, len(found))
        probes: dict[str, Probe] = {}
        for name, algo in found.items():
            probes[name] = probe(moment.start.policy, algo, moment.mini_batch(algo))
            say(f"{name}: {len(probes)} of {len(found)}")
        exact = None if floor is None else _exact(moment, floor, say)
    age = "as it sampled" if not moment.num_updates else f"{moment.num_updates} updates after it sampled"
    title = f"{folder}: {len(probes[next(iter(probes))].gradients)} prompts, the policy {age}"
    return rescored(probes, exact, same(chosen), title=title, seed=config.seed)


def _exact(moment: Situation, floor: float, say: Callable[[str], None]) -> Exact:
    """Over the prompts of the mini-batch, in their order."""
    config, task = moment.config, moment.start.task
    every = config.prompts_per_mini_batch
    own = next(iter(moment.sampled.values()))
    first = int(own.rollouts.positions[0]) + (config.num_mini_batches - 1) * every
    say(f"exact: enumerating the responses to {every} prompts")
    return exact_gradient(
        moment.start.policy,
        task,
        task.prompts(first, every, config.seed),
        reinforce(),
        longest=config.sampling.max_response_tokens,
        floor=floor,
    )


def reinforce() -> PolicyGradient:
    """Neither weight nor mask: what is left is the sum over tokens."""
    return build(compose(["algo=reinforce"]).algo)


def refuse_what_cannot_be_held(moment: Situation, num_arms: int) -> None:
    """Every arm's gradient of every prompt is held at once."""
    size = sum(parameter.numel() for parameter in moment.start.policy.trained)
    needed = 4 * num_arms * moment.config.prompts_per_mini_batch * size
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there / 2:
        raise ConfigError(
            f"{num_arms} arms x {moment.config.prompts_per_mini_batch} prompts x {size} parameters are "
            f"{needed / 1e9:.0f} GB of gradients, this machine has {there / 1e9:.0f} GB: name fewer arms"
        )
