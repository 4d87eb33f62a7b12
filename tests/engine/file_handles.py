"""vLLM's weight transfer over CUDA IPC with a GPU's memory replaced by a file that both sides map, for machines without
a GPU. Imported by the trainer's side and, as `worker_extension_cls`, in vLLM's worker; everything between the making of
a handle and its opening is vLLM's and ours."""

import os
import tempfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.multiprocessing.reductions
from torch import Tensor
from vllm.distributed.weight_transfer import packed_tensor

from minirl.engine.cuda_handles import ARGUMENTS, OF_BYTES
from minirl.engine.vllm_worker import OWNER, WorkerExtension  # noqa: F401  (what vLLM's worker asks this module for)

Replace = Callable[[Any, str, Any], None]


class FileMemory:
    """torch for a module that allocates on a GPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, size: int, *, dtype: torch.dtype, device: str) -> Tensor:
        assert device == "cuda"
        descriptor, path = tempfile.mkstemp()
        os.close(descriptor)
        buffer = torch.from_file(path, shared=True, size=size, dtype=dtype)
        buffer.path = path
        return buffer


def exported(buffer: Any) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """The handle of a buffer, laid out as torch lays out that of a CUDA tensor."""
    storage = {"storage_device": 0, "storage_handle": buffer.path.encode(), "storage_offset_bytes": 0}
    shape = {"tensor_size": buffer.size(), "tensor_stride": buffer.stride(), "tensor_offset": 0}
    counters = {"ref_counter_handle": b"counter", "ref_counter_offset": 0, "event_handle": b"", "requires_grad": False}
    named = OF_BYTES | storage | shape | counters
    named |= {"storage_size_bytes": buffer.numel(), "event_sync_required": True}
    return opened, tuple(named[name] for name in ARGUMENTS)


def opened(*arguments: Any) -> Tensor:
    named = dict(zip(ARGUMENTS, arguments, strict=True))
    assert {name: named[name] for name in OF_BYTES} == OF_BYTES and named["ref_counter_handle"] == b"counter"
    path, size = named["storage_handle"].decode(), named["storage_size_bytes"]
    return torch.from_file(path, shared=True, size=size, dtype=named["dtype"])


def properties(device: object) -> SimpleNamespace:
    """Of the GPU that a trainer's rank, or a worker of the vLLM that it owns, would have."""
    rank = int(os.environ.get("RANK", "0"))  # vLLM's processes have their owner's
    return SimpleNamespace(uuid=f"GPU of rank {rank + torch.distributed.get_rank() if in_vllm() else rank}")


def in_vllm() -> bool:
    return int(os.environ.get(OWNER, os.getpid())) != os.getpid()


def install(replace: Replace) -> None:
    """replace: setattr, or a test's own that is undone."""
    replace(packed_tensor, "torch", FileMemory())
    replace(packed_tensor, "reduce_tensor", exported)
    replace(torch.multiprocessing.reductions, "rebuild_cuda_tensor", opened)
    replace(torch.accelerator, "current_device_index", lambda: 0)
    replace(torch.cuda, "get_device_properties", properties)
    replace(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))
    for module, name in ((torch.cuda, "synchronize"), (torch.cuda, "ipc_collect"), (torch.accelerator, "synchronize")):
        replace(module, name, lambda: None)


if in_vllm():
    install(setattr)
