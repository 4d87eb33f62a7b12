"""The self-check of a run's first rollout: are the engine's weights the trainer's?

A number format explains a small difference of log-probabilities; weights that were handed over wrongly (a stale copy,
experts packed in another order, a temperature on one side only) make one that no format explains.
"""

from __future__ import annotations

import torch

from minirl.config import Config, Numerics
from minirl.metrics.log_ratio import ResponseTokens
from minirl.types import OldPolicy, RolloutBatch
from minirl.world import World

# mean |log pi_old - log mu| in nats beyond which something else than the format is at work. Measured at the first
# step: fp32 1e-6 (3e-4 on a random model where one routing flips), bf16 0.02, fp8 and fp8_weights 0.01 on a trained
# model and 0.08 on a random one; wrongly packed experts 0.5 to 1.3.
EXPLAINED = {
    Numerics.fp32: 0.02,
    Numerics.bf16: 0.1,
    Numerics.fp8: 0.25,
    Numerics.fp8_weights: 0.25,
    Numerics.int4: 1.0,
}


class Disagreement(RuntimeError):
    """Engine and trainer are not the same policy."""


def explained(config: Config) -> float:
    """What the coarser of engine and trainer explains, nats."""
    trainer = Numerics.bf16 if config.train.compute_dtype == "bfloat16" else Numerics.fp32
    return max(EXPLAINED[config.engine.numerics], EXPLAINED[trainer])


def refuse_disagreement(rollouts: RolloutBatch, old: OldPolicy, *, bound: float, world: World) -> None:
    """mean_t |log pi_old(y_t) - log mu(y_t)| over the sampled tokens of valid responses of all ranks; Disagreement
    beyond `bound`, or if no response is valid."""
    tokens = ResponseTokens.of(rollouts).positions
    gap = (old.logprobs.double() - rollouts.rollout_logprobs.double())[tokens].abs().sum()
    total = world.sum(torch.stack([gap, gap.new_tensor(len(tokens))]).to(world.device))
    if total[1] == 0:
        raise Disagreement("the engine's first responses all have log-probabilities that are not finite")
    mean = float(total[0] / total[1])
    if not mean <= bound:
        raise Disagreement(
            f"engine and trainer disagree about the engine's own first responses: mean |log pi_old - log mu| is "
            f"{mean:.3g} nats over {int(total[1])} tokens, engine.numerics explains at most {bound}; the engine does "
            "not hold the trainer's weights, or does not report the distribution it samples from"
        )
