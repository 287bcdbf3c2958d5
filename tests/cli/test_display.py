"""Tests of the displays: their rate, the restored terminal, and correct values."""

import io
import re

import msgspec
import pytest
from rich.console import Console

from chimera.cli.display import QUIET_S, REFRESH_S, LiveDisplay, PlainDisplay, figures_of
from chimera.cli.display_workers import DOTS, NAMED, Rate, queues, rates_of_workers, workers_text
from chimera.cli.outcome import event_line, measure, outcome, seconds
from chimera.training.progress.callback import Event, Progress

SUMMARY = {
    "strategy": "parameter-server",
    "engine": "local",
    "workers": 4,
    "rounds": 1200,
    "epochs": 3.5,
    "samples": 76800,
    "seconds": 3.25,
    "samples_per_second": 23630.0,
    "bytes_up": 300_000_000,
    "bytes_down": 360_000_000,
    "metrics": {"loss": 0.1, "accuracy": 0.9512},
    "lost_workers": 1,
    "stopped_by": "target",
}


def progress(rounds=0, *, metrics=None, fraction=None, loss=0.5, workers=2, lost=(), fill=None, virtual=False):
    return Progress(
        rounds=rounds,
        epochs=rounds / 10,
        samples=rounds * 64,
        seconds=rounds / 100,
        bytes_up=rounds * 1000,
        bytes_down=rounds * 2000,
        loss=loss,
        metrics=metrics or {},
        fraction=fraction,
        workers={f"worker {i}": "lost" if i in lost else "running" for i in range(workers)},
        samples_by_worker={f"worker {i}": rounds * 10 * (i + 1) for i in range(workers)},
        fill=fill or {},
        virtual_time=virtual,
    )


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def screen():
    return Console(file=io.StringIO(), force_terminal=True, width=100, height=30, highlight=False, _environ={})


def test_the_live_view_is_drawn_at_most_ten_times_a_second(screen, clock):
    live = LiveDisplay(screen, "the title", clock=clock)
    with live:
        live.on_start(progress())
        screen.file.truncate(screen.file.seek(0))
        for call in range(5000):  # two seconds at 2,500 rounds a second
            clock.now = call / 2500
            live.on_progress(progress(call))
        assert 2 / REFRESH_S - 2 <= screen.file.getvalue().count("the title") <= 2 / REFRESH_S + 1


def test_the_live_view_shows_the_progress_of_the_run(screen, clock):
    live = LiveDisplay(screen, "the title", clock=clock)
    with live:
        live.on_start(progress())
        clock.now = 1.0
        live.on_progress(progress(50, metrics={"accuracy": 0.93}, fraction=0.25, virtual=True))
        live.on_event(Event("worker lost", 0.4, 40, "worker 1", "killed by signal 9"))
    shown = screen.file.getvalue()
    for text in (
        "25%",
        "round 50",
        "epoch 5.00",
        "500 ms virtual",
        "0.9300",
        "6,400",
        "50.0 kB",
        "100.0 kB",
        "2 running",
    ):
        assert text in shown
    assert "400 ms virtual  round 40  worker lost  worker 1  killed by signal 9" in shown


def test_a_run_without_a_known_end_has_a_progress_bar(screen):
    with LiveDisplay(screen, "t") as live:
        live.on_start(progress(1, fraction=None, loss=None))
    assert "━" in screen.file.getvalue()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_terminal_is_restored_after_the_run(screen, error):
    def run():
        with LiveDisplay(screen, "t") as live:
            live.on_start(progress(7))
            raise error

    with pytest.raises(error):
        run()
    shown = screen.file.getvalue()
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert "round 7" in shown[shown.rindex("\x1b[?25l") :]


def test_plain_lines_are_written_at_evaluations_and_after_long_pauses(clock):
    console = Console(file=io.StringIO(), width=200)
    plain = PlainDisplay(console, "the title", clock=clock)
    plain.on_start(progress())
    plain.on_progress(progress(1))
    plain.on_progress(progress(2, metrics={"accuracy": 0.5}))
    plain.on_progress(progress(3, metrics={"accuracy": 0.5}))
    clock.now = QUIET_S + 1
    plain.on_progress(progress(4, metrics={"accuracy": 0.5}))
    plain.on_progress(progress(5, metrics={"accuracy": 0.5}))
    plain.on_event(Event("worker lost", 2.5, 5, "worker 0"))
    lines = console.file.getvalue().splitlines()
    assert [line[:10].strip() for line in lines] == ["training t", "round 2  e", "round 4  e", "2.5 s  rou"]
    assert "accuracy 0.5000" in lines[1]


def test_a_resumed_run_reports_its_start():
    console = Console(file=io.StringIO(), width=200)
    PlainDisplay(console, "the title").on_start(progress(120))
    assert console.file.getvalue() == "training the title, from round 120\n"


@pytest.mark.parametrize("kind", [PlainDisplay, LiveDisplay])
def test_the_end_is_a_table_with_the_path_of_the_report(kind, screen, tmp_path):
    kind(screen, "the title").finish(SUMMARY, tmp_path / "report.html")
    shown = screen.file.getvalue()
    for text in ("0.9512", "1,200 rounds", "23,630 samples/s", "300.0 MB", "target", "lost workers", "report.html"):
        assert text in shown


def test_lost_workers_are_mentioned_only_if_there_are_any():
    assert ("lost workers", "1") in outcome(SUMMARY)
    assert "lost workers" not in dict(outcome({**SUMMARY, "lost_workers": 0}))


def test_rejected_gradients_are_mentioned_only_if_there_are_any():
    assert ("rejected gradients", "1,204") in outcome({**SUMMARY, "rejected_gradients": 1204})
    assert "rejected gradients" not in dict(outcome(SUMMARY))


def test_the_loss_is_shown_with_that_of_the_unigram_model():
    assert "unigram" not in dict(outcome(SUMMARY))
    of_text = {**SUMMARY, "unigram_loss": 8.5, "metrics": {"loss": 8.25, "accuracy": 0.01}}
    assert dict(outcome(of_text))["unigram"] == "8.5000: the loss is 0.250 nats below"


def test_the_final_figures_keep_their_units_on_a_narrow_terminal(tmp_path):
    narrow = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=44, _environ={})
    summary = {**SUMMARY, "metrics": {"loss": 0.1, "accuracy": 0.9512, "f1": 0.9401, "top 5 accuracy": 0.991}}
    LiveDisplay(narrow, "the title").finish(summary, tmp_path / "report.html")
    lines = narrow.file.getvalue().splitlines()
    parts = {part for line in lines for part in re.split("  +", line.strip())}
    assert all(len(line) <= 44 for line in lines)
    assert {"top 5 accuracy 0.9910", "76,800 samples", "23,630 samples/s", "up 300.0 MB", "down 360.0 MB"} <= parts


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_live_view_shows_what_a_run_waits_for(width):
    screen = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width, _environ={})
    with LiveDisplay(screen, "the title") as live:
        live.on_wait("4 workers on the engine ray")
        assert "the title: starting, waits for 4 workers on the engine ray ..." in screen.file.getvalue()
        live.on_start(progress())
        screen.file.truncate(screen.file.seek(0))
        live.on_wait("its turn in the queue")
    assert "round 0" in screen.file.getvalue()


@pytest.mark.parametrize("kind", [PlainDisplay, LiveDisplay])
@pytest.mark.parametrize("virtual", [True, False])
def test_displays_mark_virtual_times_only(kind, virtual, tmp_path):
    screen = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=140, _environ={})
    with kind(screen, "the title") as display:
        display.on_start(progress(virtual=virtual))
        display.on_progress(progress(5, metrics={"accuracy": 0.5}, virtual=virtual))
        display.on_event(Event("worker lost", 2.5, 5, "worker 0"))
        display.finish({**SUMMARY, "virtual_time": virtual}, tmp_path)
    told = screen.file.getvalue()
    for time in ("50 ms", "2.5 s", "3.2 s"):
        assert (f"{time} virtual" in told) == virtual
        assert time in told
    assert ("23,630 samples/s, virtual" in told) == virtual


def test_few_workers_are_shown_as_dots():
    few = workers_text({"a": "running", "b": "lost", "c": "running"})
    assert few.plain == "workers ●●● 2 running  1 lost"
    assert workers_text({"a": "running"}, unicode=False).plain == "workers o 1 running"
    many = workers_text({str(i): "running" for i in range(DOTS + 1)})
    assert many.plain == f"workers {DOTS + 1} running"


def rated(workers, **options):
    rate, last = Rate(), progress(20, workers=workers, **options)
    rate.add(progress(10, workers=workers))
    rate.add(last)
    return last, rate


def shown(screen, text):
    screen.file.truncate(screen.file.seek(0))
    screen.print(text)
    return re.sub(r"\x1b\[[\d;]*m", "", screen.file.getvalue())


def test_each_running_worker_shows_its_rate(screen):
    line = rates_of_workers(*rated(3, lost=(1,)), width=80).plain
    assert line.split("   ") == ["samples/s worker 0 1,000", "worker 2 3,000"]
    assert rates_of_workers(*rated(1), width=80) is None
    assert rates_of_workers(progress(1), Rate(), width=80) is None


def test_the_rates_of_many_workers_are_summed_up():
    line = rates_of_workers(*rated(NAMED + 1), width=80).plain
    assert line == "samples/s a worker  min 1,000   median 5,000   max 9,000"


def test_each_queue_has_a_fill_bar():
    fill = {"filter 0": 0.0, "filter 1": 0.5, "batcher 0": 1.0}
    assert queues(fill, 80).plain.splitlines() == [
        "queues    filter 0  ────────   0%   filter 1  ━━━━────  50%",
        "          batcher 0 ━━━━━━━━ 100%                          ".rstrip(),
    ]
    assert queues({"batcher 0": 0.25}, 80, unicode=False).plain == "queues    batcher 0 ##------  25%"
    assert queues({}, 80) is None
    many = {f"batcher {i}": i / 10 for i in range(NAMED + 3)}
    assert queues(many, 80).plain == "queues    of 11  min 0%   median 50%   max 100%"


@pytest.mark.parametrize("width", [40, 80, 140])
def test_lines_are_cut_to_the_terminal_width(width):
    fill = {f"{kind} {i}": 0.3 for i in range(4) for kind in ("filter", "batcher")}
    screen = Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False, _environ={})
    last, rate = rated(8, metrics={"loss": 8.4, "accuracy": 0.031}, fill=fill)
    live = LiveDisplay(screen, "the title")
    live._rate = rate
    lines = shown(screen, live._picture(last)).splitlines()
    assert all(len(line) <= width for line in lines)
    parts = [part.strip() for line in lines for part in re.split("   +", line)]
    for whole in ("down 40.0 kB", "worker 7 8,000", "samples/s worker 0 1,000"):
        assert whole in parts
    assert sum("30%" in part for part in parts) == len(fill)


def test_the_rate_covers_the_last_updates():
    rate = Rate()
    assert rate.samples_per_second is None
    for rounds in range(100):
        rate.add(progress(rounds if rounds < 50 else 2 * rounds))
    assert rate.samples_per_second == pytest.approx(6400)


def test_a_rate_without_time_is_none():
    rate = Rate()
    rate.add(progress(1))
    rate.add(progress(1))
    assert rate.samples_per_second is None


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "12 ms"), (1.25, "1.2 s"), (59.94, "59.9 s"), (61, "0:01:01"), (7325.9, "2:02:05")]
)
def test_durations_are_formatted(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1, "0.1000"), (0, "0.0000"), (-2.5, "-2.5000"), (0.0012, "0.0012"), (1.234567e-5, "1.235e-05"),
     (999_999.0, "999999.0000"), (1.234567e9, "1.235e+09"), (float("nan"), "nan"), (float("inf"), "inf")],
)  # fmt: skip
def test_small_and_large_losses_keep_their_digits(value, text):
    assert measure(value) == text
    summary = {**SUMMARY, "metrics": {"loss": value}}
    assert dict(outcome(summary))["metrics"] == f"loss {text}"
    assert dict(figures_of(progress(loss=value), Rate()))["loss"] == text


def test_an_event_is_one_line_without_empty_parts():
    assert event_line(Event("checkpoint", 1.0, 3)) == "1.0 s  round 3  checkpoint"


@pytest.mark.parametrize("virtual", [False, True])
def test_figures_include_tokens_and_utilisation_where_the_model_says_them(virtual):
    rate = Rate()
    for rounds in (0, 100):
        report = msgspec.structs.replace(
            progress(rounds, virtual=virtual), tokens=rounds * 50, flops=rounds * 2e9, peak_flops=1e12
        )
        rate.add(report)
    figures = dict(figures_of(report, rate))
    unit = ", virtual" if virtual else ""
    assert figures[f"tokens/s{unit}"] == "5,000"
    assert figures[f"MFU{unit}"] == "20.0%"
    rate.add(msgspec.structs.replace(report, peak_flops=None))
    assert rate.mfu is None
