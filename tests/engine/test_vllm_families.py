"""Family by family: replaying vLLM's routes gives the log-probabilities of what it sampled; weights arrive whole."""

import pytest
import torch
from teacher_forcing import EOS, some_prompts, vllm_config
from transformers import AutoConfig, PreTrainedModel

from minirl.config import Numerics
from minirl.engine.vllm_engine import VllmEngine
from minirl.models.load import initialised
from minirl.models.tape import RoutingTape
from minirl.types import RolloutBatch, Sampling
from minirl.world import World

SIZES = {
    "vocab_size": 32,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "initializer_range": 0.15,
    "max_position_embeddings": 128,
    "head_dim": 32,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}  # head_dim is hidden / heads: 32 is the least on a CPU
OWN = {
    "qwen3_moe": {"num_experts": 8, "norm_topk_prob": True},
    "qwen2_moe": HEADS | {"num_experts": 8, "shared_expert_intermediate_size": 32},
    "olmoe": HEADS | {"num_experts": 8},
    "mixtral": {"num_local_experts": 8},
    "gpt_oss": {"num_local_experts": 8, "sliding_window": 8},
    "glm4_moe": {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": True},
    "deepseek_v3": {
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    },
}
SAMPLING = Sampling(temperature=1.0, max_response_tokens=12, eos=EOS, seed=0, purpose="rollout")


def model_of(family: str, **changes: object) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = initialised(AutoConfig.for_model(family, **SIZES | OWN[family] | changes)).eval()
        for name, values in [*built.named_parameters(), *built.named_buffers()]:
            if name.endswith("bias"):
                values.data.normal_(std=0.2)
    return built


def sampled(model: PreTrainedModel) -> RolloutBatch:
    engine = VllmEngine(model, engine=vllm_config(), world=World(0, 1, torch.device("cpu")))
    engine.load_parameters(model.state_dict().items(), 0)
    return engine.generate(some_prompts(5, 9, 1, 40, vocab_size=32), SAMPLING, 4)


@torch.no_grad()
def gap_under_replay(model: PreTrainedModel, batch: RolloutBatch) -> tuple[float, float]:
    """max |log pi - log mu| over sampled tokens with the engine's experts replayed, and the share of (token, layer) in
    which the model itself would have chosen others."""
    tape, gaps, changed = RoutingTape(model), [], []
    pieces = (batch.tokens, batch.routes.experts, batch.routes.present, batch.rollout_logprobs, batch.response_mask)
    for tokens, experts, present, logprobs, mask in zip(
        *(p.split(batch.lengths.tolist()) for p in pieces), strict=True
    ):
        assert present[:-1].all()
        with tape.replay(experts[:-1], present[:-1]) as current:
            logits = model(tokens[None, :-1], use_cache=False).logits[0]
        scored = logits.log_softmax(-1).gather(-1, tokens[1:, None]).squeeze(-1)
        gaps.append((scored - logprobs[1:])[mask[1:]].abs())
        own, theirs = (each.long().sort(-1).values for each in (current.experts, experts[:-1]))
        changed.append((own != theirs).any(-1).flatten())
    return float(torch.cat(gaps).max()), float(torch.cat(changed).float().mean())


@pytest.mark.vllm
@pytest.mark.parametrize("family", sorted(OWN))
def test_replaying_vllms_routes_gives_its_logprobs(family: str) -> None:
    model = model_of(family)
    gap, changed = gap_under_replay(model, sampled(model))
    assert gap <= 1e-5
    assert changed < 0.01  # rounding


@pytest.mark.vllm
@pytest.mark.parametrize("family", sorted(OWN))
def test_matrices_travel_in_the_dtype_in_which_vllm_holds_them(family: str) -> None:
    """Sent in bf16 or in fp32, a bf16 engine is the same function: what it holds in fp32 is sent so."""
    model, found = model_of(family), []
    engine = VllmEngine(model, engine=vllm_config(numerics=Numerics.bf16), world=World(0, 1, torch.device("cpu")))
    for matrices in (engine.matrices, frozenset[str]()):
        engine.matrices = matrices
        engine.load_parameters(model.state_dict().items(), 0)
        found.append(engine.generate(some_prompts(5, 9, 1, 40, vocab_size=32), SAMPLING, 4))
    sent_small, sent_whole = found
    assert sent_small.tokens.equal(sent_whole.tokens)
    assert sent_small.rollout_logprobs.equal(sent_whole.rollout_logprobs)
