"""One temperature for all three policies: with equal weights every ratio is 1, whatever the temperature is."""

import pytest
import torch

from minirl.algo.algorithm import build
from minirl.compose import load
from minirl.config import Numerics, Routing
from minirl.engine.torch_engine import TorchEngine
from minirl.metrics.rollout import rollout_metrics
from minirl.models.load import build as build_model
from minirl.policy.fsdp import FsdpPolicy
from minirl.types import Prompt, Rewards, Sampling, TrainBatch, figures
from minirl.world import World

VOCAB = 13
SIZES = ["model.hidden_size=32", "model.num_layers=2", "model.num_experts=4", "model.num_experts_per_token=2"]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_equal_weights_have_ratio_one_and_no_mismatch(temperature: float) -> None:
    config = load([*SIZES, f"sampling.temperature={temperature}", "model.initializer_range=0.4"])
    world = World.join("cpu")
    model, own = (build_model(config.model, vocab_size=VOCAB, checkpoint=None) for _ in range(2))
    policy = FsdpPolicy(model, train=config.train, temperature=temperature, num_mini_batches=1, world=world)
    engine = TorchEngine(own, numerics=Numerics.fp32, max_sequences=64, pad=0, device=world.device)
    engine.load_parameters(policy.parameters(), 0)
    prompts = [Prompt(position, (2, 3 + position), None) for position in range(4)]
    rollouts = engine.generate(prompts, Sampling(temperature, 10, 1, 0, "rollout"), 4)

    algo = build(config.algo)
    rewards = Rewards(torch.arange(len(rollouts)) % 2 * 1.0, torch.ones(len(rollouts), dtype=torch.bool))
    mask = rollouts.response_mask
    old, advantages = policy.recompute(rollouts, Routing.live), algo.advantage(rewards, 4)
    batch = TrainBatch(rollouts, rewards, advantages, old, accepted=mask, counted=mask, coefficients=None)
    before = figures(rollout_metrics(batch, extreme_ratio=2.0))
    update = figures(policy.update(algo.reject(batch), algo))

    assert before["mismatch/logprob_abs_diff_max"] < 1e-4 and abs(before["mismatch/kl_k1"]) < 1e-5
    assert before["mismatch/ppl_ratio"] == pytest.approx(1, abs=1e-5)
    assert update["is_weight/mean"] == pytest.approx(1, abs=1e-4) and update["is_weight/max"] < 1 + 1e-3
    # the distribution is sharp enough that one side's temperature would be seen
    assert 0.3 < before["entropy/mean"] < float(torch.tensor(float(VOCAB)).log()) - 0.05
