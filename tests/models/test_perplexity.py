"""Perplexity weights each predicted token alike, whatever the batches and the lengths of texts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from chimera.models.batch_metrics import Perplexity, tokens_in
from language_kit import T5, TOKENS, made

pytest.importorskip("transformers")
pytestmark = pytest.mark.takes("it imports transformers")

LENGTHS = [16, 3, 9, 2, 12, 5, 2, 16, 7, 4]
MASK = (np.arange(16) < np.array(LENGTHS)[:, None]).astype(np.int64)
IDS = TOKENS[: len(LENGTHS), :16] * MASK
OWN = np.where(MASK, IDS, -100)
ANSWERS = np.where(np.arange(16) >= np.array(LENGTHS)[:, None] // 2, OWN, -100)  # the second half of each text
NEXT = np.concatenate([OWN[:, 1:], np.full((len(IDS), 1), -100)], 1)

BATCHES: dict[str, Any] = {
    "without labels": {"input_ids": IDS, "attention_mask": MASK},
    "own labels": {"input_ids": IDS, "attention_mask": MASK, "labels": OWN},
    "answers": {"input_ids": IDS, "attention_mask": MASK, "labels": ANSWERS},
    "next tokens": (IDS, NEXT),
}


@pytest.fixture(scope="module")
def gpt() -> Any:
    from language_kit import GPT

    return made(**{"from": "config", "config": {**GPT, "initializer_range": 0.5}})


def by_token(gpt: Any, labels: np.ndarray) -> float:
    """Return the exponential of the total loss of all predicted tokens divided by their number."""
    module = gpt.module.eval()
    with torch.no_grad():
        logits = module(input_ids=torch.from_numpy(IDS), attention_mask=torch.from_numpy(MASK)).logits[:, :-1]
    each = torch.nn.functional.cross_entropy(
        logits.reshape(-1, 256).double(), torch.from_numpy(labels[:, 1:]).reshape(-1), reduction="sum"
    )
    return math.exp(float(each) / np.count_nonzero(labels[:, 1:] != -100))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", BATCHES)
@pytest.mark.parametrize("rows", [1, 3, 10])
def test_perplexity_is_that_of_all_tokens_in_any_division_into_batches(gpt: Any, form: str, rows: int) -> None:
    gpt._evaluate_rows = rows
    batch = BATCHES[form]
    batch = {k: torch.from_numpy(v) for k, v in batch.items()} if isinstance(batch, dict) else batch
    expected = by_token(gpt, ANSWERS if form == "answers" else OWN)
    assert gpt.evaluate(batch)["perplexity"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("rows", [1, 3, 10])
def test_a_decoder_with_an_encoder_predicts_its_first_token_too(rows: int) -> None:
    """Also where the labels repeat the inputs, as in copying and denoising."""
    model = made("seq2seq", **{"from": "config", "config": T5})
    model._evaluate_rows = rows
    batch = {
        "input_ids": torch.from_numpy(IDS),
        "attention_mask": torch.from_numpy(MASK),
        "labels": torch.from_numpy(OWN),
    }
    with torch.no_grad():
        loss = model.module.eval()(**batch).loss  # the mean over all tokens
    assert model.evaluate(batch)["perplexity"] == pytest.approx(math.exp(loss), rel=1e-4)


def test_the_order_and_division_of_batches_do_not_matter() -> None:
    """Losses of batches are means over their tokens; so are losses of workers that evaluate parts of the data."""
    losses = np.random.default_rng(3).normal(5, 2, NEXT.shape)
    counted = NEXT != -100

    def of(groups: list[list[int]]) -> float:
        metric = Perplexity()
        for rows in groups:
            metric.add_batch(None, (IDS[rows], NEXT[rows]), float(losses[rows][counted[rows]].mean()), len(rows))
        return metric.result()

    expected = pytest.approx(math.exp(losses[counted].mean()), rel=1e-9)
    assert of([list(range(10))]) == expected
    assert of([[9, 1], [0, 5, 7], [2, 3, 4, 6, 8]]) == expected
    assert of([[row] for row in range(10)]) == expected


def test_batches_without_predicted_tokens_do_not_count() -> None:
    metric = Perplexity()
    metric.add_batch(None, (IDS, np.full_like(IDS, -100)), math.nan, 10)
    assert math.isnan(metric.result())
    metric.add_batch(None, (IDS, NEXT), 1.0, 10)
    assert metric.result() == pytest.approx(math.e)


def test_tokens_are_counted_by_the_form_of_the_batch() -> None:
    labels = np.array([[1, 2, -100], [3, 4, 5]])
    assert tokens_in(None, {"input_ids": np.abs(labels), "labels": labels}, 2) == 3
    assert tokens_in(np.zeros((2, 5, 9)), {"input_ids": np.abs(labels), "labels": labels}, 2) == 5  # a learned prompt
    assert tokens_in(None, {"input_ids": np.zeros_like(labels), "labels": labels}, 2) == 5  # of masked tokens
    assert tokens_in(None, {"input_ids": np.abs(labels), "labels": labels}, 2, shifted=False) == 5
    assert tokens_in(None, {"input_ids": np.zeros_like(labels), "labels": labels}, 2, shifted=True) == 3
    assert tokens_in(None, (labels, labels), 2, shifted=True) == 5  # targets are the next tokens
    assert tokens_in(None, (labels, np.array([0, 1])), 2) == 2
    assert tokens_in(None, (labels, np.array([0.5, 1.5])), 2) == 2
