"""Reports and comparisons in a browser: wide and narrow windows, without broken or clipped text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser_kit import Tab, browser
from chimera.report.comparison_page.page import write_comparison
from chimera.report.html import write_report
from layout_kit import defects
from report import comparisons
from report.conftest import RunFolders

pytestmark = [pytest.mark.long, pytest.mark.takes("it starts a browser")]


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened


@pytest.mark.parametrize("virtual", [False, True])
def test_a_report_is_legible_in_wide_and_narrow_windows(tab: Tab, runs: RunFolders, virtual: bool) -> None:
    folder = runs.make(engine="simulated" if virtual else "local", virtual_time=virtual)
    experiment = folder / "experiment.toml"
    experiment.write_text(experiment.read_text().replace("epochs = 2", "epochs = 2\nactivation_checkpointing = false"))
    assert defects(tab, write_report(folder)) == []


def test_a_comparison_is_legible_in_wide_and_narrow_windows(tab: Tab, tmp_path: Path) -> None:
    page = write_comparison(comparisons.make(tmp_path, cells=6, bandwidths=(1e7, 1e8)))
    assert defects(tab, page) == []
