"""A CUDA IPC handle without pickling: how a process that shares a GPU with another is told where a buffer lies.

torch describes a shared tensor by the arguments of `rebuild_cuda_tensor`, among them two classes and a dtype, which no
channel but pickle carries. Weights travel in one buffer of bytes, whose classes and dtype are known: what is left are
numbers and bytes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor
from torch.storage import TypedStorage

HANDLES = "minirl_cuda_handles"  # the transfer that reads such handles, as vLLM is told it
ARGUMENTS = tuple(inspect.signature(rebuild_cuda_tensor).parameters)
OF_BYTES = {"tensor_cls": Tensor, "storage_cls": TypedStorage, "dtype": torch.uint8}


def described(arguments: Sequence[Any]) -> dict[str, Any]:
    """The handle of a buffer of bytes, in numbers, bytes and lists of numbers. Another tensor's is a ValueError."""
    named = dict(zip(ARGUMENTS, arguments, strict=True))
    found = {name: named.pop(name) for name in OF_BYTES}
    if found != OF_BYTES:
        raise ValueError(f"expected the CUDA handle of a buffer of bytes, found one of {found}")
    return {name: list(value) if isinstance(value, tuple) else value for name, value in named.items()}


def arguments_of(handle: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of `rebuild_cuda_tensor`."""
    named = {name: tuple(value) if isinstance(value, list) else value for name, value in handle.items()} | OF_BYTES
    return tuple(named[name] for name in ARGUMENTS)
