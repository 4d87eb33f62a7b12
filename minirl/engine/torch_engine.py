"""The embedded engine: a batched KV-cache sampler on the trainer's own model class.

With engine.numerics=fp32 it is the same function as the trainer, so pi_old / mu is 1 to rounding; with the others it
differs as a quantised inference engine does (arXiv 2512.01374, section 4.1: FP8 inference, higher precision training).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from minirl.config import Numerics
from minirl.engine.cache import DecodingCache
from minirl.engine.decoding import decode
from minirl.engine.journal import Journal
from minirl.engine.matmuls import install, round_inputs, rounded_weight
from minirl.engine.numerics import ROUNDINGS
from minirl.engine.parameters import NOTHING_LOADED, Signature, refuse_nothing
from minirl.models.families.registry import is_mixture
from minirl.models.outline import materialise
from minirl.models.tape import RoutingTape
from minirl.types import Prompt, RolloutBatch, Sampling


class TorchEngine:
    """mu on `model`, an instance of its own: its weights are overwritten, rounded and never trained.

    version: of the parameters it holds, -1 before the first and after a failed load. max_sequences: responses that
    are decoded side by side. pad: any token id, to the left of the shorter prompts of a wave.
    """

    def __init__(
        self, model: PreTrainedModel, *, numerics: Numerics, max_sequences: int, pad: int, device: torch.device
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        materialise(self.model, device)  # an outline will do: weights come with the first load
        nn.Module.to(self.model, device)
        self.tape = RoutingTape(self.model) if is_mixture(model.config.to_dict()) else None
        settings = model.config.to_dict()
        self.layer_types = settings.get("layer_types") or ["full_attention"] * model.config.num_hidden_layers
        self.signature = Signature.of(self.model)
        self.roundings = ROUNDINGS[numerics]
        self.rounded = install(self.model, numerics)
        if self.tape is not None:
            round_inputs(self.tape.routers, self.roundings.routed)
        self.max_sequences, self.pad, self.device = max_sequences, pad, device
        self.version = NOTHING_LOADED

    @torch.no_grad()
    def load_parameters(self, parameters: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Overwrites every parameter and persistent buffer, rounding anew what the numerics round."""
        self.version = NOTHING_LOADED
        held = self.model.state_dict()
        for name, values in self.signature.checked(parameters):
            full = values.to(self.device, held[name].dtype)
            if name in self.rounded:
                full = rounded_weight(full, self.roundings.weights, self.rounded[name])
            held[name].copy_(full)
        self.version = version

    @torch.no_grad()
    def generate(self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int) -> RolloutBatch:
        """Responses in waves of at most max_sequences; prompts of similar length share a wave, so that little is
        padded. The result is in the order of the prompts whatever the waves were."""
        refuse_nothing(self.version, prompts)
        journal = Journal(len(prompts) * group_size, self.device)
        lengths = torch.tensor([len(prompt.tokens) for prompt in prompts]).repeat_interleave(group_size)
        for responses in lengths.argsort(stable=True).split(self.max_sequences):
            decode(
                self._forward,
                DecodingCache(self.layer_types, self.roundings.keys_values),
                prompts,
                responses.to(self.device),
                group_size=group_size,
                sampling=sampling,
                pad=self.pad,
                journal=journal,
            )
        return journal.pack(prompts, group_size=group_size, version=self.version, tape=self.tape)

    def _forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: DecodingCache
    ) -> tuple[Tensor, Tensor | None]:
        inputs = {"input_ids": ids, "position_ids": positions, "attention_mask": mask, "past_key_values": cache}
        if self.tape is None:
            return self.model(**inputs, use_cache=True, logits_to_keep=1).logits[:, -1], None
        with self.tape.record(ids.numel()) as routed:
            logits = self.model(**inputs, use_cache=True, logits_to_keep=1).logits[:, -1]
        return logits, routed.experts

    def rest(self) -> None:
        """Nothing is given back: the weights stay where they are, ready for the next call."""

    def close(self) -> None:
        """Nothing to release: the engine lives in this process."""
