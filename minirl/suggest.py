"""Did you mean: the nearest right word for a wrong one, and what we never have under other systems' names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, get_type_hints

from minirl.config import Config

# other systems' word -> the key that means it here
SYNONYMS = {
    "adv_estimator": "algo.advantage",
    "advantage_estimator": "algo.advantage",
    "batch_size": "prompts_per_mini_batch",
    "clip_high": "algo.trust_region.high",
    "clip_low": "algo.trust_region.low",
    "clip_ratio": "algo.trust_region.high",
    "clip_ratio_high": "algo.trust_region.high",
    "clip_ratio_low": "algo.trust_region.low",
    "cliprange": "algo.trust_region.high",
    "epsilon": "algo.trust_region.low",
    "epsilon_high": "algo.trust_region.high",
    "grad_clip": "train.optim.max_norm",
    "learning_rate": "train.optim.lr",
    "loss_agg_mode": "algo.aggregation.kind",
    "loss_type": "algo.aggregation.kind",
    "max_grad_norm": "train.optim.max_norm",
    "max_new_tokens": "sampling.max_response_tokens",
    "max_steps": "num_updates",
    "max_tokens": "sampling.max_response_tokens",
    "n": "group_size",
    "num_generations": "group_size",
    "num_iterations": "num_mini_batches",
    "ppo_mini_batch_size": "prompts_per_mini_batch",
    "router_replay": "algo.routing",
    "routing_replay": "algo.routing",
    "steps": "num_updates",
    "total_steps": "num_updates",
}

KL = "the loss has no KL term to a reference policy"
ENTROPY = "the loss has no entropy bonus"
VALUE = "there is no value function: advantages compare the responses of a group"
ABSENT = {
    "beta": KL,
    "init_kl_coef": KL,
    "kl": KL,
    "kl_beta": KL,
    "kl_coef": KL,
    "kl_loss_coef": KL,
    "use_kl_loss": KL,
    "ent_coef": ENTROPY,
    "entropy": ENTROPY,
    "entropy_bonus": ENTROPY,
    "entropy_coef": ENTROPY,
    "entropy_coeff": ENTROPY,
    "critic": VALUE,
    "gae_lambda": VALUE,
    "gamma": VALUE,
    "lam": VALUE,
    "value_coef": VALUE,
    "vf_coef": VALUE,
}


def schema_keys(schema: type = Config, prefix: str = "") -> list[str]:
    """Every key of a run that holds a value, as a person types it: seed, algo.trust_region.kind, ..."""
    keys: list[str] = []
    hints: dict[str, Any] = get_type_hints(schema)
    for field in fields(schema):
        kind, name = hints[field.name], f"{prefix}{field.name}"
        keys += schema_keys(kind, f"{name}.") if isinstance(kind, type) and is_dataclass(kind) else [name]
    return keys


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """The known words that `word` may be meant for, nearest first."""
    by_lower = {name.lower(): name for name in known}
    return [by_lower[name] for name in get_close_matches(word.lower(), by_lower, n=3, cutoff=0.6)]


def question(words: Iterable[str]) -> str:
    """ "; did you mean A or B?" or nothing."""
    found = list(dict.fromkeys(words))[:3]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The question for a wrong word, or else the list of right ones."""
    names = list(known)
    return question(nearest(word, names)) or (f"; expected {', '.join(sorted(names))}" if names else "")


def for_key(wrong: str, groups: Iterable[str]) -> str:
    """What to say of a configuration key that does not exist."""
    parts = wrong.lower().split(".")
    if parts[-1] in ABSENT:
        return f": {ABSENT[parts[-1]]}"
    keys = schema_keys()
    last = {key: key.rsplit(".", 1)[-1] for key in keys}
    same_name = [key for key in keys if last[key] == parts[-1]]
    meant = [SYNONYMS[word] for word in get_close_matches(parts[-1], SYNONYMS, n=1, cutoff=0.85)]
    if same_name or meant:
        return question(same_name or meant)
    alike = set(nearest(parts[-1], last.values()))
    inside = [key for key in keys if last[key] in alike and key.startswith(".".join(parts[:-1]))]
    return question(inside or nearest(wrong, [*keys, *groups]))
