"""The torch engine on other MoE families: dense first layers, shared experts, biases, latent attention, sinks."""

import pytest
import torch
from teacher_forcing import EOS, some_prompts
from transformers import AutoConfig, PreTrainedModel

from minirl.config import Numerics
from minirl.engine.torch_engine import TorchEngine
from minirl.models.load import initialised
from minirl.models.tape import RoutingTape
from minirl.types import RolloutBatch, Sampling

SIZES = {
    "vocab_size": 20,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "num_experts_per_tok": 2,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
SIGMOID = {
    "n_routed_experts": 6,
    "moe_intermediate_size": 12,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
LINEAR = {
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "head_dim": 8,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "num_experts": 6,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 8,
}
OWN = {
    "qwen3_next": LINEAR,
    "qwen3_5_moe_text": LINEAR,
    "qwen2_moe": {"num_experts": 6, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 8},
    "olmoe": {"num_experts": 6},
    "mixtral": {"num_local_experts": 6},
    "deepseek_v3": SIGMOID | LATENT,
    "glm4_moe": SIGMOID | {"head_dim": 8},
    "gpt_oss": {"num_local_experts": 6, "head_dim": 8, "sliding_window": 4},
}


def family_model(family: str) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = initialised(AutoConfig.for_model(family, **SIZES | OWN[family]))
        for name, tensor in [*built.named_parameters(), *built.named_buffers()]:
            if "bias" in name and "dt_bias" not in name:  # a bias that is left at 0 would not be missed
                tensor.data.normal_(std=0.3)
    return built.eval()


def sampled(source: PreTrainedModel, numerics: Numerics) -> RolloutBatch:
    own = AutoConfig.for_model(source.config.model_type, **SIZES | OWN[source.config.model_type])
    engine = TorchEngine(
        initialised(own), numerics=numerics, max_sequences=8, pad=0, device=torch.device("cpu")
    )  # other weights than the source's, so that each must be loaded
    engine.load_parameters(source.state_dict().items(), 0)
    return engine.generate(some_prompts(5, 2, 7), Sampling(1.0, 8, EOS, 0, "rollout"), 4)


@torch.no_grad()
def forced(source: PreTrainedModel, batch: RolloutBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs [T] and experts [T, L, k], one sequence at a time."""
    tape, logprobs, experts = RoutingTape(source), [], []
    for sequence in batch.tokens.split(batch.lengths.tolist()):
        with tape.record(len(sequence)) as routed:
            logits = source(sequence[None], use_cache=False).logits[0, :-1]
        scored = logits.log_softmax(-1).gather(-1, sequence[1:, None]).squeeze(-1)
        logprobs.append(torch.cat([torch.zeros(1), scored]))
        experts.append(routed.experts)
    return torch.cat(logprobs).where(batch.response_mask, 0.0), torch.cat(experts)


@pytest.mark.parametrize("family", sorted(OWN))
def test_fp32_is_the_trainers_model(family: str) -> None:
    source = family_model(family)
    batch = sampled(source, Numerics.fp32)
    logprobs, experts = forced(source, batch)
    assert (batch.rollout_logprobs - logprobs).abs().max() <= 3e-5
    present = batch.routes.present
    assert batch.routes.experts[present].sort(-1).values.equal(experts[present].sort(-1).values)


@pytest.mark.parametrize("family", sorted(OWN))
def test_fp8_is_near_it_and_different(family: str) -> None:
    source = family_model(family)
    batch = sampled(source, Numerics.fp8)
    gap = (batch.rollout_logprobs - forced(source, batch)[0]).abs()[batch.response_mask]
    assert gap.max() > 1e-3 and gap.median() < 0.5
