"""Every family in the registry: its routers are found, reproduced to the bit, replayed, and keep their gradient."""

import pytest
import torch
from model_cases import other_experts, tokens
from transformers import AutoConfig

from minirl.models.families.registry import FAMILIES
from minirl.models.load import folder_config, initialised, loaded
from minirl.models.tape import RoutingTape

VOCAB = 11
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "num_experts_per_tok": 2,
    "initializer_range": 0.3,
    "max_position_embeddings": 64,
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
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
OWN = {
    "qwen3_moe": {"num_experts": 6, "moe_intermediate_size": 12, "head_dim": 8, "norm_topk_prob": True},
    "qwen2_moe": {"num_experts": 6, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 8},
    "olmoe": {"num_experts": 6},
    "mixtral": {"num_local_experts": 6},
    "deepseek_v3": SIGMOID
    | {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8},
    "glm4_moe": SIGMOID | {"head_dim": 8},
    "gpt_oss": {"num_local_experts": 6, "head_dim": 8, "sliding_window": 4},
}
DENSE_FIRST = {"deepseek_v3", "glm4_moe"}


def model(family, dtype=torch.float32):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = initialised(AutoConfig.for_model(family, **(SIZES | OWN[family]))).to(dtype).eval()
        for name, parameter in [*built.named_parameters(), *built.named_buffers()]:
            if "bias" in name:  # initialised to 0: make them matter
                parameter.data.normal_(std=0.3)
    return built


def test_every_family_is_tested():
    assert OWN.keys() == FAMILIES.keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", sorted(OWN))
def test_record_and_replay(family, dtype):
    built, ids = model(family, dtype), tokens()
    tape = RoutingTape(built)  # compares the gate with the routers' own weights
    assert tape.layers == ((1, 2) if family in DENSE_FIRST else (0, 1, 2))
    assert (tape.num_experts, tape.top_k) == (6, 2)
    everything = torch.ones(15, dtype=torch.bool)
    with torch.no_grad():
        free = built(ids).logits
        with tape.record(15) as own:
            assert torch.equal(built(ids).logits, free)
        with tape.replay(own.experts, everything):
            assert torch.equal(built(ids).logits, free)
    foreign = other_experts(own.experts, 6)
    with tape.replay(foreign, everything):
        replayed = built(ids).logits
        replayed.float().square().sum().backward()
    assert (replayed - free).abs().amax(-1).min() > 1e-3
    for router in tape.routers:
        assert router.weight.grad.isfinite().all() and router.weight.grad.abs().max() > 0


@pytest.mark.parametrize("family", sorted(OWN))
def test_activation_checkpointing_gives_the_same_gradient(family):
    gradients = []
    for recompute in (False, True):
        built, ids = model(family), tokens()
        tape = RoutingTape(built)
        if recompute:
            built.gradient_checkpointing_enable({"use_reentrant": False})
            built.train()
        with tape.record(15):
            built(ids, use_cache=False).logits.square().sum().backward()
        gradients.append({name: p.grad for name, p in built.named_parameters()})
    for name, grad in gradients[0].items():
        assert torch.equal(grad, gradients[1][name]), name


@pytest.mark.parametrize("family", sorted(OWN))
def test_a_saved_model_loads_as_itself(family, tmp_path):
    built, ids = model(family), tokens()
    built.save_pretrained(tmp_path)
    again = loaded(folder_config(tmp_path, "model.path"), tmp_path).eval()
    state = built.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in again.state_dict().items())
    with torch.no_grad():
        assert torch.equal(again(ids).logits, built(ids).logits)


def test_routing_biases_and_groups_decide_the_choice_but_not_the_weights():
    """DeepSeek-V3: with the bias of one expert raised it is always chosen, at the weight of its unbiased score."""
    built = model("deepseek_v3")
    router = built.model.layers[1].mlp.gate
    router.e_score_correction_bias.copy_(torch.tensor([0.0, 0.0, 0.0, 0.0, 50.0, 0.0]))
    hidden = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits, weights, experts = router(hidden)
    assert ((experts == 4).sum(-1) == 1).all() and (experts >= 3).all()  # within its group of three
    scores = logits.sigmoid().gather(-1, experts)
    torch.testing.assert_close(weights, 2.5 * scores / scores.sum(-1, keepdim=True))
