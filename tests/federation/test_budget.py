"""The budget of epsilon that a node reports to the hub if its policy releases it, with the epsilon of the ledger."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets")

from chimera.core.errors import RunError
from chimera.engines.federation.wire.frames import Budget, ConnectedNodes, unpack
from chimera.federation.node import budget as reports
from chimera.federation.node.budget import BudgetReports, budget_of
from chimera.federation.policy.requests import Allowed, Spending
from chimera.privacy.accountant import Accountant
from federation.policy_kit import ALICE, BARE, POLICY, Requests, gate_of, policy_of

REPORT = Budget(1.0, 8.0, 1e-5, "rows")


class Port:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def post(self, frame: bytes) -> None:
        self.sent.append(unpack(frame)[0])


def test_a_node_releases_its_budget_only_if_its_policy_says_so() -> None:
    assert budget_of(policy_of(), lambda: 1.0) is None
    assert budget_of(policy_of(POLICY + "epsilon = false"), lambda: 1.0) is None


def test_a_node_reports_the_epsilon_of_its_ledger_also_of_an_update_that_has_not_left(tmp_path: Path) -> None:
    policy = policy_of(POLICY + "epsilon = true")
    with closing(gate_of(tmp_path)) as gate:
        read = budget_of(policy, gate.spent)
        assert read is not None
        assert read() == Budget(0.0, 30.0, 1e-5, "rows")
        requests = Requests()
        start = requests.start()
        assert gate.request(ALICE, start) == Allowed()
        gate.answer(ALICE, start, 10, Spending())
        assert gate.request(ALICE, requests.update()) == Allowed()  # no take_part: the noise of this node only
        assert read().spent == pytest.approx(gate.spent())
        assert gate.spent() >= Accountant([[4.0, 1.0, 1]]).epsilon(1e-5, sampled=False)


def test_updates_without_noise_have_no_epsilon() -> None:
    read = budget_of(policy_of(f"{BARE}[release]\nepsilon = true"), lambda: float("inf"))
    assert read is not None
    assert read() == Budget(None, None, 1e-5, "rows")


def test_a_report_is_sent_once_on_each_connection_and_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "_REPORT_S", 0.0)
    changed = Budget(2.0, 8.0, 1e-5, "rows")
    answers: list[Any] = [REPORT, REPORT, RunError("the ledger cannot be read"), REPORT, changed]
    first, second, old = Port(), Port(), Port()

    async def main() -> None:
        def read() -> Budget:
            if isinstance(answer := answers.pop(0), Exception):
                raise answer
            return answer  # type: ignore[no-any-return]

        told = BudgetReports(read)
        told.joined(first, ConnectedNodes({}, revision=2))  # type: ignore[arg-type]
        with pytest.raises(IndexError):
            await told.run()
        told.parted()
        told.joined(second, ConnectedNodes({}, revision=2))  # type: ignore[arg-type]
        told.joined(old, ConnectedNodes({}, revision=1))  # type: ignore[arg-type]

    asyncio.run(main())
    assert (first.sent, second.sent, old.sent) == ([REPORT, changed], [changed], [])
