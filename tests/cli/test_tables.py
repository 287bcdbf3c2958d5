"""The tables of the commands on terminals of 80, 100 and 140 columns, and in a pipe."""

import json
import re

import pytest
from rich.console import Console

import chimera
from chimera.cli.grid_display import LiveGrid
from chimera.cli.infer_views import COLUMNS, view
from chimera.cli.jobs import jobs_table
from chimera.report.comparison_page.table import as_rich
from chimera.training.comparison.grid import grid_of
from chimera.training.comparison.variation import read_variations
from chimera.training.experiment.experiment import Experiment
from chimera.training.progress.callback import Progress
from report.comparisons import make
from terminal_kit import WIDTHS, check_table, lines_at, lines_in_pipe, run_in_terminal

REASON = "the model factory '/data/jobs/2/code/mine.py:network' raised ValueError: " + "784 inputs, rows of 64, " * 8
CELLS = "parameter-server,all-reduce,fed-buff:buffer=2,d-psgd"


def job(number, state="done", reason="", name="digits"):
    return {
        "job": str(number), "name": name, "user": "ada", "state": state, "progress": 0.5, "workers": 2,
        "since_s": 1.7e9, "reason": reason,
    }  # fmt: skip


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Return four cells that were compared to a target, of which one failed."""
    folder = tmp_path_factory.mktemp("compared")
    make(folder, cells=4, bandwidths=(12.5e6,), failed=(2,))
    return json.loads((folder / "comparison.json").read_text())


@pytest.mark.parametrize("width", WIDTHS)
def test_one_failed_job_hides_no_column_of_the_others(width):
    table = jobs_table([job(1), job(2, "failed", REASON), job(3, "queued")])
    lines = lines_at(width, table)
    check_table(lines, table)
    assert {"job", "name", "user", "state", "progress", "workers", "since"} <= set(lines[0].split())
    assert [line.split()[:4] for line in lines if re.match(r" ? ?\d", line)] == [
        ["1", "digits", "ada", "done"], ["2", "digits", "ada", "failed"], ["3", "digits", "ada", "queued"],
    ]  # fmt: skip
    below = [line.strip() for line in lines if line.startswith("    ")]
    assert " ".join(below) == f"reason: {REASON}".rstrip()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_long_job_name_does_not_hide_the_states(width):
    lines = lines_at(width, jobs_table([job(1, name="a" * 200), job(2)]))
    assert {"state", "progress", "name"} <= set(lines[0].split())
    assert "".join(re.findall(r"\ba+\b(?!\S)", "\n".join(lines).replace("ada", ""))) == "a" * 200


def test_piped_jobs_have_one_complete_line_each():
    lines = lines_in_pipe(jobs_table([job(1), job(2, "failed", REASON)]))
    assert len(lines) == 3
    assert lines[0].split() == ["job", "name", "user", "state", "progress", "workers", "since", "reason"]
    assert lines[2].endswith(REASON.rstrip())


@pytest.mark.parametrize("width", WIDTHS)
def test_comparison_tables_name_each_row_and_cut_no_heading(width, comparison):
    table = as_rich(comparison)
    lines = lines_at(width, table)
    check_table(lines, table)
    assert any("error: the codec's <vector> is too long" in line for line in lines)
    assert {"cell", "accuracy", "state"} <= set(" ".join(lines[:2]).split())
    assert "virtual" in " ".join(lines[:2])


def test_piped_comparison_tables_have_every_column(comparison):
    heading, *rows = lines_in_pipe(as_rich(comparison))
    assert re.split("  +", heading) == [column.heading for column in as_rich(comparison).columns]
    assert len(rows) == 4


def progress(metrics):
    return Progress(
        rounds=12, epochs=1.0, samples=1000, seconds=0.679, bytes_up=17_300_000, bytes_down=17_300_000, loss=0.0537,
        metrics=metrics, fraction=0.5, workers={}, virtual_time=True,
    )  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
def test_the_live_comparison_table_shows_the_progress_of_each_cell(width, experiment):
    cells = grid_of(Experiment.load(experiment), read_variations([f"strategy={CELLS}"]))
    grid = LiveGrid(Console(width=width, height=40))
    grid.on_cells(cells)
    grid.on_progress(cells[0], progress({"loss": 0.1, "accuracy": 0.9666, "precision": 0.95, "recall": 0.94}))
    lines = lines_at(width, grid.picture())
    for cell in cells:
        assert any(line.startswith(f"{cell.label} ") for line in lines)
    told = set(" ".join(lines).split())
    assert {"state", "accuracy", "0.9666", "679", "ms", "virtual", "time"} <= told


ROW = {
    "job": "1", "name": "sentences-of-the-whole-corpus", "state": "running", "processed": 1995, "finished": 1995,
    "queries": 4000, "rate": 120.0, "errors": 0, "weight": 1.0, "batch_size": 16, "worker": "w0", "models": 2,
    "role": "coordinator", "host": "a-host-of-the-cluster-with-a-name.example.org", "pid": 13458, "epoch": 1,
    "address": "http://127.0.0.1:40123", "heartbeat_age_s": 0.12,
    **{f"{name}_s": 0.01 for name in ("mean", "std", "median", "p90", "p95", "p99")},
}  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("what", COLUMNS)
def test_inference_views_fit_the_terminal(width, what):
    table = view(what, [ROW, {**ROW, "job": "2", "name": "x"}])
    check_table(lines_at(width, table), table)


def test_the_age_of_the_last_heartbeat_has_a_unit():
    assert "0.1 s ago" in lines_in_pipe(view("members", [ROW]))[1]


def test_the_plug_in_list_is_as_complete_on_a_terminal_as_in_a_pipe(invoke, tmp_path):
    code, lines = run_in_terminal(80, "list", "topologies", cwd=tmp_path)
    assert code == 0
    told = " ".join(" ".join(lines).split())
    for line in invoke("list", "topologies").stdout.splitlines()[2:]:
        for part in re.split("  +", line.strip()):
            assert part in told or not part


@pytest.mark.long
def test_compare_and_train_on_real_terminals(experiment, tmp_path):
    grid = ("compare", experiment, "--vary", f"strategy={CELLS}", "--out", "out")
    for width, more in zip(WIDTHS, ((), ("--resume",), ("--resume",)), strict=True):
        code, lines = run_in_terminal(width, *grid, *more, cwd=tmp_path)
        assert code == 0
        comparison = json.loads((tmp_path / "out" / "comparison.json").read_text())
        begins = max(i for i, line in enumerate(lines) if line.lstrip().startswith("#") or "#  cell" in line)
        check_table(lines[max(begins - 1, 0) :], as_rich(comparison))
    code, lines = run_in_terminal(80, "train", experiment, "--out", "alone", cwd=tmp_path)
    assert code == 0
    assert "starting, waits for 2 workers on the engine simulated ..." in "\n".join(lines)
    assert any(re.match(r"time +\d+ ms virtual +", line) for line in lines)


def test_a_run_reports_to_callbacks_what_it_waits_for(experiment, tmp_path):
    class CallPending(chimera.Callback):
        def __init__(self):
            self.told = []

        def on_wait(self, what):
            self.told.append(what)

        def on_start(self, progress):
            self.told.append("start")

    waits = CallPending()
    Experiment.load(experiment).trainer(callbacks=[waits], out=tmp_path / "out").fit()
    assert waits.told == ["the engine simulated", "the data digits", "2 workers on the engine simulated", "start"]
