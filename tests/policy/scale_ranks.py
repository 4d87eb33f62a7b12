"""What each of two ranks does in test_scale.py; results are files that rank 0 writes."""

import os
from pathlib import Path

import torch
from policy_cases import algorithm, gradients, model_config, policy, tiny_model, train_config

from minirl.balance import balanced
from minirl.models import stored
from minirl.policy import checkpoint
from minirl.policy.build import sharded
from minirl.types import Prompt, select
from minirl.world import World

BUDGET = 20  # tokens of a micro-batch: several backward passes per update


def rank_main(rank: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    world = World.join("cpu")
    data, algo = torch.load(folder / "inputs.pt", weights_only=False), algorithm()
    mine = select(data, torch.arange(8) + 8 * rank)
    keep = lambda name, value: torch.save(value, folder / f"{name}.pt") if rank == 0 else None  # noqa: E731

    def trainer(**options):
        return policy(tiny_model(), world=world, num_mini_batches=2, max_tokens_per_micro_batch=BUDGET, **options)

    replicas = trainer(num_replicas=2)
    keep("replicas", gradients(replicas, mine, algo))
    keep("placements", [str(each) for each in replicas.trained[0].placements])
    reduced = counted(replicas)
    replicas.update(mine, algo)
    keep("reductions", sum(reduced))
    keep("after_replicas", {name: value.clone() for name, value in replicas.parameters()})
    replicas.save(folder / "by_replicas")
    resharded = trainer()
    resharded.load(checkpoint.newest(folder / "by_replicas"))
    keep("resharded", {name: value.clone() for name, value in resharded.parameters()})

    several = trainer(offload=True, async_checkpoints=True, activation_checkpointing=True)
    several.update(mine, algo)
    several.save(folder / "beside")
    keep("exists_at_once", (folder / "beside" / "1").exists())
    several.update(mine, algo)
    several.close()
    keep("after_two", {name: value.clone() for name, value in several.parameters()})
    again = trainer()
    again.load(folder / "beside" / "1")
    again.update(mine, algo)
    keep("one_and_one", {name: value.clone() for name, value in again.parameters()})

    skewed = torch.load(folder / "skewed.pt", weights_only=False)
    groups = torch.arange(16).view(2, 2, 4)[:, rank]  # of each mini-batch this rank's four responses
    given = select(skewed, groups.flatten())
    prompts = [Prompt(int(position), (), None) for position in given.positions[::2]]
    kept, arrived = balanced(prompts, given, 2, world)
    assert [each.position for each in kept] == arrived.positions[::2].tolist()
    keep("balanced", world.gather((given, arrived)))

    keep("loading", world.gather(loading(folder / "model", world)))
    world.leave()


def counted(trainer):
    """Per backward pass: whether gradients are added over replicas."""
    seen = []
    part = next(module for module in trainer.model.modules() if hasattr(module, "_get_fsdp_state"))

    def look(*_):
        seen.append(part._get_fsdp_state()._fsdp_param_group.all_reduce_grads)

    trainer.likelihood.register_forward_pre_hook(look)
    return seen


def loading(folder: Path, world: World):
    """Bytes read by this rank, bytes of its weights, and the policy's log-likelihood inputs: all parameters, whole."""
    read, exactly = [], stored.read_exactly

    def counting(file, content):
        read.append(len(content))
        exactly(file, content)

    stored.read_exactly = counting
    try:
        loaded = sharded(
            model_config(path=str(folder)),
            vocab_size=13,
            checkpoint=None,
            train=train_config(),
            temperature=1.0,
            num_mini_batches=1,
            world=world,
        )
    finally:
        stored.read_exactly = exactly
    held = sum(parameter.to_local().nbytes for parameter in loaded.model.parameters())
    return sum(read), held, {name: value.clone() for name, value in loaded.parameters()}
