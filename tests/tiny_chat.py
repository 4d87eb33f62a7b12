"""A tiny random MoE with a real tokenizer and chat template, as a folder in Hugging Face format, and files of problems
and traces in the formats of published ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NUM_ROWS = 272  # of the embedding: more than the tokenizer has tokens, as in published models


def tokenizer(template: str | None = CHATML, special: Sequence[str] = SPECIAL) -> PreTrainedTokenizerFast:
    """One token per byte, and the special ones; the first of them ends a text."""
    alphabet = sorted(ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=special[0], pad_token=special[0])
    wrapped.add_special_tokens({"additional_special_tokens": list(special[1:])})
    wrapped.chat_template = template
    return wrapped


def save_model(folder: Path, template: str | None = CHATML) -> Path:
    """Two MoE layers and the tokenizer; safetensors."""
    config = Qwen3MoeConfig(
        vocab_size=NUM_ROWS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=64,
        moe_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        decoder_sparse_step=1,
        initializer_range=0.1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen3MoeForCausalLM(config).save_pretrained(folder)
    tokenizer(template).save_pretrained(folder)
    return folder


def save_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """The rows as the name's ending says: .parquet, .jsonl or .csv."""
    if path.suffix == ".parquet":
        from pyarrow import Table
        from pyarrow.parquet import write_table

        write_table(Table.from_pylist([dict(row) for row in rows]), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        import csv

        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


def problem(number: int) -> dict[str, Any]:
    """A row as MATH has it: a problem, a worked solution with a boxed answer."""
    return {
        "problem": f"What is ${number} + 1$?",
        "solution": f"We add one to ${number}$ and find $\\boxed{{{number + 1}}}$.",
        "level": f"Level {number % 5 + 1}",
    }


def trace(number: int) -> dict[str, Any]:
    """A row of a teacher's traces: a chat that ends with the answer."""
    row = problem(number)
    return {
        "messages": [
            {"role": "user", "content": row["problem"]},
            {"role": "assistant", "content": f"\\boxed{{{number + 1}}}"},
        ]
    }


# a run on such a folder that a test can afford
SIZES = [
    "task.chat.instruction=null",
    "task.chat.max_prompt_tokens=100",
    "task.grading.num_workers=1",
    "sampling.max_response_tokens=16",
    "prompts_per_mini_batch=2",
    "group_size=2",
    "num_updates=2",
    "eval.every=1",
    "eval.num_problems=4",
    "train.checkpoint_every=2",
    "train.optim.warmup_updates=1",
    "metrics.live_every=1",
    "engine.numerics=bf16",
    "coldstart.batch_size=8",
    "coldstart.max_steps=6",
    "coldstart.eval_every=2",
    "coldstart.lr=1e-2",
    "coldstart.warmup_steps=1",
]
