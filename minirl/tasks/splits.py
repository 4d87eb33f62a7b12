"""Which problems train, which cold-start and which evaluate: a property of the problem, not of a draw."""

from __future__ import annotations

from enum import Enum
from hashlib import sha256


class Split(Enum):
    train = "train"
    coldstart = "coldstart"
    eval = "eval"


# ten buckets: 80 % train, 10 % cold start, 10 % evaluation
BUCKETS = (Split.coldstart, Split.eval, *(Split.train,) * 8)


def split_of(name: str) -> Split:
    """bucket(sha256(name) mod 10): the same in every run, for every seed, and disjoint by construction."""
    return BUCKETS[int.from_bytes(sha256(name.encode()).digest()[:8], "big") % len(BUCKETS)]
