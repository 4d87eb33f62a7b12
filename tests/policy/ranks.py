"""What each of two ranks does in test_two_ranks.py; results are files that rank 0 writes."""

import os
from pathlib import Path

import torch
from policy_cases import algorithm, gradients, policy, tiny_model

from minirl.config import Routing
from minirl.policy import checkpoint
from minirl.types import Diverged, select
from minirl.world import World

BUDGET = 20
AGGREGATIONS = ["seq_mean_token_sum", "seq_mean_token_mean", "token_mean", "group_token_mean"]


def rank_main(rank: int, size: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    world = World.join("cpu")
    inputs = torch.load(folder / "inputs.pt", weights_only=False)
    mine = torch.arange(8) + 8 * rank  # rank 0 has the short responses
    keep = lambda name, value: torch.save(value, folder / f"{name}.pt") if rank == 0 else None  # noqa: E731

    def trainer(dtype=torch.float32, **options):
        return policy(tiny_model(dtype), world=world, num_mini_batches=2, max_tokens_per_micro_batch=BUDGET, **options)

    for aggregation in AGGREGATIONS:
        keep(
            aggregation,
            gradients(trainer(torch.float64), select(inputs["live"], mine), algorithm(aggregation=aggregation)),
        )
    data, algo = select(inputs["r2"], mine), algorithm(routing="r2")
    keep("fp32", gradients(trainer(), data, algo))
    keep("checkpointing", gradients(trainer(activation_checkpointing=True), data, algo))

    ours = trainer()
    keep("counts", world.gather(len(checkpointed_cut(ours, data))))
    keep("recomputed", world.gather(ours.recompute(data.rollouts, Routing.r3).logprobs))
    keep("figures", world.merge(ours.update(data, algo)))
    keep("weights", {name: value.clone() for name, value in ours.parameters()})
    ours.save(folder / "by_two")
    ours.export(folder / "exported", None)

    loaded = trainer()
    loaded.load(checkpoint.newest(folder / "by_one"))
    loaded.update(data, algo)
    keep("continued", {name: value.clone() for name, value in loaded.parameters()})

    if rank == 1:
        data.advantages[0] = float("nan")
    try:
        loaded.update(data, algo)
    except Diverged as ending:
        keep("diverged", world.gather(str(ending)))
    world.leave()


def checkpointed_cut(trainer, data):
    """The micro-batches of this rank before ranks are brought in step."""
    return [part for part in trainer._cut(data.rollouts.lengths) if len(part)]
