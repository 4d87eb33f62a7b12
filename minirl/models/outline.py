"""A model without its numbers: shapes on the meta device, so that what a rank will not hold is never in its memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from minirl.models.families.registry import router_family


def without_weights(make: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    """What `make` builds, its parameters on the meta device. Buffers are real. Routers have some weights, so that a
    routing tape can see how they mix."""
    with no_init_weights(), parameters_on_meta():
        model = make()
    model.tie_weights()  # which building leaves to the initialisation that is left out
    family = router_family(model.config.to_dict(), "model")
    for module in model.modules():
        if family is not None and type(module).__name__ == family.router:
            for name, parameter in list(module.named_parameters(recurse=False)):
                some = torch.linspace(-1, 1, parameter.numel(), dtype=parameter.dtype).sin()
                setattr(module, name, nn.Parameter(some.view(parameter.shape)))
    return model


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """A parameter that a module takes while this is open keeps its shape and dtype, not its numbers."""
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None and not parameter.is_meta:  # one that is there already is being tied
            module._parameters[name] = nn.Parameter(parameter.to("meta"), parameter.requires_grad)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def materialise(module: nn.Module, device: torch.device) -> None:
    """Memory on `device`, uninitialised, for whatever is on the meta device. Tied parameters stay one."""
    places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = defaultdict(list)
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            places[parameter].append((part, name))
    if not any(parameter.is_meta for parameter in places):
        return
    module._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor)
    for (first, own), *others in places.values():
        for part, name in others:
            setattr(part, name, getattr(first, own))
