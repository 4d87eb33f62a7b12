"""Every family in the registry: its routers are found, reproduced to the bit, replayed, and keep their gradient."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from moe_families import EXPERTS, LAYOUTS, SIZES, K, family_model, moe_layers, other_experts, sequences
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.qwen3_5_moe import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration

from minirl.config import ConfigError
from minirl.models.families.registry import FAMILIES, is_mixture, router_family
from minirl.models.load import folder_config, loaded
from minirl.models.tape import RoutingTape

IDS = sequences()
ALL = torch.ones(15, dtype=torch.bool)


def test_every_family_is_tested():
    assert {family for family, _ in LAYOUTS.values()} == FAMILIES.keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_record_and_replay(layout, dtype):
    built, ids = family_model(layout, dtype), IDS
    tape = RoutingTape(built)  # compares the gate with the routers' own weights
    assert tape.layers == moe_layers(layout)
    assert (tape.num_experts, tape.top_k) == (EXPERTS, K)
    with torch.no_grad():
        free = built(ids).logits
        with tape.record(15) as own:
            assert torch.equal(built(ids).logits, free)
        with tape.replay(own.experts, ALL):
            assert torch.equal(built(ids).logits, free)
    foreign = other_experts(own.experts, EXPERTS)
    with tape.replay(foreign, ALL):
        replayed = built(ids).logits
        replayed.float().square().sum().backward()
    assert (replayed - free).abs().amax(-1).min() > 1e-3
    for router in tape.routers:
        assert router.weight.grad.isfinite().all() and router.weight.grad.abs().max() > 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_activation_checkpointing_gives_the_same_gradient(layout):
    gradients = []
    for recompute in (False, True):
        built, ids = family_model(layout), IDS
        tape = RoutingTape(built)
        if recompute:
            built.gradient_checkpointing_enable({"use_reentrant": False})
            built.train()
        with tape.record(15):
            built(ids, use_cache=False).logits.square().sum().backward()
        gradients.append({name: p.grad for name, p in built.named_parameters()})
    for name, grad in gradients[0].items():
        assert torch.equal(grad, gradients[1][name]), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_saved_model_loads_as_itself(layout, tmp_path):
    built, ids = family_model(layout), IDS
    built.save_pretrained(tmp_path)
    again = loaded(folder_config(tmp_path, "model.path"), tmp_path).eval()
    state = built.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in again.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, built(ids).logits)  # memory alignment may change a rounding


def test_routing_biases_and_groups_decide_the_choice_but_not_the_weights():
    """DeepSeek-V3: with the bias of one expert raised it is always chosen, at the weight of its unbiased score."""
    built = family_model("deepseek_v3")
    router = built.model.layers[1].mlp.gate
    router.e_score_correction_bias.copy_(torch.tensor([0.0, 0.0, 0.0, 0.0, 50.0, 0.0]))
    hidden = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits, weights, experts = router(hidden)
    assert ((experts == 4).sum(-1) == 1).all() and (experts >= 3).all()  # within its group of three
    scores = logits.sigmoid().gather(-1, experts)
    torch.testing.assert_close(weights, 2.5 * scores / scores.sum(-1, keepdim=True))


def test_the_language_model_of_a_model_that_also_sees_is_loaded(tmp_path):
    """Qwen3.5-MoE is published with a vision tower; its decoder is read from the same folder, to the bit."""
    text = SIZES | LAYOUTS["qwen3_5_moe_text"][1]
    vision = {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "out_hidden_size": 16}
    vision |= {"num_position_embeddings": 16, "patch_size": 4}
    seeing = Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeConfig(text_config=text, vision_config=vision)).eval()
    seeing.save_pretrained(tmp_path)
    built = loaded(folder_config(tmp_path, "model.path"), tmp_path).eval()
    assert RoutingTape(built).layers == (0, 1, 2, 3)
    with torch.no_grad():
        assert torch.equal(built(IDS).logits, seeing(input_ids=IDS).logits)


def test_an_unknown_family_is_refused_with_what_to_write(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "phimoe", "num_local_experts": 4}))
    with pytest.raises(ConfigError, match=r"write minirl/models/families/phimoe\.py .* docs/routing_replay\.md"):
        folder_config(tmp_path, "model.path")  # there are no weights in the folder


@pytest.mark.slow
def test_no_mixture_of_the_installed_library_passes_for_a_dense_model():
    """Every causal LM whose code has stacked experts and whose default config has any is supported or refused."""
    models, passed = Path(transformers.__file__).parent / "models", []
    for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        if name.startswith("musicgen"):
            continue  # made of other models' configs: it has no default
        config = CONFIG_MAPPING[name]()
        folder = models / type(config).__module__.split(".")[2]
        routes = any("topkrouter" in path.read_text().lower() for path in folder.glob("modeling_*.py"))
        if routes and not is_mixture(config.to_dict()):
            passed.append(name)
    assert passed == ["dots1"]  # its default counts no experts; a real one does
    with pytest.raises(ConfigError, match="'dots1' is not supported"):
        router_family({"model_type": "dots1", "n_routed_experts": 128}, "model")
