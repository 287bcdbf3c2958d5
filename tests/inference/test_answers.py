"""Each query gets its own answer, even if the model fails on others."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.inference.models import answers
from chimera.inference.models.answers import tokens_of


class _Model:
    """Answers by a function of the whole batch."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def predict(self, queries: list[Any]) -> Any:
        self.calls += 1
        return self.function(queries)


def _inverse(queries: list[Any]) -> list[float]:
    return [1 / query for query in queries]


@given(st.lists(st.integers(-3, 3), max_size=12))
def test_exactly_the_queries_that_fail_have_errors(queries: list[int]) -> None:
    found = answers(_Model(_inverse), queries)
    assert found == [{"result": 1 / q} if q else {"error": "ZeroDivisionError: division by zero"} for q in queries]


def test_a_batch_that_succeeds_is_asked_once() -> None:
    model = _Model(_inverse)
    answers(model, [1, 2, 3])
    assert model.calls == 1
    answers(model, [1, 0])
    assert model.calls == 4


def test_no_queries_ask_nothing() -> None:
    model = _Model(_inverse)
    assert answers(model, []) == []
    assert model.calls == 0


def test_an_exception_in_place_of_a_result_is_that_query_s_error_alone() -> None:
    model = _Model(lambda queries: [ValueError("odd\nsecond line") if q % 2 else q for q in queries])
    assert answers(model, [1, 2]) == [{"error": "ValueError: odd"}, {"result": 2}]
    assert model.calls == 1


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        ([1, 2, 3], "predict returned 3 results for 1 queries"),
        ([], "predict returned 0 results for 1 queries"),
        (None, "predict returned a NoneType, not a list"),
        ({"a": 1}, "predict returned a dict, not a list"),
        ("text", "predict returned a str, not a list"),
        ([math.nan], "the result contains nan, which is not a finite number"),
        ([{"deep": [np.float32("inf")]}], "the result contains inf"),
        ([np.array([1.0, np.nan])], "the result contains nan"),
        ([object()], "the result contains a object, which JSON cannot represent"),
        ([{(1, 2): 3}], "has a key of type tuple"),
        ([b"bytes"], "the result contains a bytes"),
    ],
)
def test_what_is_no_result_is_an_error(returned: Any, error: str) -> None:
    found = answers(_Model(lambda queries: returned), ["a", "b"])
    assert len(found) == 2
    assert all(error in answer["error"] for answer in found) or len(returned or ()) == 2


def test_a_model_that_loses_a_result_still_answers_one_by_one() -> None:
    model = _Model(lambda queries: [q for q in queries if q != "lost"])
    found = answers(model, ["a", "lost", "b"])
    assert [sorted(answer) for answer in found] == [["result"], ["error"], ["result"]]


def test_results_become_plain() -> None:
    import torch
    from PIL import Image

    values = [
        *(np.int64(3), np.float32(0.5), np.bool_(True), np.str_("x"), np.arange(2), (1, 2)),
        *(torch.ones(2, dtype=torch.bfloat16), {1: np.float64(2)}, None, True),
    ]
    found = answers(_Model(lambda queries: values), list(range(len(values))))
    results = [answer["result"] for answer in found]
    assert results == [3, 0.5, True, "x", [0, 1], [1, 2], [1.0, 1.0], {"1": 2.0}, None, True]
    assert json.loads(json.dumps(results)) == results
    (picture,) = answers(_Model(lambda queries: [Image.new("L", (2, 2))]), [0])
    assert picture["result"].startswith("data:image/png;base64,")


def test_results_may_be_an_array_or_a_tensor() -> None:
    import torch

    for made in (np.array([[1, 2], [3, 4]]), torch.tensor([[1, 2], [3, 4]])):
        assert answers(_Model(lambda queries, made=made: made), [0, 1]) == [{"result": [1, 2]}, {"result": [3, 4]}]


def test_a_result_that_contains_itself_is_an_error() -> None:
    circle: list[Any] = []
    circle.append(circle)
    (answer,) = answers(_Model(lambda queries: [circle]), [0])
    assert "nested too deeply" in answer["error"]


def test_errors_are_one_line_of_bounded_length() -> None:
    def shout(queries: list[Any]) -> Any:
        raise RuntimeError("x" * 10_000 + "\nmore")

    (answer,) = answers(_Model(shout), [0])
    assert len(answer["error"]) == 500


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"result": {"text": "a", "prompt_tokens": 3, "generated_tokens": 4}}, 7),
        ({"result": {"text": "", "prompt_tokens": 0, "generated_tokens": 0}}, 1),
        ({"result": {"prompt_tokens": -9, "generated_tokens": 4}}, 1),
        ({"result": {"prompt_tokens": 1, "generated_tokens": 1 << 60}}, 1),
        ({"result": {"prompt_tokens": True, "generated_tokens": 2.5}}, 1),
        ({"result": "cat"}, 1),
        ({"error": "no"}, 1),
    ],
)
def test_a_result_that_reports_no_sensible_tokens_counts_as_one(answer: dict[str, Any], tokens: int) -> None:
    assert tokens_of(answer) == tokens
