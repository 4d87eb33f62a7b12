"""Which algorithms a batch is rescored with: names of conf/algo, or overrides as a person types them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from minirl.algo.algorithm import PolicyGradient, build
from minirl.compose import choices, load
from minirl.config import AlgoConfig, Config, ConfigError, Routing
from minirl.validate import num_experts, validate

OWN = "the run's own"


def choices_of(config: Config, arms: Sequence[str]) -> dict[str, AlgoConfig]:
    """The run's own algorithm first, then each arm by the words it was asked for with; without arms, every file of
    conf/algo. Raises ConfigError."""
    return {OWN: config.algo} | {arm: _composed(config, arm).algo for arm in arms or sorted(choices("algo"))}


def algorithms(found: Mapping[str, AlgoConfig]) -> dict[str, PolicyGradient]:
    return {name: build(algo) for name, algo in found.items()}


def _composed(config: Config, arm: str) -> Config:
    """`grpo`, or `algo=minirl algo.routing=r3`: only algo.* may differ, everything else is the batch's."""
    words = shlex.split(arm) if "=" in arm else [f"algo={arm}"]
    foreign = [word for word in words if not word.startswith(("algo=", "algo."))]
    if foreign:
        raise ConfigError(f"{foreign[0]}: an arm of rescore is made of algo.* alone, the batch is what it is")
    other = load([f"sampling.max_response_tokens={config.sampling.max_response_tokens}", *words])
    if other.algo.routing is not Routing.live and num_experts(config.model) == 0:
        raise ConfigError(f"{arm}: the batch is of a dense model, which has no routes to replay")
    validate(other)
    return other


def same(found: Mapping[str, AlgoConfig]) -> dict[str, str]:
    """arm -> the earlier arm that is the very same algorithm, whatever it is called."""
    nameless = {name: replace(algo, name="") for name, algo in found.items()}
    names = list(found)
    earlier = {
        name: [other for other in names[:place] if nameless[other] == nameless[name]]
        for place, name in enumerate(names)
    }
    return {name: others[0] for name, others in earlier.items() if others}
