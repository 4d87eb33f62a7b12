"""Rows of a parameter straight from a folder, and back: every family, in the names and precision of its folder."""

import json
import shutil

import pytest
import torch
from moe_families import LAYOUTS, SIZES, family_model, sequences
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration, Qwen3Config
from transformers.core_model_loading import Concatenate, WeightConverter

from minirl.config import ConfigError
from minirl.models import stored
from minirl.models.export import write_files, write_folder
from minirl.models.load import folder_config, implementations, initialised, loaded
from minirl.models.outline import materialise, without_weights
from minirl.models.shards import distinct
from minirl.models.sources import Converted, Stacked, source, sources
from minirl.models.stored import stored_tensors
from minirl.models.tape import RoutingTape


def from_rows(folder):
    return loaded(folder_config(folder, "model.path"), folder).eval()


def stock(folder):
    """The same by transformers alone."""
    config = folder_config(folder, "model.path")
    return AutoModelForCausalLM.from_pretrained(folder, config=config, **implementations(config)).eval()


def same(left, right):
    left, right = left.state_dict(), right.state_dict()
    return left.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in left.items())


def tied_dense():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        own = {"head_dim": 8, "tie_word_embeddings": True, "pad_token_id": None}
        sizes = {name: value for name, value in SIZES.items() if name != "num_experts_per_tok"}
        return initialised(Qwen3Config(**(sizes | own))).eval()


def made(layout):
    return tied_dense() if layout == "tied" else family_model(layout)


@pytest.fixture
def folder(tmp_path):
    family_model("qwen3_moe").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("layout", [*LAYOUTS, "tied"])
def test_rows_make_the_model_that_from_pretrained_makes(layout, tmp_path):
    made(layout).save_pretrained(tmp_path, max_shard_size="20KB")
    read, expected = from_rows(tmp_path), stock(tmp_path)
    assert same(read, expected)
    with torch.no_grad():
        torch.testing.assert_close(read(sequences()).logits, expected(sequences()).logits)


@pytest.mark.parametrize("layout", [*LAYOUTS, "tied"])
def test_an_outline_has_no_weights_and_its_tape_can_be_attached(layout):
    model = made(layout)
    outline = without_weights(lambda: initialised(model.config))
    real = [name for name, value in outline.named_parameters() if not value.is_meta]
    assert (
        all(".gate." in name or ".router." in name for name in real) and len(real) < len(list(model.parameters())) / 2
    )
    if layout != "tied":
        assert RoutingTape(outline).layers == RoutingTape(model).layers
    names = distinct(outline)
    materialise(outline, torch.device("cpu"))
    assert not any(value.is_meta for value in outline.state_dict().values()) and distinct(outline) == names


WRITTEN = [(layout, torch.float32) for layout in (*LAYOUTS, "tied")]
WRITTEN += [(layout, torch.bfloat16) for layout in ("mixtral", "gpt_oss", "tied")]


@pytest.mark.parametrize(("layout", "dtype"), WRITTEN)
def test_a_written_folder_has_the_names_and_precision_of_the_one_it_came_from(layout, dtype, tmp_path):
    """Published names, expert by expert; stock transformers gives the same logits to the bit."""
    made(layout).to(dtype).save_pretrained(tmp_path / "from")
    model = from_rows(tmp_path / "from")
    write_folder(model, model.state_dict().items(), tmp_path / "to", tmp_path / "from")
    before, after = (
        {
            name: value
            for path in sorted((tmp_path / place).glob("*.safetensors"))
            for name, value in load_file(path).items()
        }
        for place in ("from", "to")
    )
    assert before.keys() == after.keys()
    assert all(after[name].dtype == value.dtype and torch.equal(after[name], value) for name, value in before.items())
    before, after = (
        AutoModelForCausalLM.from_pretrained(tmp_path / place, dtype=torch.float32).eval() for place in ("from", "to")
    )
    with torch.no_grad():
        assert torch.equal(before(sequences()).logits, after(sequences()).logits)


def test_rows_of_stacked_experts_touch_no_other_expert(folder, monkeypatch):
    read = []
    exactly = stored.read_exactly
    monkeypatch.setattr(
        stored, "read_exactly", lambda file, content: read.append(len(content)) or exactly(file, content)
    )
    model = without_weights(lambda: initialised(folder_config(folder, "model.path")))
    found = sources(model, stored_tensors(folder), folder)["model.layers.1.mlp.experts.gate_up_proj"]
    assert isinstance(found, Stacked) and found.shape == (6, 24, 16)
    expected = family_model("qwen3_moe").model.layers[1].mlp.experts.gate_up_proj
    assert torch.equal(found.rows(2, 4), expected[2:4]) and sum(read) == 2 * 24 * 16 * 4
    assert found.rows(3, 3).shape == (0, 24, 16)


def test_what_is_put_together_in_another_way_is_put_together_by_transformers(tmp_path):
    """Not stacked experts: two stored matrices, one below the other."""
    parts = {"layer.q.weight": torch.arange(6.0).view(2, 3), "layer.k.weight": torch.ones(1, 3)}
    save_file(parts, tmp_path / "model.safetensors")
    held = stored_tensors(tmp_path)
    converter = WeightConverter(["layer.q.weight", "layer.k.weight"], "layer.qk.weight", [Concatenate(dim=0)])
    keys = [(name, name) for name in parts]
    found = source("layer.qk.weight", keys, dict.fromkeys(parts, converter), held, family_model("olmoe"))
    assert isinstance(found, Converted) and found.shape == (3, 3)
    assert torch.equal(found.rows(1, 3), torch.cat(list(parts.values()))[1:3])


def test_the_language_model_of_a_model_that_also_sees(tmp_path):
    text = SIZES | LAYOUTS["qwen3_5_moe_text"][1]
    vision = {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "out_hidden_size": 16}
    vision |= {"num_position_embeddings": 16, "patch_size": 4}
    seeing = Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeConfig(text_config=text, vision_config=vision)).eval()
    seeing.save_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(from_rows(tmp_path)(sequences()).logits, seeing(input_ids=sequences()).logits)


def edited(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("model.norm.weight"), r"missing keys.*model\.norm\.weight"),
        (lambda w: w.update(extra=torch.zeros(1)), "unexpected keys.*extra"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(3)}), r"mismatched keys.*model\.norm\.weight is \[3\]"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(16, dtype=torch.uint8)}), "stored as U8.*not quantised"),
    ],
)
def test_nothing_is_left_to_chance(folder, change, message):
    edited(folder, change)
    with pytest.raises(ConfigError, match=message):
        from_rows(folder)


def test_an_expert_that_is_missing_is_seen(folder):
    edited(folder, lambda w: w.pop("model.layers.0.mlp.experts.3.up_proj.weight"))
    with pytest.raises(ConfigError, match=r"experts of which a part is missing.*layers\.0\.mlp\.experts\.gate_up_proj"):
        from_rows(folder)


def test_a_file_that_ends_early_is_an_error(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(EOFError, match="8 bytes early"):
        from_rows(folder)


def test_other_formats_and_lost_files_are_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "sharded")
    (tmp_path / "sharded" / "model.safetensors").unlink()
    write_files(load_file(folder / "model.safetensors").items(), tmp_path / "sharded", max_bytes=4000)
    parts = sorted((tmp_path / "sharded").glob("*.safetensors"))
    assert len(parts) > 3 and all(path.stat().st_size < 8000 for path in parts)
    assert same(from_rows(tmp_path / "sharded"), from_rows(folder))
    AutoModelForCausalLM.from_pretrained(tmp_path / "sharded")  # and the stock class follows the index
    (tmp_path / "sharded" / "consolidated.safetensors").write_bytes(b"another copy, which the index does not name")
    assert same(from_rows(tmp_path / "sharded"), from_rows(folder))
    parts[1].unlink()
    with pytest.raises(ConfigError, match="which are not there"):
        from_rows(tmp_path / "sharded")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"no \.safetensors file; weights in other formats are not read"):
        from_rows(folder)


def test_companions_come_along_and_the_config_is_written(folder, tmp_path):
    (folder / "tokenizer.json").write_text("{}")
    (folder / "evil.py").write_text("raise SystemExit")
    model = from_rows(folder)
    write_folder(model, model.state_dict().items(), tmp_path / "to", folder)
    assert (tmp_path / "to" / "tokenizer.json").read_text() == "{}" and not (tmp_path / "to" / "evil.py").exists()
    settings = json.loads((tmp_path / "to" / "config.json").read_text())
    assert settings["architectures"] == ["Qwen3MoeForCausalLM"] and settings["dtype"] == "float32"
