"""One batch through every arm: what it samples, and what its last mini-batch makes of the same weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minirl import coldstart
from minirl.algo.algorithm import build as build_algorithm
from minirl.batches import Sampled
from minirl.config import Config, Routing
from minirl.engine.registry import build as build_engine
from minirl.examine import Restored, restored
from minirl.grading import graded
from minirl.identity import coldstart_key, identity_fields
from minirl.policy.sharding import whole
from minirl.rescore.probe import Probe, prepared, probe
from minirl.sweep.plan import PlannedArm
from minirl.types import RolloutBatch, Sampling, split
from minirl.world import World


@dataclass(frozen=True)
class Observation:
    """Of one arm. rollouts: what was sampled · probe: of the last mini-batch, after the others were updated on with the
    algorithm of the first arm · step [parameters]: how an update with it moves the weights."""

    rollouts: RolloutBatch
    probe: Probe
    step: Tensor


def observe(arms: Sequence[PlannedArm], say: Callable[[str], None]) -> dict[str, Observation]:
    """By arm. Arms that sample alike are given one recorded batch."""
    world = World.join(arms[0].config.run.device)
    try:
        recorded: dict[str, Sampled] = {}
        found = {}
        for arm in arms:
            start = restored(arm.config, coldstart.ensure(arm.config, world, say), world)
            key = sampling_key(arm.config)
            if key not in recorded:
                recorded[key] = sampled(arm.config, start, world)
            found[arm.arm.name] = observation(arm.config, arms[0].config, start, recorded[key])
            say(f"{arm.arm.name}: {len(found)} of {len(arms)}")
        return found
    finally:
        world.leave()


def sampling_key(config: Config) -> str:
    """What decides which responses are sampled from the first prompts."""
    tree = identity_fields(config)
    own = {name: tree[name] for name in ("engine", "sampling", "task", "group_size", "prompts_per_mini_batch")}
    return json.dumps([own, config.num_mini_batches, config.seed, coldstart_key(config)], sort_keys=True, default=str)


def sampled(config: Config, start: Restored, world: World) -> Sampled:
    """The first rollout batch of a run, as the run samples and grades it; pi_old on live routing."""
    engine = build_engine(config, start.model(), pad=start.task.pad, world=world)
    try:
        engine.load_parameters(start.policy.parameters(), start.policy.version)
        prompts = start.task.prompts(0, config.prompts_per_mini_batch * config.num_mini_batches, config.seed)
        how = Sampling(
            temperature=config.sampling.temperature,
            max_response_tokens=config.sampling.max_response_tokens,
            eos=start.task.eos,
            seed=config.seed,
            purpose="rollout",
        )
        rollouts = engine.generate(prompts, how, config.group_size)
        rewards, _ = graded(start.task, prompts, rollouts)
        return Sampled(rollouts, rewards, start.policy.recompute(rollouts, Routing.live))
    finally:
        engine.close()


def observation(config: Config, reference: Config, start: Restored, batch: Sampled) -> Observation:
    """Every arm meets the same staleness: the updates before the last are by the algorithm of `reference`."""
    policy, algo, first = start.policy, build_algorithm(config.algo), build_algorithm(reference.algo)
    by_routing: Mapping[bool, Sampled] = {
        replays: Sampled(batch.rollouts, batch.rewards, policy.recompute(batch.rollouts, routing))
        for replays, routing in ((False, Routing.live), (True, Routing.r3))
        if replays in {each.routing is Routing.r3 for each in (algo, first)}
    }
    before = split(prepared(first, by_routing[first.routing is Routing.r3]), config.num_mini_batches)
    for mini_batch in before[:-1]:
        policy.update(mini_batch, first)
    last = split(prepared(algo, by_routing[algo.routing is Routing.r3]), config.num_mini_batches)[-1]
    seen = probe(policy, algo, last)
    weights = flat_weights(start)
    policy.update(last, algo)
    return Observation(batch.rollouts, seen, flat_weights(start) - weights)


def flat_weights(start: Restored) -> Tensor:
    return torch.cat([whole(parameter).flatten().float().cpu() for parameter in start.policy.trained])
