"""Figures from inner products, against the vectors themselves."""

import numpy as np
import pytest
import torch

from minirl.rescore.gram import figures, inner_products


def drawn(prompts: int = 40, size: int = 60, shared: float = 1.0) -> list[torch.Tensor]:
    """Three arms: noise about one direction, twice the first, and noise alone."""
    random = torch.Generator().manual_seed(0)
    direction = torch.randn(size, generator=random)
    first = (shared * direction + torch.randn(prompts, size, generator=random)) / prompts
    return [first, 2 * first, torch.randn(prompts, size, generator=random) / prompts]


def test_norms_and_cosines_are_those_of_the_sums() -> None:
    gradients = drawn()
    found = figures(inner_products(gradients), seed=0)
    sums = torch.stack([part.sum(0) for part in gradients]).double()
    norms = sums.norm(dim=1)
    assert found.norm == pytest.approx(norms.numpy(), rel=1e-5)
    assert found.cosine == pytest.approx(((sums @ sums.T) / norms[:, None] / norms).numpy(), abs=1e-5)
    assert found.cosine[0, 1] == pytest.approx(1) and found.cosine_error[0, 1] < 1e-6


def test_the_noise_is_that_of_a_sum_over_prompts() -> None:
    """Each component of sum_p g_p has variance prompts x var(g): relative to the norm of the mean direction."""
    gradients = drawn(prompts=200, size=400)
    found = figures(inner_products(gradients), seed=0)
    first = gradients[0].double()
    expected = (first.var(dim=0).sum() * len(first)).sqrt() / first.sum(0).norm()
    assert found.noise[0] == pytest.approx(float(expected), rel=1e-5)
    assert found.noise[1] == pytest.approx(found.noise[0]) and found.noise[2] > 0.9


def test_resamples_spread_as_fresh_batches_do() -> None:
    """The standard deviation over resamples of one batch against that over 200 batches."""
    random = torch.Generator().manual_seed(2)
    direction = torch.randn(30, generator=random)
    norms, errors = [], []
    for _ in range(200):
        first = (direction + 3 * torch.randn(50, 30, generator=random)) / 50
        norms.append(float(first.sum(0).norm()))
        errors.append(figures(inner_products([first]), seed=0).norm_error[0])
    assert np.mean(errors) == pytest.approx(np.std(norms), rel=0.2)


def test_a_gradient_of_zero_has_no_direction() -> None:
    first = drawn()[0]
    found = figures(inner_products([first, torch.zeros_like(first)]), seed=0)
    assert found.norm[1] == 0 and np.isnan(found.cosine[0, 1]) and np.isnan(found.noise[1])
    assert found.cosine[0, 0] == pytest.approx(1)
