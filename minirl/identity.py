"""Which runs are one experiment: the hash of a configuration in which inert switches are written one way.

Two configurations with one identity compute the same updates, so they are one run shown twice. What a run starts from
(model and cold start) enters as the content of its checkpoint, not as the keys or the path it came by.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from minirl.config import Config, ConfigError, ModelConfig, TaskConfig, TracesConfig
from minirl.hub import is_hub_id
from minirl.models.content import content_hash
from minirl.tables import content
from minirl.validate import num_experts

Tree = dict[str, Any]
DIGITS = 10  # hexadecimal digits of a hash: a sweep has hundreds of runs, not millions


def identity(config: Config, coldstart: str) -> str:
    """10 hex digits. coldstart: content hash of the checkpoint that training starts from."""
    return _digest({"run": canonical(config), "start": coldstart})


def coldstart_key(config: Config) -> str:
    """10 hex digits: what determines the cold-start checkpoint. Known before it is made."""
    if config.coldstart.checkpoint is not None:
        return _digest({"checkpoint": config.coldstart.checkpoint})
    parts = {"task": identity_fields(config.task), "coldstart": identity_fields(config.coldstart)}
    return _digest({"model": _model(config.model), **parts, **_files(config.task, config.coldstart.traces)})


def curation_key(config: Config, coldstart: str) -> str:
    """10 hex digits: what determines the pass rates of the training problems."""
    parts = {"task": identity_fields(config.task), "sampling": identity_fields(config.sampling)}
    sizes = {"group_size": config.group_size, "seed": config.seed, "engine": config.engine.numerics}
    return _digest({**parts, **sizes, "start": coldstart, **_files(config.task, None)})


def _model(model: ModelConfig) -> Tree:
    """What the model begins with: a folder is its content, wherever it lies and whatever lay there before; a hub id is
    its name."""
    tree = identity_fields(model)
    if model.path is not None and not is_hub_id(model.path):
        folder = Path(model.path)
        try:
            tree["path"] = _content(folder, tuple(_stamp(path) for path in sorted(folder.iterdir())))
        except FileNotFoundError as error:
            raise ConfigError(f"model.path={model.path}: {error}") from error
    return tree


# what decides how text becomes tokens, by the beginnings of file names
TOKENIZER = ("tokenizer", "chat_template", "special_tokens_map", "added_tokens", "vocab", "merges")


def _files(task: TaskConfig, traces: TracesConfig | None) -> Tree:
    """What a task of problems in files reads, as its content: problems, traces, tokenizer, template, grader. Nothing
    for the other tasks."""
    named: dict[str, tuple[str, str]] = {}
    if task.train is not None:
        named["problems"] = task.train.path, "task.train.path"
    if traces is not None:
        named["traces"] = traces.path, "coldstart.traces.path"
    if task.chat is not None and task.chat.template is not None:
        named["template"] = task.chat.template, "task.chat.template"
    if task.grading is not None and task.grading.grader is not None:
        named["grader"] = task.grading.grader, "task.grading.grader"
    tree: Tree = {name: content(*where) for name, where in named.items()}
    if task.chat is not None and task.chat.tokenizer is not None:
        tree["tokenizer"] = _tokenizer(task.chat.tokenizer)
    return {"files": tree} if tree else {}


def _tokenizer(name: str) -> str:
    """A folder's is the content of its files, a hub id's its name."""
    if is_hub_id(name):
        return name
    files = sorted(path for path in Path(name).glob("*") if path.name.startswith(TOKENIZER))
    return _digest({path.name: content(str(path), "task.chat.tokenizer") for path in files})


@cache
def _content(folder: Path, stamps: tuple[tuple[str, int, int], ...]) -> str:
    """content_hash; a large folder is read once as long as its files look the same."""
    return content_hash(folder)


def _stamp(path: Path) -> tuple[str, int, int]:
    """What changes when a file is written."""
    found = path.stat()
    return path.name, found.st_size, found.st_mtime_ns


def direction(config: Config, coldstart: str) -> str:
    """Equal for two runs whose gradients differ by a constant factor only: leave_one_out = G / (G - 1) x group_mean,
    token_sum_norm = 1 / L x seq_mean_token_sum, and any aggregation.scale."""
    tree = canonical(config)
    algo = tree["algo"]
    if algo["advantage"] == "leave_one_out":
        algo["advantage"] = "group_mean"
    kind = algo["aggregation"]["kind"]
    algo["aggregation"] = {"kind": "seq_mean_token_sum" if kind == "token_sum_norm" else kind}
    return _digest({"run": tree, "start": coldstart})


def identity_fields(node: Any) -> Tree:
    """The fields that are marked as belonging to the identity, as plain values; null and empty ones are left out, so
    that a new key that may be null changes no old identity."""
    tree: Tree = {}
    for spec in fields(node):
        value = getattr(node, spec.name)
        value = identity_fields(value) if is_dataclass(value) else value
        if spec.metadata["identity"] and value not in (None, {}, []):
            tree[spec.name] = value
    return tree


def canonical(config: Config) -> Tree:
    """The configuration without what cannot change an update."""
    tree = identity_fields(config) | _files(config.task, None)
    del tree["model"], tree["coldstart"]
    algo, on_policy = tree["algo"], config.num_mini_batches == 1
    algo["is_weight"] = _weight(algo["is_weight"], on_policy)
    algo["trust_region"] = _region(algo["trust_region"], on_policy)
    algo["reject"] = _rejection(algo["reject"])
    if algo["aggregation"]["kind"] != "token_sum_norm":
        algo["aggregation"].pop("length", None)
    if algo["routing"] == "r2" and on_policy:
        algo["routing"] = "live"  # the replayed choice is the one just made
    if algo["routing"] == "live":
        del algo["routing_missing"]
    if tree["train"]["optim"]["clip"] == "none":
        tree["train"]["optim"].pop("max_norm", None)
    if num_experts(config.model) == 0:
        del tree["train"]["freeze_router"]
    return tree


def _weight(weight: Tree, on_policy: bool) -> Tree:
    """A factor that is 1 is left out, and so is a bound that cannot bind; a bound on the product of one factor is a
    bound on that factor."""
    staleness, discrepancy = _factor(weight["staleness"]), _factor(weight["discrepancy"])
    product = _band(weight["product"])
    if on_policy and _holds_one(staleness):
        staleness = {}
    present = [factor for factor in (staleness, discrepancy) if factor]
    if not present and _holds_one(product):
        product = {}
    if len(present) == 1 and "outside" not in present[0]:
        present[0] |= product
        product = {}
    parts = {"staleness": staleness, "discrepancy": discrepancy, "product": product}
    return {name: part for name, part in parts.items() if part}


def _factor(factor: Tree) -> Tree:
    return {} if factor["level"] == "none" else {"level": factor["level"], **_band(factor)}


def _band(part: Tree) -> Tree:
    """low, high and outside of a ratio; nothing where no positive number is outside."""
    bounds = {name: part[name] for name in ("low", "high") if name in part and (name, part[name]) != ("low", 0.0)}
    return bounds | {"outside": part["outside"]} if bounds else {}


def _holds_one(part: Tree) -> bool:
    return bool(part.get("low", 0.0) <= 1.0 <= part.get("high", float("inf")))


def _region(region: Tree, on_policy: bool) -> Tree:
    """At N = 1 a region around pi_old holds every token: pi_theta is still there."""
    inert = region["kind"] == "none" or (on_policy and region["anchor"] == "old")
    return {} if inert else region


def _rejection(reject: Tree) -> Tree:
    """`counted` says something only where something is rejected."""
    band = _band(reject | {"outside": "reject"})
    parts = {"level": reject["level"], **band} if band and reject["level"] != "none" else {}
    parts |= {name: reject[name] for name, off in (("groups", "all"), ("truncated", "keep")) if reject[name] != off}
    return parts | {"counted": reject["counted"]} if parts else {}


def _digest(tree: Mapping[str, Any]) -> str:
    text = json.dumps(tree, sort_keys=True, allow_nan=False, default=str)
    return sha256(text.encode()).hexdigest()[:DIGITS]
