"""A rank of a trainer beside vLLM in processes of its own, under torchrun: what each load and rollout gave, and which
processes it has started, as JSON in a folder. Arguments: the folder, engine.placement, engine.tensor_parallel. Ends by
being killed."""

import json
import os
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
from teacher_forcing import EOS, some_prompts, teacher_forced, tiny_model, vllm_config

from minirl.config import Placement
from minirl.engine import vllm_engine, vllm_placement, vllm_server
from minirl.types import Sampling
from minirl.world import World


def on_a_cpu(placement: Placement) -> None:
    """The transport's place is taken by a store or a file, and GPUs are neither counted nor assigned."""
    vllm_engine.require(vllm_config())
    from minirl.engine import vllm_transfer

    settings = vllm_placement.Apart.settings
    vllm_engine.refuse_few_devices = lambda engine, count: None
    vllm_placement.Apart.settings = lambda self: settings(self) | {"device_ids": None}
    if placement is Placement.separate:
        import store_transport as transport

        # packing is done by CUDA streams
        vllm_transfer.NCCLTrainerInitInfo = partial(vllm_transfer.NCCLTrainerInitInfo, packed=False)
    else:
        import file_handles as transport

        transport.install(setattr)
        vllm_transfer.BUFFER_BYTES = 0  # a chunk for every few parameters
    vllm_server.WORKER = f"{transport.__name__}.WorkerExtension"


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    lists = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    children = [int(child) for each in lists for child in each]
    return children + [below for child in children for below in descendants(child)]


def main(folder: Path, placement: Placement, tensor_parallel: int) -> None:
    tempfile.tempdir = str(folder)
    world = World.join("cpu")
    on_a_cpu(placement)
    vllm_engine.routers_of = lambda model: None  # on a CPU routes are tapped in the trainer's own process
    models = [tiny_model(), tiny_model(init_seed=1)]
    config = vllm_config(placement=placement, tensor_parallel=tensor_parallel, sleep=placement is Placement.shared)
    engine = vllm_engine.VllmEngine(models[0], engine=config, world=world)
    sampling = Sampling(temperature=1.0, max_response_tokens=12, eos=EOS, seed=0, purpose="rollout")
    prompts = some_prompts(5, 9, 1, 40)[2 * world.rank :][:2]
    seen = []
    for version, model in enumerate(models):
        engine.load_parameters(model.state_dict().items(), version)
        batch = engine.generate(prompts, sampling, 4)
        gap = (teacher_forced(model, batch).logprobs(batch.tokens, 1.0) - batch.rollout_logprobs)[batch.response_mask]
        seen.append({"gap": float(gap.abs().max()), "positions": batch.positions.tolist(), "version": batch.version})
        engine.rest()
    started = descendants(os.getpid())
    (folder / f"{world.rank}.json").write_text(json.dumps({"seen": seen, "started": started}))
    world.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":  # vLLM starts its processes anew from this file
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), Placement(sys.argv[2]), int(sys.argv[3]))
