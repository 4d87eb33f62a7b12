"""Sampled tokens per CPU second of the torch engine, vLLM and transformers' generate: one model, one set of prompts.

    python bench/rollout_engines.py [OVERRIDES]

One after the other in one process and on one thread, after a rollout that pays for first calls. CPU seconds do not
depend on what else the machine does. transformers' generate reports neither log-probabilities nor routes; vLLM is left
out where it is not installed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from minirl.compose import load
from minirl.config import Config, ConfigError, Numerics
from minirl.engine.decoding import left_padded
from minirl.engine.registry import build as build_engine
from minirl.interfaces import Task
from minirl.models.load import build as build_model
from minirl.tasks.registry import build as build_task
from minirl.types import Prompt, Sampling
from minirl.world import World

ROUNDS = 3
CPU = torch.device("cpu")
# a rollout -> how many tokens it sampled
Rollout = Callable[[int], int]


def by_engine(config: Config, task: Task, prompts: list[Prompt]) -> tuple[Rollout, Callable[[], None]]:
    """A rollout of a minirl engine, and how it is closed."""
    model = partial(build_model, config.model, vocab_size=task.vocab_size, checkpoint=None)
    engine = build_engine(config, model(), pad=task.pad, world=World(0, 1, CPU))
    engine.load_parameters(model().state_dict().items(), 0)

    def rollout(seed: int) -> int:
        sampling = Sampling(1.0, config.sampling.max_response_tokens, task.eos, seed, "bench")
        return int(engine.generate(prompts, sampling, config.group_size).response_mask.sum())

    return rollout, engine.close


def by_generate(config: Config, task: Task, prompts: list[Prompt]) -> tuple[Rollout, Callable[[], None]]:
    """The same by transformers' generate."""
    model = build_model(config.model, vocab_size=task.vocab_size, checkpoint=None)
    ids, mask = left_padded([prompt.tokens for prompt in prompts], task.pad, CPU)

    @torch.no_grad()
    def rollout(seed: int) -> int:
        torch.manual_seed(seed)
        found = model.generate(
            ids,
            attention_mask=mask.long(),
            do_sample=True,
            top_k=0,
            max_new_tokens=config.sampling.max_response_tokens,
            num_return_sequences=config.group_size,
            eos_token_id=task.eos,
            pad_token_id=task.pad,
        )[:, ids.shape[1] :]
        ended = (found == task.eos).int()
        return int((ended.cumsum(1) - ended == 0).sum())  # up to the first EOS, which counts

    return rollout, lambda: None


def line(name: str, rollout: Rollout) -> str:
    rollout(0)
    cpu, wall = time.process_time(), time.perf_counter()
    tokens = sum(rollout(seed) for seed in range(1, ROUNDS + 1))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return f"{name:<24}{tokens:>8,}{tokens / cpu:>14,.0f}{tokens / wall:>14,.0f}"


def main(overrides: list[str]) -> None:
    torch.set_num_threads(1)
    config = load(overrides)
    task = build_task(config.task, config.coldstart)
    prompts = task.prompts(0, config.prompts_per_mini_batch * config.num_mini_batches, config.seed)
    print(f"{len(prompts)} prompts x {config.group_size}, at most {config.sampling.max_response_tokens} tokens")
    print(f"{'':<24}{'tokens':>8}{'per CPU s':>14}{'per second':>14}")
    vllm = load([*overrides, "engine=vllm"]).engine
    engines = [replace(config.engine, numerics=Numerics.fp32), replace(vllm, numerics=Numerics.fp32), vllm]
    makers = {f"{each.name} {each.numerics}": partial(by_engine, replace(config, engine=each)) for each in engines}
    for name, make in (makers | {"transformers generate": partial(by_generate, config)}).items():
        try:
            rollout, close = make(task, prompts)
        except ConfigError as missing:
            print(f"{name:<24}{missing}")
            continue
        print(line(name, rollout), flush=True)
        close()


if __name__ == "__main__":
    main(sys.argv[1:])
