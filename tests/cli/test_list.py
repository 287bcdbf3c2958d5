"""``chimera list`` shows every name that an experiment file may use."""

import re
import subprocess
import sys
from typing import get_args

import pytest

from chimera.cli.list import FAMILIES, options_of
from chimera.core.registry import Entry, load_object
from chimera.core.signatures import parameters_of
from chimera.strategies.strategy import STRATEGIES, Family


@pytest.mark.parametrize("family", FAMILIES)
def test_every_registered_name_is_listed_with_its_summary(invoke, family):
    result = invoke("list", family)
    assert result.exit_code == 0, result.output
    shown = {line.split()[0]: line for line in result.stdout.splitlines()[2:] if line.strip()}
    entries = load_object(FAMILIES[family]).entries()
    assert shown.keys() == {entry.name for entry in entries}
    for entry in entries:
        assert entry.summary.replace("`", "") in shown[entry.name]


@pytest.mark.parametrize("entry", STRATEGIES.entries(), ids=lambda entry: entry.name)
def test_every_strategy_has_a_family_one_line_and_a_paper(entry):
    assert entry.factory.family in get_args(Family)
    assert re.fullmatch(r"\S.{20,}\.", entry.summary)
    assert (entry.paper == "from no paper") == (entry.name == "single-worker")
    assert re.search(r"\b(19|20)\d\d, \"[^\"]+\"", entry.paper) or entry.name == "single-worker", entry.paper


@pytest.mark.parametrize("family", ["strategies", "topologies", "aggregations", "codecs", "partitions"])
def test_every_listed_option_is_accepted(family, tmp_path):
    (tmp_path / "edges").write_text("0 1\n")
    needed = {"path": str(tmp_path / "edges"), "topologies": ["ring"], "shares": [1.0]}
    registry = load_object(FAMILIES[family])
    for entry in registry.entries():
        parameters = parameters_of(entry.factory)
        required = {name: needed[name] for name, p in parameters.items() if p.default is p.empty}
        for name in parameters.keys() - required.keys():
            registry.create(entry.name, {**required, name: parameters[name].default})


def test_the_citation_of_the_module_is_used_if_it_has_the_title():
    from chimera.strategies.d_psgd import DPSGD

    entry = Entry("x", DPSGD)
    assert (
        entry.summary == "No centre: each worker mixes its model with its neighbours', and steps by its own gradient."
    )
    assert entry.paper.startswith('Lian et al. 2017, "Can Decentralized Algorithms Outperform')
    assert Entry("x", lambda: None).paper == ""


def test_a_strategy_is_listed_with_family_and_paper(invoke):
    line = next(line for line in invoke("list", "strategies").stdout.splitlines() if line.startswith("d-psgd"))
    columns = [column.strip() for column in re.split(r"\s{2,}", line)]
    assert columns[1] == "decentralised"
    assert columns[3].startswith("Lian et al. 2017")


def test_all_families_are_shown_by_default(invoke):
    lines = [line.strip() for line in invoke("list").stdout.splitlines()]
    assert [line for line in lines if line in FAMILIES] == list(FAMILIES)


def test_options_are_listed_with_defaults_or_as_required():
    def plug_in(labels, world_size, *, alpha=0.5, path, kind="a", **more):
        """Do nothing."""

    assert list(options_of(Entry("x", plug_in))) == ["alpha=0.5", "path (required)", "kind='a'"]
    assert list(options_of(Entry("x", plug_in), given=("path",))) == ["alpha=0.5", "kind='a'"]


def test_the_options_of_the_parameter_server_are_shown(invoke):
    assert "shards=1" in invoke("list", "strategies").stdout


def test_an_unknown_family_is_an_error(invoke):
    result = invoke("list", "optimisers")
    assert result.exit_code == 2
    assert result.stderr == f"error: there is no family 'optimisers' to list; families: {', '.join(FAMILIES)}\n"


def test_the_list_needs_no_torch_and_marks_plug_ins_that_do():
    script = "import sys; sys.modules['torch'] = None; from chimera.cli.main import app; app(['list'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "chimera-dml[train], not installed" in done.stdout
    assert "parameter-server" in done.stdout
