"""Log-likelihood and entropy against the plain softmax, and the memory they take."""

import math

import pytest
import torch
from policy_cases import VOCAB, algorithm, gradients, policy, relative_difference, rollouts, tiny_model, train_batch
from torch.utils._python_dispatch import TorchDispatchMode

from minirl.config import Routing
from minirl.policy.likelihood import log_likelihood, log_likelihood_and_entropy


def test_two_words_by_hand():
    """p = (3/4, 1/4): log p and H = -sum p log p."""
    logits = torch.tensor([[math.log(3.0), 0.0]], dtype=torch.float64)
    figures = log_likelihood_and_entropy(logits, torch.tensor([1]))[0]
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    torch.testing.assert_close(figures, torch.tensor([math.log(0.25), entropy], dtype=torch.float64))


def test_large_logits_stay_finite_and_both_scores_agree_to_the_bit():
    logits = torch.tensor([[1000.0, -1000.0, 999.0]])
    both, alone = (score(logits, torch.tensor([2])) for score in (log_likelihood_and_entropy, log_likelihood))
    assert both.isfinite().all() and torch.equal(both[:, :1], alone)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_recompute_is_the_softmax_at_temperature_sequence_by_sequence(temperature):
    """Oracle: the bare model on one unpadded sequence at a time."""
    batch, reference = rollouts(), tiny_model(torch.float64)
    trainer = policy(tiny_model(torch.float64), temperature=temperature, likelihood_chunk_tokens=7)
    old = trainer.recompute(batch, Routing.live)
    for begin, end in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
        with torch.no_grad():
            logits = reference(batch.tokens[None, begin:end]).logits[0] / temperature
        logprobs = logits.log_softmax(-1)
        for place in range(begin, end):
            if batch.response_mask[place]:
                expected = logprobs[place - begin - 1]
                assert math.isclose(old.logprobs[place], expected[batch.tokens[place]], rel_tol=1e-5)
                assert math.isclose(old.entropy[place], -(expected.exp() * expected).sum(), rel_tol=1e-5)
            else:
                assert old.logprobs[place] == old.entropy[place] == 0


class Largest(TorchDispatchMode):
    """Rows of the largest tensor [..., vocabulary] that any operation makes, the head's transposed weight aside."""

    rows = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, list | tuple) else [result]:
            if isinstance(value, torch.Tensor) and value.ndim > 1 and value.shape[-1] == VOCAB and value.shape[0] != 32:
                self.rows = max(self.rows, value.numel() // VOCAB)
        return result


def test_logits_exist_for_one_chunk_at_a_time_forward_and_backward():
    batch = rollouts(groups=8)
    assert batch.response_mask.sum() > 60
    trainer, algo = policy(likelihood_chunk_tokens=9), algorithm()
    with Largest() as forward:
        old = trainer.recompute(batch, Routing.live)
    with Largest() as update:
        trainer.update(train_batch(batch, old, algo), algo)
    assert forward.rows == update.rows == 9
    with Largest() as careless:
        policy(likelihood_chunk_tokens=1000).update(train_batch(batch, old, algo), algo)
    assert careless.rows > 60  # the spy sees what it should


def test_backward_keeps_no_logits():
    """All chunks' logits together would be [tokens, vocabulary] again."""
    batch, trainer, algo, kept = rollouts(groups=8), policy(likelihood_chunk_tokens=9), algorithm(), []
    data = train_batch(batch, trainer.recompute(batch, Routing.live), algo)
    with torch.autograd.graph.saved_tensors_hooks(lambda value: kept.append(value.shape) or value, lambda value: value):
        trainer.update(data, algo)
    assert len(kept) > 50
    assert not [shape for shape in kept if shape and shape[-1] == VOCAB and shape[0] != 32]


@pytest.mark.parametrize("chunk", [1, 5])
def test_the_gradient_does_not_depend_on_the_chunks(chunk):
    batch, algo = rollouts(), algorithm()
    whole, cut = (policy(tiny_model(torch.float64), likelihood_chunk_tokens=size) for size in (1000, chunk))
    data = train_batch(batch, whole.recompute(batch, Routing.live), algo)
    assert relative_difference(gradients(cut, data, algo), gradients(whole, data, algo)) < 1e-12


def test_an_eos_that_is_also_the_padding_token_counts():
    """M12: the last token of every sequence is 0, the id that fills padding."""
    batch, algo = rollouts(), algorithm()
    batch.tokens[batch.cu_seqlens[1:] - 1] = 0
    trainer = policy()
    old = trainer.recompute(batch, Routing.live)
    last = batch.cu_seqlens[1:] - 1
    assert batch.response_mask[last].all() and (old.logprobs[last] < 0).all()
    data = train_batch(batch, old, algo)
    before = gradients(trainer, data, algo)
    batch.response_mask[last] = False
    after = gradients(trainer, train_batch(batch, old, algo), algo)
    assert relative_difference(before, after) > 0.05
