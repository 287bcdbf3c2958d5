"""``chimera list`` shows every name that an experiment file may use."""

import subprocess
import sys

import pytest

from chimera.cli.list import FAMILIES, options_of
from chimera.core.registry import Entry, load_object


@pytest.mark.parametrize("family", FAMILIES)
def test_every_registered_name_is_shown_with_what_it_is(invoke, family):
    result = invoke("list", family)
    assert result.exit_code == 0, result.output
    shown = {line.split()[0]: line for line in result.stdout.splitlines()[2:] if line.strip()}
    entries = load_object(FAMILIES[family]).entries()
    assert shown.keys() == {entry.name for entry in entries}
    for entry in entries:
        assert entry.summary.replace("`", "") in shown[entry.name]


def test_all_families_are_shown_by_default(invoke):
    lines = [line.strip() for line in invoke("list").stdout.splitlines()]
    assert [line for line in lines if line in FAMILIES] == list(FAMILIES)


def test_options_come_with_their_defaults_and_what_is_required_says_so():
    def plug_in(labels, world_size, *, alpha=0.5, path, kind="a", **more):
        """Do nothing."""

    assert list(options_of(Entry("x", plug_in))) == ["alpha=0.5", "path (required)", "kind='a'"]
    assert list(options_of(Entry("x", plug_in), given=("path",))) == ["alpha=0.5", "kind='a'"]


def test_the_options_of_the_parameter_server_are_shown(invoke):
    assert "shards=1" in invoke("list", "strategies").stdout


def test_a_family_that_is_not_there_is_a_mistake(invoke):
    result = invoke("list", "optimisers")
    assert result.exit_code == 2
    assert result.stderr == f"error: there is no family 'optimisers' to list; families: {', '.join(FAMILIES)}\n"


def test_the_list_needs_no_torch_and_says_what_does():
    script = "import sys; sys.modules['torch'] = None; from chimera.cli.main import app; app(['list'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "chimera-dml[train], not installed" in done.stdout
    assert "parameter-server" in done.stdout
