"""What each of four ranks does in test_grid_of_ranks.py: two replicas of two shards each; rank 0 keeps the results."""

import os
from pathlib import Path

import torch
from policy_cases import algorithm, gradients, policy, tiny_model

from minirl.policy import checkpoint
from minirl.types import select
from minirl.world import World

BUDGET = 20  # tokens of a micro-batch: several backward passes per update, not as many on every rank
NUM_RANKS, NUM_REPLICAS = 4, 2


def rank_main(rank: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    place = {"RANK": str(rank), "WORLD_SIZE": str(NUM_RANKS), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    os.environ |= place
    world = World.join("cpu")
    data, algo = torch.load(folder / "inputs.pt", weights_only=False), algorithm(routing="r2")
    mine = select(data, torch.arange(4) + 4 * rank)
    keep = lambda name, value: torch.save(value, folder / f"{name}.pt") if rank == 0 else None  # noqa: E731

    def trainer(**options):
        return policy(tiny_model(), world=world, num_mini_batches=2, max_tokens_per_micro_batch=BUDGET, **options)

    ours = trainer(num_replicas=NUM_REPLICAS)
    first = ours.trained[0]
    keep("mesh", (first.device_mesh.mesh.tolist(), [str(each) for each in first.placements]))
    keep("rows", world.gather(tuple(first.to_local().shape)))
    keep("gradients", gradients(ours, mine, algo))
    keep("figures", world.merge(ours.update(mine, algo)))
    ours.update(mine, algo)
    keep("weights", {name: value.clone() for name, value in ours.parameters()})
    keep("held", world.gather(first.to_local().clone()))
    ours.save(folder / "by_grid")
    resharded = trainer()
    resharded.load(checkpoint.newest(folder / "by_grid"))
    keep("resharded", {name: value.clone() for name, value in resharded.parameters()})
    world.leave()
