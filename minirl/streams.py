"""The only source of randomness: every draw belongs to a named stream.

A stream is a pure function of (seed, purpose, indices), so a response's random numbers depend neither on the batch
it is sampled in, nor on the rank, the mini-batch or what was drawn before. Nothing of it needs to be saved: to resume
is to ask for the same streams again.
"""

from __future__ import annotations

from hashlib import sha256

import numpy as np


def stream_key(seed: int, purpose: str, *indices: int) -> int:
    """A 128-bit integer, the identity of the stream. The fields are joined by a separator before hashing, so that
    neighbouring seeds or trailing zeros never meet (as they do with `seed + step`, or with a bare SeedSequence)."""
    if "/" in purpose:
        raise ValueError(f"stream purpose {purpose!r} contains the separator of its fields: use another character")
    text = "/".join([str(int(seed)), purpose, *(str(int(index)) for index in indices)])
    return int.from_bytes(sha256(text.encode()).digest()[:16], "big")


def stream(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """The random generator of (seed, purpose, indices); two calls with equal arguments draw equal numbers."""
    return np.random.Generator(np.random.Philox(key=stream_key(seed, purpose, *indices)))
