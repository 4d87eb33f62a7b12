"""Stand-ins for vLLM that hold what is asked of it to its own signatures."""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

Effects = dict[str, Callable[..., object]]


class Recorder:
    """An LLM that does nothing but what `effects` say, with the signatures of the real one: a call that vLLM would not
    take fails here."""

    def __init__(self, calls: list[str], effects: Effects) -> None:
        from vllm import LLM

        self.real, self.calls, self.effects, self.version = LLM, calls, effects, ""

    def __getattr__(self, name: str) -> Any:
        signature = inspect.signature(getattr(self.real, name))

        def noted(*args: object, **kwargs: object) -> object:
            bound = signature.bind(self, *args, **kwargs).arguments
            words = [str(bound[key]) for key in ("weight_version", "tags", "level") if key in bound]
            self.calls.append(" ".join([name, *words]))
            self.version = bound.get("weight_version", self.version)
            given = [value for key, value in bound.items() if key == "request"]
            done = self.effects.get(name, lambda *given: None)(*given)
            return {"reset_prefix_cache": True, "get_weight_version": self.version}.get(name, done)

        return noted


class Kept(nn.Module):
    """A model that keeps what it is given. failures: how many of the next calls fail."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.failures = list[tuple[str, Tensor]](), 0

    def load_weights(self, named: Any) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise RuntimeError("no room")
        self.given += [(name, value.clone()) for name, value in named]


def crossed(payload: Any) -> Any:
    """What is left of it after the channel between vLLM's processes."""
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    return MsgpackDecoder().decode(MsgpackEncoder().encode(payload))


def receiving_end(backend: str, model: Kept) -> Effects:
    """The worker's side of a transfer: vLLM's own, on a model that keeps what comes."""
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    facts = SimpleNamespace(parallel_config=None, model_config=None)
    end = WeightTransferEngineFactory.create_engine(
        WeightTransferConfig(backend=backend), facts, torch.device("cpu"), model
    )
    return {
        "init_weight_transfer_engine": lambda request: end.init_transfer_engine(
            end.parse_init_info(crossed(request["init_info"]))
        ),
        "start_weight_update": end.start_weight_update,
        "update_weights": lambda request: end.update_weights(crossed(request["update_info"])),
        "finish_weight_update": end.finish_weight_update,
    }
