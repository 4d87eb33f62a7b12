"""What each of two ranks does in test_real_formats.py: a run per folder, as torchrun would start it."""

import os
from pathlib import Path

import torch

from minirl.compose import compose
from minirl.run import run


def rank_main(rank: int, ports: list[int], words: list[list[str]], folder: Path) -> None:
    torch.set_num_threads(1)
    for port, each in zip(ports, words, strict=True):
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        state = run(compose(each), each)
        if rank == 0:
            with (folder / "states.txt").open("a") as file:
                file.write(f"{state}\n")
