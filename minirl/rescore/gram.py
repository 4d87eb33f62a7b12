"""Norms and cosines of gradients that are sums over prompts, and how sure they are: resampled over the prompts.

All of it follows from the inner products of the parts: for weights w [prompts] the gradient of arm a is
sum_p w_p g_ap, so <g_a, g_b>(w) = w' K_ab w with K_ab[p, q] = <g_ap, g_bq>. A resample draws as many prompts again,
with replacement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minirl.streams import stream

RESAMPLES = 400


@dataclass(frozen=True)
class Figures:
    """norm [A], cosine [A, A] of the whole batch; norm_error, cosine_error: their standard deviations over resamples ·
    noise [A]: sqrt(trace of the covariance of g) / |g|: above 1 the batch says little about the direction."""

    norm: np.ndarray
    norm_error: np.ndarray
    cosine: np.ndarray
    cosine_error: np.ndarray
    noise: np.ndarray


def inner_products(gradients: Sequence[Tensor]) -> np.ndarray:
    """[A, A, P, P] from A arms' [P, parameters]."""
    flat = torch.cat(list(gradients))
    count, prompts = len(gradients), len(gradients[0])
    products = (flat @ flat.T).double().numpy()
    return products.reshape(count, prompts, count, prompts).transpose(0, 2, 1, 3)


def figures(products: np.ndarray, *, seed: int) -> Figures:
    prompts = products.shape[-1]
    random = stream(seed, "resamples of prompts")
    weights = random.multinomial(prompts, np.full(prompts, 1 / prompts), size=RESAMPLES).astype(float)
    norm, cosine = _norms_and_cosines(products, np.ones((1, prompts)))
    norms, cosines = _norms_and_cosines(products, weights)
    diagonal = np.einsum("aapp->ap", products)
    own = np.einsum("aapq->a", products)
    spread = prompts / max(prompts - 1, 1) * (diagonal.sum(-1) - own / prompts)
    return Figures(
        norm=norm[0],
        norm_error=norms.std(0, ddof=1),
        cosine=cosine[0],
        cosine_error=cosines.std(0, ddof=1),
        noise=np.sqrt(np.maximum(spread, 0.0)) / np.where(own > 0, np.sqrt(np.maximum(own, 0.0)), np.nan),
    )


def _norms_and_cosines(products: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([R, A], [R, A, A]) for weights [R, P]; a gradient of zero has no direction: NaN."""
    pairs = np.einsum("rp,abpq,rq->rab", weights, products, weights, optimize=True)
    norms = np.sqrt(np.maximum(np.einsum("raa->ra", pairs), 0.0))
    lengths = norms[:, :, None] * norms[:, None, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        return norms, np.where(lengths > 0, pairs / lengths, np.nan)
