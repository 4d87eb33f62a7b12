"""Reading recorded routes: layers by absolute id, rows that are no routes."""

import pytest
import torch

from minirl.models.routes import columns, well_formed
from minirl.types import Routes


def routes(layers):
    experts = torch.arange(2 * len(layers)).view(1, len(layers), 2).repeat(3, 1, 1)
    return Routes(experts, torch.ones(3, dtype=torch.bool), layers, 16)


def test_columns_are_found_by_absolute_layer_id():
    found = columns(routes((0, 2, 5, 7)), (2, 7))
    assert found[0].tolist() == [[2, 3], [6, 7]]
    assert torch.equal(columns(routes((2, 7)), (2, 7)), routes((2, 7)).experts)


def test_a_layer_without_routes_is_named():
    with pytest.raises(ValueError, match=r"\[0, 1\], the model also routes in \[3\]"):
        columns(routes((0, 1)), (1, 3))


def test_well_formed_rows_name_different_existing_experts_in_every_layer():
    good = [[0, 5], [3, 2]]
    rows = [good, [[0, 0], [3, 2]], [[0, 5], [0, 0]], [[0, 6], [3, 2]], [[-1, 5], [3, 2]]]
    assert well_formed(torch.tensor(rows), 6).tolist() == [True, False, False, False, False]


def test_one_expert_per_token_cannot_repeat():
    assert well_formed(torch.tensor([[[0]], [[5]], [[6]]]), 6).tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int16, torch.int32])
def test_any_integer_dtype(dtype):
    assert well_formed(torch.tensor([[[255, 3]], [[7, 7]]]).to(dtype), 256).tolist() == [True, False]
