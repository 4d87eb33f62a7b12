"""pi: the trainer, sharded by FSDP2 over one rank or many by the same code."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import PreTrainedModel

from minirl.config import Routing, TrainConfig
from minirl.interfaces import Algorithm
from minirl.metrics.update import update_metrics
from minirl.models.export import write_folder
from minirl.models.families.registry import is_mixture
from minirl.models.tape import Pass, RoutingTape
from minirl.policy import checkpoint
from minirl.policy.likelihood import Likelihood, log_likelihood, log_likelihood_and_entropy
from minirl.policy.offload import Parked
from minirl.policy.optimizer import OPTIM, Step, adamw, bound_of, clip, learning_rate
from minirl.policy.packing import Padded, micro_batches, moved, padded
from minirl.policy.replay import (
    REPLAY,
    Routed,
    blank_scores,
    followed,
    keep_routing,
    own_routes,
    replayed_routes,
    require_routes,
    scored_slots,
    watch_again,
)
from minirl.policy.saving import SAVERS, Saver
from minirl.policy.sharding import reduce_between_replicas, shard, whole
from minirl.types import (
    Diverged,
    OldPolicy,
    RolloutBatch,
    Routes,
    Statistics,
    TrainBatch,
    expert_dtype,
    merge,
    select,
    token_index,
)
from minirl.world import World

PRECISION = {
    "float32": MixedPrecisionPolicy(),
    "bfloat16": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
}


class FsdpPolicy:
    """The trained model, its optimizer and its version (the number of updates it has had).

    Weights and moments stay in the model's dtype (fp32); `train.compute_dtype` is that of forward and backward. Every
    method is collective. Tensors may live anywhere; micro-batches are moved to the device one at a time.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        train: TrainConfig,
        temperature: float,
        num_mini_batches: int,
        world: World,
    ) -> None:
        self.train, self.world = train, world
        self.num_mini_batches, self.version = num_mini_batches, 0
        self.model = model
        self.tape = RoutingTape(model) if is_mixture(model.config.to_dict()) else None  # before fully_shard
        if self.tape is not None and train.freeze_router:
            for router in self.tape.routers:
                router.requires_grad_(False)
        if train.activation_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train(train.activation_checkpointing)  # transformers recomputes in training mode only; no dropout is left
        self.likelihood = Likelihood(model, temperature=temperature, chunk_tokens=train.likelihood_chunk_tokens)
        shard(self.likelihood, world.mesh(train.num_replicas), PRECISION[train.compute_dtype], world.device)
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = adamw(self.trained, train.optim)
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        self.weights = Parked(self.model.parameters() if train.offload else ())
        self.moments = Parked(moments if train.offload else ())
        self.saver: Saver = SAVERS[train.async_checkpoints](world)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, full tensor) of parameters and persistent buffers, gathered one at a time. The tensor
        may share memory with the model: copy it. Afterwards the trainer rests, if it is told to, and so does its
        memory."""
        self.weights.bring_back()
        try:
            for name, value in self.model.state_dict().items():
                yield name, whole(value)
        finally:
            self.weights.put_away()

    @torch.no_grad()
    def recompute(self, rollouts: RolloutBatch, routing: Routing) -> OldPolicy:
        """log pi_old and entropy of all response tokens, and the routers' own choice. r3 replays the engine's routes.

        Cut mini-batch by mini-batch, just as the updates will be: on unchanged weights both passes are one and the
        same arithmetic, so the ratio is exactly 1 and R2 is exactly live.
        """
        if routing is Routing.r3:
            self.world.together(lambda: require_routes(rollouts.routes, rollouts, self.tape))
        self.weights.bring_back()
        old = self._blank(rollouts)
        for responses in self._mini_batches(rollouts):
            for part in self._cut(rollouts.lengths[responses]):
                micro_batch = moved(select(rollouts, responses[part]), self.world.device)
                layout = padded(micro_batch)
                tokens = token_index(rollouts.cu_seqlens, responses[part])
                with self._pass(layout, micro_batch.routes if routing is Routing.r3 else None) as current:
                    if current is not None and old.scores is not None:
                        current.watch(scored_slots(layout, old.scores.rows[tokens]), None)
                    figures = self.likelihood(layout, log_likelihood_and_entropy)
                scored = tokens[rollouts.response_mask[tokens]]
                old.logprobs[scored], old.entropy[scored] = figures.to(old.logprobs).unbind(-1)
                if self.tape is not None and current is not None:
                    keep_routing(old, tokens, layout, current, self.tape)
        return old

    def update(self, mini_batch: TrainBatch, algo: Algorithm) -> Statistics:
        """One optimizer update: version -> version + 1. Raises Diverged, with the weights as they were."""
        self.moments.bring_back()
        try:
            loss, statistics = self.accumulate(mini_batch, algo)
            return statistics | OPTIM.measure(self._step(loss))
        finally:
            self.optimizer.zero_grad()  # however it ended, nothing of this gradient reaches the next update
            if self.version % self.num_mini_batches == 0:
                self.moments.put_away()  # the next update is a rollout away

    def accumulate(self, mini_batch: TrainBatch, algo: Algorithm) -> tuple[float, Statistics]:
        """Adds the gradient of the mini-batch to that of `trained`; its loss over all ranks, and its figures.

        The denominators are those of the whole mini-batch over all ranks, known before the first backward. FSDP
        averages gradients over ranks, hence the world size.
        """
        if algo.routing is not Routing.live:
            require_routes(replayed_routes(mini_batch, algo.routing), mini_batch.rollouts, self.tape)
        counts = self.world.sum(algo.counts(mini_batch).to(self.world.device))
        mini_batch = algo.coefficients(mini_batch, counts.to(mini_batch.rollouts.tokens.device))
        self.weights.bring_back()
        statistics: Statistics = {}
        loss = torch.zeros((), dtype=torch.float64, device=self.world.device)
        parts = self._cut(mini_batch.rollouts.lengths)
        for number, responses in enumerate(parts):
            reduce_between_replicas(self.likelihood, now=number == len(parts) - 1)
            part, figures = self._backward(moved(select(mini_batch, responses), self.world.device), algo)
            loss, statistics = loss + part, merge(statistics, figures)
        return float(self.world.sum(loss)), statistics

    def save(self, checkpoints: Path) -> None:
        """Writes checkpoints/<version> and removes the oldest beyond train.num_checkpoints."""
        self.saver.save(self._state(), checkpoints, self.version, num_checkpoints=self.train.num_checkpoints)
        self.moments.put_away()

    def close(self) -> None:
        """Waits for a checkpoint that is being written."""
        self.saver.finish()

    def load(self, folder: Path) -> None:
        """Takes over weights, moments and version of one checkpoint, whatever number of ranks wrote it."""
        state = self._state()
        checkpoint.load(state, folder)
        self.version = int(state["version"])
        self.moments.put_away()

    def export(self, folder: Path, like: Path | None) -> None:
        """The weights in Hugging Face format, in the precision and with the tokenizer of the folder `like`."""
        if self.world.rank == 0:
            write_folder(self.model, self.parameters(), folder, like)
        else:
            deque(self.parameters(), maxlen=0)  # takes part in gathering, and keeps nothing
        self.world.barrier()

    def _backward(self, micro_batch: TrainBatch, algo: Algorithm) -> tuple[Tensor, Statistics]:
        """Adds this micro-batch's gradient; returns its loss and figures."""
        layout = padded(micro_batch.rollouts)
        with self._pass(layout, replayed_routes(micro_batch, algo.routing)) as current:
            if current is not None and micro_batch.old.scores is not None:
                watch_again(current, layout, micro_batch.old.scores)
            scored = self.likelihood(layout, log_likelihood)[:, 0]
            if not len(micro_batch):
                scored.sum().backward()  # nothing here, but other ranks wait for this backward
                return scored.new_zeros(()), {}
            mask = micro_batch.rollouts.response_mask
            logprobs = torch.zeros_like(mask, dtype=scored.dtype).masked_scatter(mask, scored)
            terms = algo.loss(logprobs, micro_batch, self.num_mini_batches == 1)
            (terms.loss * self.world.size).backward()
        first = self.version % self.num_mini_batches == 0
        figures = update_metrics(micro_batch, logprobs.detach(), terms, first=first)
        if self.tape is not None and current is not None:
            figures |= REPLAY.measure(
                Routed.of(micro_batch, algo.routing, own_routes(self.tape, layout, current), current)
            )
        return terms.loss.detach(), figures

    def _step(self, loss: float) -> Step:
        """Clip, then AdamW at the learning rate of this version."""
        optim, bound = self.train.optim, bound_of(self.train.optim)
        norm = clip(self.trained, bound)
        for what, figure in (("the loss", loss), ("the gradient norm", norm)):
            if not math.isfinite(figure):
                raise Diverged(self.version, what)
        rate = learning_rate(self.version, lr=optim.lr, warmup_updates=optim.warmup_updates)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.version += 1
        return Step(norm, bound, rate)

    def _pass(self, layout: Padded, routes: Routes | None) -> AbstractContextManager[Pass | None]:
        return nullcontext() if self.tape is None else followed(self.tape, layout, routes)

    def _cut(self, lengths: Tensor) -> list[Tensor]:
        """Micro-batches, as many as the rank with most of them has: the last ones may be empty."""
        parts = micro_batches(lengths, max_tokens=self.train.max_tokens_per_micro_batch)
        nothing = torch.zeros(0, dtype=torch.int64, device=lengths.device)
        return parts + [nothing] * (self.world.max(len(parts)) - len(parts))

    def _mini_batches(self, rollouts: RolloutBatch) -> tuple[Tensor, ...]:
        """The responses of each mini-batch that the updates will see, on the rollouts' device."""
        return torch.arange(len(rollouts), device=rollouts.tokens.device).chunk(self.num_mini_batches)

    def _blank(self, rollouts: RolloutBatch) -> OldPolicy:
        """An OldPolicy of zeros, to be filled in."""
        zeros = torch.zeros_like(rollouts.rollout_logprobs)
        if self.tape is None:
            return OldPolicy(zeros, zeros.clone(), None)
        shape = (len(zeros), len(self.tape.layers), self.tape.top_k)
        experts = torch.zeros(shape, dtype=expert_dtype(self.tape.num_experts), device=zeros.device)
        absent = torch.zeros_like(rollouts.response_mask)
        return OldPolicy(
            zeros,
            zeros.clone(),
            Routes(experts, absent, self.tape.layers, self.tape.num_experts),
            blank_scores(rollouts, self._mini_batches(rollouts), self.tape),
        )

    def _state(self) -> dict[str, Any]:
        """What a checkpoint holds. Its tensors are the policy's own: loading fills them in place."""
        self.weights.bring_back()
        self.moments.bring_back()
        names: dict[Tensor, str] = {parameter: name for name, parameter in self.model.named_parameters()}
        moments = {names[parameter]: dict(state) for parameter, state in self.optimizer.state.items()}
        return {"model": self.model.state_dict(), "adam": moments, "version": torch.tensor(self.version)}
