"""``chimera hub demo``: one command starts a federation, and another trains on it."""

from __future__ import annotations

import json
import runpy
import signal
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

pytest.importorskip("websockets")

from chimera.cli.main import app
from federation.processes import Process

pytestmark = pytest.mark.long
LIMIT_S = 60


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_the_demo_trains_and_leaves_no_process(tmp_path: Path, end: int) -> None:
    folder = tmp_path / "demo"
    demo = Process("chimera", "hub", "demo", folder)
    try:
        assert "hospital-a, hospital-b, hospital-c" in demo.line()
        assert str(folder / "experiment.toml") in demo.line()
        children = psutil.Process(demo.process.pid).children(recursive=True)
        assert len(children) == 4
        command = ["train", str(folder / "experiment.toml"), "--out", str(tmp_path / "run"), "--json"]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["metrics"]["accuracy"] > 0.9
        demo.process.send_signal(end)
        assert psutil.wait_procs(children, timeout=LIMIT_S)[1] == []
        assert demo.process.wait(LIMIT_S) in (130, -signal.SIGKILL)
    finally:
        demo.kill()


def test_the_example_trains(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "federation" / "train.py"
    runpy.run_path(str(example), run_name="__main__")
    assert float(capsys.readouterr().out.split()[-1]) > 0.9
