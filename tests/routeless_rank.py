"""`python -m minirl.run` of two ranks, of which the last one fails at one version: FAULT says by what. A token whose
route is missing, or broken; a rollout that raises."""

import os
import sys

import hydra

from minirl import loop
from minirl.compose import conf_dir, register_schema
from minirl.run import _hydra_task

VERSION = 4  # of 8: there is a checkpoint of it
SPOILT = {
    "missing": lambda routes: routes.present[:1].fill_(False),
    "broken": lambda routes: routes.experts[:1].zero_(),
}


def raising(prompts, sampling, group_size):
    raise IndexError("the engine lost a response")


if __name__ == "__main__":
    shared, rollout, seen, fault = loop.balanced, loop.Loop.rollout, [], os.environ["FAULT"]

    def spoiling(prompts, rollouts, num_mini_batches, world):
        prompts, rollouts = shared(prompts, rollouts, num_mini_batches, world)
        if world.rank == 1 and len(seen) == VERSION + 1 and fault in SPOILT:
            SPOILT[fault](rollouts.routes)
        return prompts, rollouts

    def failing(self, start):
        seen.append(start)
        if self.world.rank == 1 and len(seen) == VERSION + 1 and fault == "engine":
            self.engine.generate = raising
        return rollout(self, start)

    loop.balanced, loop.Loop.rollout = spoiling, failing
    register_schema()
    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(_hydra_task)()
    sys.exit(0)
