"""`python -m minirl.run` of a rank that is killed in mid-update: rank KILLED_RANK, at version KILLED_VERSION."""

import os
import signal
import sys

import hydra

from minirl.compose import conf_dir, register_schema
from minirl.policy.fsdp import FsdpPolicy
from minirl.run import _hydra_task

if __name__ == "__main__":
    step = FsdpPolicy._step

    def dying(self, loss):
        if self.version == int(os.environ["KILLED_VERSION"]) and self.world.rank == int(os.environ["KILLED_RANK"]):
            os.kill(os.getpid(), signal.SIGKILL)  # the gradient is there, the weights have not moved
        return step(self, loss)

    FsdpPolicy._step = dying
    register_schema()
    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(_hydra_task)()
    sys.exit(0)
