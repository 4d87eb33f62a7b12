"""What a server reports, joined into a batch: alignment, broken numbers, missing and misshapen routes."""

import numpy as np
import pytest
import torch

from minirl.engine.prefixes import laid_out, share_prefixes
from minirl.engine.responses import Response, Routers, joined
from minirl.engine.vllm_server import ReturnedRoutes
from minirl.types import Prompt, RolloutBatch

PROMPTS = [Prompt(7, (3, 4, 5), None), Prompt(9, (6,), None)]
ROUTERS = Routers(layers=(1, 3), num_experts=16, top_k=2)


def routes(length: int, dtype: str = "uint8") -> np.ndarray:
    """[length, 2, 2]: token t meets experts t and t + 1 in layer 1, t + 2 and t + 3 in layer 3."""
    return (np.arange(length)[:, None, None] + np.array([[0, 1], [2, 3]])).astype(dtype)


def response(prompt: int, tokens: list[int], *, rows: int | None = None, **changes: object) -> Response:
    """A response to PROMPTS[prompt] with a logprob of -0.5 t for its t-th token and `rows` routes."""
    length = len(PROMPTS[prompt].tokens) + len(tokens) - 1 if rows is None else rows
    usual = {
        "tokens": tokens,
        "logprobs": [-0.5 * (t + 1) for t in range(len(tokens))],
        "truncated": False,
        "experts": routes(length),
        "recorded": np.ones(length, bool),
    }
    return Response(**usual | changes)


def join(*responses: Response, routers: Routers | None = ROUTERS) -> RolloutBatch:
    sizes = {"group_size": len(responses) // 2, "version": 4, "eos": 1, "device": torch.device("cpu")}
    return joined(PROMPTS, responses, routers=routers, **sizes)


def test_everything_stands_at_its_token() -> None:
    batch = join(response(0, [8, 1]), response(1, [9, 9, 9], truncated=True))
    assert batch.tokens.tolist() == [3, 4, 5, 8, 1, 6, 9, 9, 9]
    assert batch.cu_seqlens.tolist() == [0, 5, 9] and batch.positions.tolist() == [7, 9]
    assert batch.response_mask.tolist() == [False] * 3 + [True] * 2 + [False] + [True] * 3
    assert batch.rollout_logprobs.tolist() == [0, 0, 0, -0.5, -1.0, 0, -0.5, -1.0, -1.5]
    assert batch.truncated.tolist() == [False, True] and batch.valid.tolist() == [True, True]
    assert batch.routes.present.tolist() == [True] * 4 + [False] + [True] * 3 + [False]
    assert batch.routes.experts[:, 0, 0].tolist() == [0, 1, 2, 3, 0, 0, 1, 2, 0]
    assert batch.routes.layers == (1, 3) and batch.version == 4 and batch.group_size == 1


@pytest.mark.parametrize("broken", [float("nan"), float("-inf")])
def test_a_response_ends_at_its_first_broken_logprob(broken: float) -> None:
    batch = join(response(0, [8, 7, 9, 1], logprobs=[-1.0, broken, -1.0, -1.0]), response(1, [9, 1]))
    assert batch.tokens.tolist() == [3, 4, 5, 8, 1, 6, 9, 1]
    assert batch.valid.tolist() == [False, True] and not batch.truncated.any()
    assert batch.rollout_logprobs.tolist() == [0, 0, 0, -1.0, 0, 0, -0.5, -1.0]
    assert batch.routes.present.tolist() == [True, True, True, True, False, True, True, False]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "int32", "int64"])
def test_the_dtype_of_routes_does_not_matter(dtype: str) -> None:
    rows = routes(4, dtype)
    rows.flags.writeable = False
    batch = join(response(0, [8, 1], experts=rows), response(1, [9]))
    expected = join(response(0, [8, 1]), response(1, [9]))
    assert batch.routes.experts.equal(expected.routes.experts) and batch.routes.experts.dtype == torch.uint8


def test_many_experts_need_a_wider_dtype() -> None:
    wide = Routers(layers=(1, 3), num_experts=300, top_k=2)
    rows = routes(4, "uint16") + np.uint16(290)
    batch = join(response(0, [8, 1], experts=rows), response(1, [9]), routers=wide)
    assert batch.routes.experts.dtype == torch.int16 and int(batch.routes.experts.max()) == 296


def test_one_route_per_token_or_one_less() -> None:
    whole = join(response(0, [8, 1], rows=5), response(1, [9]))  # a route of the last token is of no use
    assert whole.routes.experts.equal(join(response(0, [8, 1]), response(1, [9])).routes.experts)
    for rows in (3, 6):
        with pytest.raises(ValueError, match=rf"response 0: {rows} routes for 5 tokens"):
            join(response(0, [8, 1], rows=rows), response(1, [9]))
    with pytest.raises(ValueError, match="response 1: routes of shape"):
        join(response(0, [8, 1]), response(1, [9], experts=routes(1)[:, :1]))
    with pytest.raises(ValueError, match="response 0: the engine gave no routes"):
        join(response(0, [8, 1], experts=None, recorded=None), response(1, [9]))


def test_what_was_not_recorded_is_absent() -> None:
    recorded = np.array([False, False, True, True])
    batch = join(response(0, [8, 1], recorded=recorded), response(1, [9]))
    assert batch.routes.present.tolist() == [False, False, True, True, False, True, False]
    assert not batch.routes.experts[:2].any()


def test_each_token_needs_its_logprob() -> None:
    with pytest.raises(ValueError, match="2 tokens and 1 logprobs"):
        join(response(0, [8, 1], logprobs=[-1.0]), response(1, [9]))


def test_pieces_are_laid_out_by_position_and_the_latest_wins() -> None:
    found = laid_out([(2, routes(2)), (4, routes(1)), (2, routes(3) + 5)], (2, 2))
    assert found.present.tolist() == [False, False, True, True, True] and found.missing == 2
    assert found.experts[:, 0, 0].tolist() == [0, 0, 5, 6, 7]
    nothing = laid_out([], (2, 2))
    assert nothing.experts.shape == (0, 2, 2) and nothing.missing == 0


def test_a_cached_prefix_has_the_routes_of_whoever_computed_it() -> None:
    common, other = (1, 2, 3, 4), (1, 2, 8, 8)
    prompts = [(*common, 5), (*common, 6), (*other, 7), (*other, 9)]
    first = laid_out([(0, routes(6))], (2, 2))
    second = laid_out([(4, routes(2) + 4)], (2, 2))  # four tokens were cached
    third = laid_out([(2, routes(4) + 30)], (2, 2))  # two
    fourth = laid_out([(4, routes(2) + 40)], (2, 2))  # two of the first, two of the third
    share_prefixes(prompts, [first, second, third, fourth], 2)
    assert second.present.all() and second.experts[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert third.present.all() and third.experts[:, 0, 0].tolist() == [0, 1, 30, 31, 32, 33]
    assert fourth.present.all() and fourth.experts[:, 0, 0].tolist() == [0, 1, 30, 31, 40, 41]
    orphan = laid_out([(2, routes(3))], (2, 2))
    share_prefixes([(9, 9, 9)], [orphan], 2)
    assert orphan.missing == 2


def test_returned_routes_are_those_of_the_layers_that_route() -> None:
    rows = np.zeros((5, 4, 2), np.uint8)
    rows[:, 1], rows[:, 3] = routes(5)[:, 0], routes(5)[:, 1]

    class Completion:
        routed_experts = rows

    class Output:
        outputs = (Completion,)

    (found,) = ReturnedRoutes(ROUTERS).of([Output])
    assert (found.experts == routes(5)).all() and found.present.all()
