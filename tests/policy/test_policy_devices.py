"""A rollout batch may lie where the engine left it: on the accelerator, or on the host."""

import pytest
import torch
from policy_cases import algorithm, policy, rollouts, train_batch

from minirl.config import Routing
from minirl.policy.packing import moved
from minirl.types import split
from minirl.world import World


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["cuda", "cpu"])
def test_recompute_and_update_take_batches_from_either_device(place):
    trainer, algo = policy(world=World.join("cuda"), num_mini_batches=2), algorithm(routing="r3")
    batch = moved(rollouts(groups=8), torch.device(place))
    data = train_batch(batch, trainer.recompute(batch, Routing.r3), algo)
    assert data.old.logprobs.device.type == place
    for part in split(data, 2):
        trainer.update(part, algo)
    assert trainer.version == 2
