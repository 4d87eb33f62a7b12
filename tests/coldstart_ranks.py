"""What each of two ranks does in test_coldstart.py: the cold start of a configuration, shared."""

import os

import torch

from minirl import coldstart
from minirl.compose import load
from minirl.world import World


def rank_main(rank: int, port: int, words: list[str]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    world = World.join("cpu")
    folders = world.gather(coldstart.ensure(load(words), world, print))
    assert folders[0] == folders[1]
    world.leave()
