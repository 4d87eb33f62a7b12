"""The names, layouts and settings by which vLLM knows a family, where they are not those of transformers' modules.

transformers stacks the experts of a layer in one tensor; vLLM's loaders for most families take such a tensor by its
name. Those below know only the names of the published checkpoints, expert by expert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

Parameter = tuple[str, Tensor]
Served = Callable[[str, Tensor], Iterable[Parameter]]


def as_named(name: str, value: Tensor) -> Iterator[Parameter]:
    """The parameter itself."""
    yield name, value


def mixtral(name: str, value: Tensor) -> Iterator[Parameter]:
    """mlp.experts.gate_up_proj [E, 2m, h] as block_sparse_moe.experts.<e>.w1 and .w3 [m, h], down_proj as .w2."""
    before, found, weight = name.partition(".mlp.experts.")
    if not found:
        yield name.replace(".mlp.gate.", ".block_sparse_moe.gate."), value
        return
    for expert, matrix in enumerate(value):
        place = f"{before}.block_sparse_moe.experts.{expert}"
        if weight == "down_proj":
            yield f"{place}.w2.weight", matrix
        else:
            yield from zip((f"{place}.w1.weight", f"{place}.w3.weight"), matrix.chunk(2), strict=True)


def deepseek(name: str, value: Tensor) -> Iterator[Parameter]:
    """mlp.experts.gate_up_proj [E, 2m, h] as mlp.experts.<e>.gate_proj and .up_proj [m, h], down_proj likewise."""
    before, found, weight = name.partition(".mlp.experts.")
    if not found:
        yield name, value
        return
    parts = ("down_proj",) if weight == "down_proj" else ("gate_proj", "up_proj")
    for expert, matrix in enumerate(value):
        names = [f"{before}.mlp.experts.{expert}.{part}.weight" for part in parts]
        yield from zip(names, matrix.chunk(len(parts)), strict=True)


STREAMED = {
    "gate_up_proj": "w13_weight",
    "gate_up_proj_bias": "w13_bias",
    "down_proj": "w2_weight",
    "down_proj_bias": "w2_bias",
}


def gpt_oss(name: str, value: Tensor) -> Iterator[Parameter]:
    """mlp.experts.gate_up_proj [E, h, 2m] as mlp.experts.<e>.w13_weight [h, 2m]; so the others. Whole tensors, which
    vLLM's loader takes too, it writes past the weight-transfer session: they would be lost without a word."""
    before, found, weight = name.partition(".mlp.experts.")
    if not found:
        yield name, value
        return
    for expert, part in enumerate(value):
        yield f"{before}.mlp.experts.{expert}.{STREAMED[weight]}", part


# keys of published config.json files that vLLM reads and transformers takes for granted, and so does not write: without
# them vLLM scores DeepSeek-V3's experts by softmax and has no correction bias
SETTINGS: dict[str, dict[str, str]] = {"deepseek_v3": {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}}

FAMILIES: dict[str, Served] = {"mixtral": mixtral, "deepseek_v3": deepseek, "gpt_oss": gpt_oss}


def served_names(model_type: str) -> Served:
    """How to hand over the parameters of a family."""
    return FAMILIES.get(model_type, as_named)


def served_settings(model_type: str) -> dict[str, str]:
    """What to add to the config of a family."""
    return SETTINGS.get(model_type, {})
