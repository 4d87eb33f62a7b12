"""`python -m minirl.run` of two ranks, of which the last one is given a token without a route at one version: ROUTES is
what is wrong with it, missing or broken."""

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

if __name__ == "__main__":
    shared, seen = loop.balanced, []

    def spoiling(prompts, rollouts, num_mini_batches, world):
        prompts, rollouts = shared(prompts, rollouts, num_mini_batches, world)
        seen.append(len(prompts))
        if world.rank == 1 and len(seen) == VERSION + 1:
            SPOILT[os.environ["ROUTES"]](rollouts.routes)
        return prompts, rollouts

    loop.balanced = spoiling
    register_schema()
    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(_hydra_task)()
    sys.exit(0)
