"""Answers of nodes to routed actors that cannot be read: the actor is lost, and the error shows the answer."""

from __future__ import annotations

from typing import Any

import pytest

from chimera.core.errors import ActorLost
from chimera.engines.http import HttpEngine, Route
from nodes.cluster import Behaviour, foreign_worker


class Dividing:
    """An actor whose answer can break its reader."""

    routes = {"fit": Route(verb="POST", path="/fit", encode=lambda _: None, decode=lambda _, body: 1 // body["fit"])}  # noqa: RUF012


def bad_gateway(handler: Any, _: Any) -> None:
    handler.answer(502, b"<html>bad gateway", "text/html")


def empty(handler: Any, _: Any) -> None:
    handler.answer(204, b"")


@pytest.mark.parametrize(
    ("behave", "why"),
    [
        (bad_gateway, "an answer of type 'text/html' with status 502: b'<html>bad gateway'"),
        (empty, r"an answer with status 204 cannot be read \(DecodeError\): b''"),
        (lambda *_: {"fit": 0}, "cannot be used: ZeroDivisionError: integer division or modulo by zero"),
    ],
)
def test_an_answer_that_cannot_be_used_is_the_loss_of_its_actor(behave: Behaviour, why: str) -> None:
    with foreign_worker({("POST", "/fit"): behave}) as port, HttpEngine(nodes=[f"http://127.0.0.1:{port}"]) as engine:
        ref = engine.spawn(Dividing).fit()
        with pytest.raises(ActorLost, match=why):
            engine.get(ref)
