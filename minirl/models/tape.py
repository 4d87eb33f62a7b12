"""The routing tape: reads every router's choice, and makes it choose what a tape says.

It sits between a router and its experts as a forward hook. Only the *selection* is replayed: mixing weights are
gathered from the current scores of all experts with the family's own score function, so routers keep their gradient
(arXiv 2512.01374, section 3.4). A pass is looked up by layer, never by a cursor: activation checkpointing runs a
layer again during backward and must meet the same choice. Attach before `fully_shard`; without an open pass the
model routes as it always does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from minirl.models.families.registry import router_family
from minirl.models.routes import well_formed
from minirl.types import expert_dtype


class Pass:
    """One forward (and its backward). experts [T, L, k]: the routers' own choice, given the inputs they met;
    forced [T, L, k] and present [T] bool: what is chosen instead, and for which tokens (None: for none). Both tables
    have the smallest dtype; ids become int64 one layer at a time."""

    def __init__(self, tape: RoutingTape, num_tokens: int, forced: Tensor | None, present: Tensor | None) -> None:
        shape = (num_tokens, len(tape.layers), tape.top_k)
        self.experts = torch.zeros(shape, dtype=expert_dtype(tape.num_experts), device=tape.device)
        self.forced, self.present = forced, present
        self.seen: set[int] = set()
        self.watched: Watched | None = None

    def watch(self, slots: Tensor, experts: Tensor | None) -> Watched:
        """Keeps the routers' scores at the tokens `slots` [n] from here to the end of the pass: of `experts`
        [n, L, k], or (None) of those that the pass uses."""
        shape = (len(slots), *self.experts.shape[1:])
        given = self.experts.new_zeros(shape) if experts is None else experts.to(self.experts)
        scores = torch.zeros(shape, dtype=torch.float32, device=self.experts.device)
        self.watched = Watched(slots.to(self.experts.device), given, scores, chosen=experts is None)
        return self.watched

    def choose(self, column: int, own: Tensor) -> Tensor:
        """The experts [T, k] of this layer. A layer that runs again (recomputation) repeats its first choice."""
        if column not in self.seen:
            if own.shape[0] != self.experts.shape[0]:
                raise ValueError(f"the routing tape was opened for {self.experts.shape[0]} tokens, met {own.shape[0]}")
            self.experts[:, column] = own.to(self.experts.dtype)
            self.seen.add(column)
        live = self.experts[:, column].long()
        if self.forced is None or self.present is None:
            return live
        return torch.where(self.present[:, None], self.forced[:, column].long(), live)


@dataclass(frozen=True, slots=True)
class Watched:
    """Some tokens of a pass. slots [n] · experts [n, L, k] · log_scores [n, L, k] fp32: log of the family's score of
    these experts among all · chosen: the experts are those that the pass uses, filled in as it goes."""

    slots: Tensor
    experts: Tensor
    log_scores: Tensor
    chosen: bool

    def see(self, column: int, log_scores: Tensor, used: Tensor) -> None:
        """The layer's log_scores [n, E] and used experts [n, k]. Recomputation writes the same numbers again."""
        if self.chosen:
            self.experts[:, column] = used.to(self.experts.dtype)
        self.log_scores[:, column] = log_scores.gather(-1, self.experts[:, column].long())


class RoutingTape:
    """layers: absolute decoder layer ids of the routers, ascending · routers: their modules · num_experts · top_k:
    experts per token."""

    def __init__(self, model: PreTrainedModel) -> None:
        family = router_family(model.config.to_dict(), "model")
        if family is None:
            raise ValueError("a dense model has no routers to record")
        self.gate, self.log_score = family.gate, family.log_score
        decoder: Any = model.base_model
        routers = {
            number: module
            for number, layer in enumerate(decoder.layers)
            for module in layer.modules()
            if type(module).__name__ == family.router
        }
        everywhere = sum(type(module).__name__ == family.router for module in model.modules())
        if not routers or len(routers) != everywhere:
            raise ValueError(
                f"found {everywhere} {family.router} modules, {len(routers)} of them one per decoder layer: "
                "this model's structure is unknown to the routing tape"
            )
        self.layers: tuple[int, ...] = tuple(routers)
        self.routers: tuple[Any, ...] = tuple(routers.values())
        self.num_experts, self.top_k = int(self.routers[0].num_experts), int(self.routers[0].top_k)
        self.open: Pass | None = None
        for column, router in enumerate(self.routers):
            self.check(router, model.config.hidden_size)
            router.register_forward_hook(self.hook(column))

    @property
    def device(self) -> torch.device:
        """Where the routers are now."""
        return next(self.routers[0].parameters()).device

    def check(self, router: nn.Module, hidden_size: int) -> None:
        """Our gate must reproduce the router's own weights to the last bit: a changed library fails here."""
        weight = next(router.parameters())
        probe = torch.arange(8 * hidden_size, dtype=torch.float32, device=weight.device).sin().view(8, hidden_size)
        with torch.no_grad():
            logits, weights, experts = router(probe.to(weight.dtype))
            ours = self.gate(router, logits, experts)
        if ours.dtype != weights.dtype or not torch.equal(ours, weights):
            raise ValueError(f"{type(router).__name__} computes its weights differently from {self.gate.__name__}")

    def hook(self, column: int) -> Any:
        """The forward hook of the router of this column."""

        def replace(router: nn.Module, inputs: Any, outputs: tuple[Tensor, Tensor, Tensor]) -> Any:
            if self.open is None:
                return None
            logits, _, own = outputs
            chosen, watched = self.open.choose(column, own.detach()), self.open.watched
            if watched is not None:
                watched.see(column, self.log_score(logits.detach()[watched.slots]), chosen[watched.slots])
            if self.open.forced is None and not torch.is_grad_enabled():
                return None  # the same numbers; with gradient, recomputation must meet the same operations
            return logits, self.gate(router, logits, chosen), chosen

        return replace

    @contextmanager
    def record(self, num_tokens: int) -> Iterator[Pass]:
        """One forward of `num_tokens` tokens (flattened [rows, time]) and its backward, routed live."""
        with self.opened(Pass(self, num_tokens, None, None)) as current:
            yield current

    @contextmanager
    def replay(self, experts: Tensor, present: Tensor) -> Iterator[Pass]:
        """The same with experts [T, L, k] (any integer dtype) chosen where present [T] is set, the live choice
        elsewhere; in force until the context ends, which must be after backward. Columns are `self.layers`."""
        expected = (present.shape[0], len(self.layers), self.top_k)
        if tuple(experts.shape) != expected:
            raise ValueError(
                f"routes of shape {list(experts.shape)}: expected {list(expected)} (tokens, MoE layers, k)"
            )
        experts, present = experts.to(self.device), present.to(self.device)
        broken = present & ~well_formed(experts, self.num_experts)
        if broken.any():
            token = int(broken.nonzero()[0])
            raise ValueError(
                f"the route of token {token} is none: {experts[token].tolist()} of {self.num_experts} experts"
            )
        forced = experts.to(expert_dtype(self.num_experts)).masked_fill(~present[:, None, None], 0)
        with self.opened(Pass(self, present.shape[0], forced, present)) as current:
            yield current

    @contextmanager
    def opened(self, current: Pass) -> Iterator[Pass]:
        """Holds the pass open; whatever happens inside, the tape is clean afterwards."""
        if self.open is not None:
            raise RuntimeError("a routing pass is already open: one forward (and its backward) at a time")
        self.open = current
        try:
            yield current
        finally:
            self.open = None
        missed = [layer for column, layer in enumerate(self.layers) if column not in current.seen]
        if missed:
            raise RuntimeError(f"the routers of layers {missed} never asked the routing tape: the hooks are not live")
