"""`chimera.train` in scripts, on terminals, in pipes and in notebooks."""

from __future__ import annotations

import inspect
import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import chimera
from chimera.core.errors import ConfigurationError
from report import comparisons
from terminal_kit import plain, shown_on

EMBEDDING = nn.Sequential(nn.Embedding(9, 1), nn.Flatten(), nn.Linear(2, 2))


def detached(module: Any, batch: Any) -> Any:
    """Return a loss without a gradient."""
    return module(batch[0]).mean().detach()


UNGUARDED = """
import sys
import chimera
from torch import nn

print("started", flush=True)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, inputs):
        return self.layer(inputs)

run = chimera.train(Net(), "digits", engine=ENGINE, rounds=4, evaluate_every=2, PROGRESS)
print(run.stopped_by)
"""


def script(engine: str, progress: str = "") -> str:
    return UNGUARDED.replace("ENGINE", repr(engine)).replace("PROGRESS", progress)


def test_its_signature_is_that_of_the_trainer() -> None:
    signature = inspect.signature(chimera.train)
    assert signature.parameters == inspect.signature(chimera.Trainer).parameters
    for option in ("patience", "keep", "progress"):
        assert f"{option} : " in (chimera.train.__doc__ or "")


@pytest.mark.long
def test_type_checkers_know_the_options(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(
        'import chimera\nreveal_type(chimera.train("mlp", "digits", workers=2, progress=False))\n'
        'chimera.train("mlp", "digits", worker=2)\n'
    )
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", tmp_path / "cache", "user.py"]
    source = Path(chimera.__file__).parents[1]
    found = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "MYPYPATH": str(source)}, capture_output=True, text=True, check=False
    )
    assert "user.py:2: note: Revealed type is" in found.stdout
    assert 'user.py:3: error: Unexpected keyword argument "worker"' in found.stdout
    assert "Found 1 error" in found.stdout


def test_errors_of_users_stay_exceptions(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="parameter-server"):
        chimera.train("mlp", "digits", strategy="parameter-serve", out=tmp_path / "run")


@pytest.mark.parametrize(
    ("model", "data", "options", "message"),
    [
        (nn.Linear(64, 10), "digits", {"loss": nn.MSELoss()}, r"option of the model: chimera\.TorchModel\(module, loss="),
        ("mlp", "digits", {"metrics": ["f1"]}, r'\{"name": ..., "metrics": ...\} for a named model'),
        ("mlp", "digits", {"lr": 0.1}, r'option of the optimizer: optimizer=\{"name": ..., "lr": ...\}'),
        ("mlp", "digits", {"epoch": 3}, "no option 'epoch'; did you mean 'epochs'"),
        ("mlp", "table.csv", {}, r"unknown data set 'table\.csv'; for the data at this path, give a pathlib\.Path"),
        ("mlp", ([[1.0], [2.0], [3.0]] * 5, ["same"] * 15), {}, "all samples have the same class"),
        (chimera.TorchModel(nn.Linear(64, 10), step=detached), "digits", {}, "no gradient: compute it by torch"),
        (EMBEDDING, (np.ones((9, 2), int), [0, 1, 0] * 3), {}, "keep_integers"),
    ],
)  # fmt: skip
def test_mistakes_name_what_to_write(
    model: Any, data: Any, options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("a,y\n1,0\n2,1\n")
    with pytest.raises(ConfigurationError, match=message):
        chimera.train(model, data, engine="simulated", rounds=1, progress=False, **options)


def test_the_suffix_of_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = chimera.train("mlp", "iris", engine="simulated", rounds=1, progress=False)
    with pytest.raises(ConfigurationError, match=r"name the file model\.safetensors, or call torch\.save"):
        run.save("model.pt")
    assert not Path("model.pt").exists()


@pytest.mark.parametrize(
    ("engine", "stdin"),
    [
        pytest.param(engine, stdin, marks=[] if quick else pytest.mark.long, id=f"{'stdin' if stdin else 'file'}-{engine}")
        for engine, stdin, quick in [
            ("local", False, True), ("local", True, False), ("simulated", True, False), ("simulated", False, False),
            ("ray", False, False), ("ray", True, False),
        ]
    ],
)  # fmt: skip
@pytest.mark.takes("it starts processes that import torch")
def test_a_script_needs_no_guard_and_prints_nothing_in_a_pipe(tmp_path: Path, engine: str, stdin: bool) -> None:
    (tmp_path / "user.py").write_text(script(engine))
    command = [sys.executable, "-" if stdin else "user.py"]
    given = script(engine) if stdin else None
    done = subprocess.run(command, cwd=tmp_path, input=given, capture_output=True, text=True, check=True)
    assert done.stdout == "started\nrounds\n"


@pytest.mark.takes("it starts processes that import torch")
@pytest.mark.parametrize("progress", ["", pytest.param("progress=False", marks=pytest.mark.long)])
def test_a_terminal_shows_the_display_unless_it_is_turned_off(tmp_path: Path, progress: str) -> None:
    terminal, program = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script("simulated", progress)],
        cwd=tmp_path, env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}, stdout=program, stderr=program,
    )  # fmt: skip
    os.close(program)
    shown = plain(shown_on(terminal))
    assert process.wait() == 0
    assert ("starting, waits for" in shown) == ("report" in shown) == (not progress)
    if progress:
        assert shown.split() == ["started", "rounds"]


@pytest.mark.takes("it starts processes that import torch")
def test_ctrl_c_names_the_call_that_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = """
        import os, signal
        import chimera

        class Interrupt(chimera.Callback):
            def on_progress(self, progress):
                if progress.rounds == 3:
                    os.kill(os.getpid(), signal.SIGINT)

        chimera.train("logistic-regression", "digits", engine="simulated", rounds=9, log_every=1, callbacks=[Interrupt()])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(interrupted)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGINT
    *_, kind, note = done.stderr.strip().splitlines()
    assert kind == "KeyboardInterrupt"
    options = eval(f"dict({note.partition('again with ')[2]})")
    monkeypatch.chdir(tmp_path)
    run = chimera.train("logistic-regression", "digits", engine="simulated", rounds=9, **options)
    assert run.cost.rounds == 9


@pytest.mark.long
@pytest.mark.skipif(
    find_spec("nbclient") is None or find_spec("ipykernel") is None,
    reason="nbclient or ipykernel is missing: make install",
)
def test_a_notebook_shows_one_line_that_is_updated_and_the_run(tmp_path: Path) -> None:
    cells = [
        script("local").replace('print("started", flush=True)', "").replace("print(run.stopped_by)", ""),
        "run",
        "off = chimera.train('logistic-regression', 'digits', engine='simulated', rounds=2, progress=False)",
        "print(chimera.Comparison.load('comparison').table())",
    ]
    comparisons.make(tmp_path / "comparison", cells=2)
    command, given = [sys.executable, Path(__file__).with_name("execute_notebook.py")], json.dumps(cells)
    done = subprocess.run(command, cwd=tmp_path, input=given, capture_output=True, text=True, check=True)
    training, shown, off, table = json.loads(done.stdout)
    (line,) = training
    assert line["output_type"] == "display_data"
    assert 'value="1.0000"' in line["data"]["text/html"]
    assert "stopped by rounds" in line["data"]["text/html"]
    assert "<table>" in shown[0]["data"]["text/html"]
    assert "data:image/svg+xml" in shown[0]["data"]["text/html"]
    assert off == []
    assert [one["output_type"] for one in table] == ["stream"]  # the returned text only
    assert "accuracy" in table[0]["text"]
