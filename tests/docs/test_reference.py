"""The generated reference: each option, command, error and public name has a page that states what the code does."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs/_extensions"))

from chimera_reference import api_names, commands, errors, experiment_file, generation, glossary, plugins  # noqa: E402
from chimera_reference.api import as_restructured_text  # noqa: E402
from chimera_reference.docstrings import parsed  # noqa: E402
from chimera_reference.examples import example_of  # noqa: E402
from chimera_reference.markup import cell, inline  # noqa: E402
from chimera_reference.names import imported  # noqa: E402
from chimera_reference.options import Option  # noqa: E402

from chimera.cli.failure import exit_code_of  # noqa: E402
from chimera.cli.list import FAMILIES  # noqa: E402
from chimera.core.errors import ConfigurationError, MissingExtraError, RunError, UnknownNameError  # noqa: E402
from chimera.core.stop_signals import Terminated  # noqa: E402
from chimera.training.experiment.experiment import Experiment  # noqa: E402
from chimera.training.experiment.validation import check  # noqa: E402

TYPES = re.compile(
    r"(any|string|boolean|integer|number|path|(table|array)( of \w+)?|function, from Python only|\"[^\"]+\"|-?\d+)( or |$)"
)
PLUGINS = [(family, entry.name) for family in FAMILIES for entry in plugins.family_of(family)]
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src/chimera").rglob("*.py")))
ENTRIES = ("experiment-file", "plug-ins", *FAMILIES, "cli", "api", "errors", "glossary")
"""The pages that the index of the reference lists; they lead to all others."""
COMMANDS = [*commands.commands()]
BASE = {"data": {"name": "iris"}, "model": {"name": "logistic-regression"}}


@pytest.fixture(scope="module")
def pages():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of plug-ins of other distributions
        return generation.pages(ROOT / "docs")


def options_of(family: str, name: str) -> list[Option]:
    entry = next(entry for entry in plugins.family_of(family) if entry.name == name)
    return plugins.options_in_files(family, entry)


def check_option(option: Option) -> None:
    assert option.effect.strip(), f"the docstring does not describe {option.name!r}"
    assert option.default, option
    assert TYPES.sub("", option.type) == "", f"{option.name} has the type {option.type!r}, which is not one of TOML"


# --- options


@pytest.mark.parametrize(("family", "name"), PLUGINS)
def test_each_option_of_a_plug_in_has_a_type_a_default_and_an_effect(family, name):
    for option in options_of(family, name):
        check_option(option)


@pytest.mark.parametrize("table", experiment_file.NESTED, ids=lambda table: table.path)
def test_each_key_of_a_table_inside_another_one_has_a_type_a_default_and_an_effect(table):
    for option in experiment_file.nested_options(table):
        check_option(option)


def test_each_key_of_train_has_a_type_a_default_and_an_effect():
    for option in experiment_file.train_options():
        check_option(option)


def test_the_keys_of_train_are_those_that_an_experiment_accepts():
    with pytest.raises(ConfigurationError) as caught:
        Experiment({**BASE, "train": {"no such key": 1}})
    accepted = str(caught.value).rpartition("keys: ")[2].split(", ")
    assert [option.name for option in experiment_file.train_options()] == accepted


@pytest.mark.parametrize("table", experiment_file.NESTED, ids=lambda table: table.path)
def test_a_table_inside_another_one_is_an_option_of_it(table):
    outer, inner, *_ = table.path.split(".")
    known = {
        "train": experiment_file.train_options(),
        "strategy": options_of("strategies", "fed-avg"),
        "engine": options_of("engines", "simulated"),
    }
    assert inner in {option.name for option in known[outer]}


def test_the_example_of_the_experiment_file_is_one(pages):
    check(experiment_file.example())
    assert experiment_file.example().to_toml().startswith('[data]\nname = "digits"')
    assert "- `worker 2`, `server 0`, `edge 1`, `any worker`" in pages["experiment-file.md"]  # parts of a fault
    for name in ("data", "model", "train", "strategy", "codec", "partition", "engine"):
        assert f"## `[{name}]`\n" in pages["experiment-file.md"]


# --- plug-ins


@pytest.mark.parametrize(("family", "name"), [each for each in PLUGINS if each[0] != "policies"])
def test_the_example_of_a_plug_in_is_accepted(family, name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("graph.csv").write_text("".join(f"{node} {(node + 1) % 8} 0.25\n" for node in range(8)))
    tables = example_of(family, name, options_of(family, name))
    workers = {"train": {"workers": 8}} if family in ("strategies", "topologies", "aggregations", "codecs") else {}
    with contextlib.suppress(MissingExtraError):
        check(Experiment({**BASE, **workers, **tables}))


@pytest.mark.parametrize("family", FAMILIES)
def test_each_plug_in_of_a_family_has_a_section_with_its_options(family, pages):
    page = pages[f"{family}.md"]
    for entry in plugins.family_of(family):
        section = page.partition(f"({family}-{entry.name})=\n## {entry.name}\n")[2].partition("\n## ")[0]
        assert entry.summary.partition("`")[0][:20] in section
        assert "Example:" in section
        for option in plugins.options_in_files(family, entry):
            assert f"| `{option.name}` |" in section


def test_an_option_without_a_description_is_found():
    with pytest.raises(AssertionError, match="does not describe 'ratio'"):
        check_option(Option("ratio", "number", "0.1", "", None))
    with pytest.raises(AssertionError, match="not one of TOML"):
        check_option(Option("ratio", "ndarray", "0.1", "a share", None))


# --- the command line


@pytest.mark.parametrize(("full", "command"), COMMANDS, ids=[full for full, _ in COMMANDS])
def test_a_command_has_a_section_with_its_options(full, command, pages):
    group = full.split()[1]
    page = pages.get(f"cli-{group}.md", pages["cli.md"])
    section = page.partition(f"## `{full}`\n")[2].partition("\n## ")[0]
    assert command.help
    assert inspect.cleandoc(command.help).partition("'")[0].partition("[")[0][:40] in section
    for parameter in command.params:
        if parameter.name != "help" and not getattr(parameter, "hidden", False):
            assert parameter.help, f"{full} {parameter.opts[0]} has no help"
            if parameter.param_type_name == "option":
                assert f"`{parameter.opts[0]}" in section


def test_exit_codes_are_those_of_the_program(capsys):
    listed = {int(code) for code, _ in commands.EXIT_CODES}
    errors_of_runs = (
        ConfigurationError("a mistake"),
        RunError("a failure"),
        ValueError("of user code"),
        KeyboardInterrupt(),
    )
    assert {exit_code_of(error) for error in (*errors_of_runs, Terminated())} | {0} == listed


def test_commands_and_options_in_a_help_text_become_code():
    page = "\n".join(commands.pages().values())
    assert "see `chimera list engines`." in page
    assert not re.search(r"(?<![`\w-])--[a-z]+(?![^|]*`)", re.sub(r"`[^`]*`", "", page))


# --- the Python interface


def test_each_public_name_has_a_page(pages):
    listed = {name for page in api_names.api_pages() for name in page.names}
    for page in api_names.api_pages():
        assert all(
            re.search(rf"^\.\. auto\w+:: {name}$", pages[f"{page.file}.md"], re.MULTILINE) for name in page.names
        )
    assert set(api_names.all_public_names()) <= listed
    text = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    bases = text.partition("For plug-ins")[2]
    for name in re.findall(r"`([A-Z]\w+)`", bases.partition("Keys of experiment files")[0]):
        assert any(each.endswith(f".{name}") for each in listed), name


@pytest.fixture(scope="module")
def classes():
    """Return the names that the sources define as classes, import, or annotate."""
    imports = " ".join(re.findall(r"\bimport (.*)", SOURCE))
    return {*re.findall(r"\bclass (\w+)", SOURCE), *re.findall(r"\b(\w+): ", SOURCE), *re.findall(r"\w+", imports)}


@pytest.mark.parametrize("page", api_names.api_pages(), ids=lambda page: page.file)
def test_classes_that_the_docstrings_of_a_page_name_exist(page, classes):
    for name in page.names:
        for found in re.findall(r"(?<!`)`([A-Z][A-Za-z]+)`(?!`)", inspect.getdoc(imported(name)) or ""):
            assert found in classes, f"{name}: `{found}` means nothing"


def test_sections_of_a_docstring_become_fields_and_links():
    from chimera.training.trainer import Trainer

    text = "Train.\n\nSee `Trainer`, *x*, docs/how-to/text.md.\n\nParameters\n----------\na, b : the\n    `fit`.\n"
    made = as_restructured_text(text, Trainer, {"a": "int"})
    assert ":py:obj:`Trainer <chimera.Trainer>`, \\*x\\*, :doc:`/how-to/text`." in made
    assert ":param a: the\n    :py:obj:`fit <chimera.Trainer.fit>`.\n:type a: int\n:param b: the" in made


def test_a_docstring_is_split_into_its_parts():
    text = "Sum.\n\nMore.\n\nParameters\n----------\na, b : one\n    more.\n*rest : others\n\nNotes\n-----\nA note.\n"
    found = parsed(text)
    assert (found.summary, found.text, found.sections) == ("Sum.", "More.", {"Notes": "A note."})
    assert [(item.names, item.text) for item in found.items["Parameters"]] == [
        (("a", "b"), "one\nmore."),
        (("*rest",), "others"),
    ]


def test_text_keeps_its_meaning_in_markdown():
    assert inline("``a_b`` * x_1 <tag> [0, 1] `Name`") == "`a_b` \\* x_1 \\<tag\\> \\[0, 1\\] `Name`"
    assert cell("``a|b`` or\nc") == "`a\\|b` or c"
    assert inline("see docs/how-to/text.md.") == "see [docs/how-to/text.md](../../how-to/text.md)."


# --- errors and terms


@pytest.mark.parametrize("error", api_names.error_classes(), ids=lambda error: error.__name__)
def test_an_error_has_a_meaning_a_remedy_and_the_exit_code_of_the_command_line(error, pages):
    arguments = {UnknownNameError: ("codec", "x", ["y"]), MissingExtraError: ("it", "module", "extra")}.get(
        error, ("it",)
    )
    with contextlib.redirect_stderr(io.StringIO()):
        code = exit_code_of(error(*arguments))
    section = pages["errors.md"].partition(f"## `{error.__name__}`\n")[2].partition("\n## ")[0]
    assert f"- Exit code: {code}\n- What to do: {errors.REMEDIES[error.__name__]}" in section


def test_remedies_are_for_errors_that_exist():
    assert list(errors.REMEDIES) == [error.__name__ for error in api_names.error_classes()]


def test_the_glossary_has_the_terms_of_both_documents():
    found = glossary.terms(ROOT / "docs")
    assert found["driver"] == "the process that runs the strategy"
    assert found["quorum"] == "share of awaited results"
    assert found["engine"] == "where actors run"
    assert found["straggler"] == "a worker slower than the others"  # of the style guide
    assert list(found) == sorted(found, key=str.lower)


# --- files of the pages


def test_pages_are_written_once_and_removed_when_they_no_longer_exist(tmp_path):
    for name in ("style.md", "architecture.md"):
        (tmp_path / name).write_text((ROOT / "docs" / name).read_text(encoding="utf-8"), encoding="utf-8")
    paths = generation.write(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in paths}
    old = paths[0].with_name("old.md")
    old.write_text("# Old\n")
    assert generation.write(tmp_path) == paths
    assert {path: path.stat().st_mtime_ns for path in paths} == times
    assert not old.exists()


def test_links_between_pages_lead_to_pages_and_labels(pages):
    labels = {label for text in pages.values() for label in re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)}
    for name, text in pages.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            file, _, label = target.partition("#")
            if file.startswith("http"):
                continue
            if file.startswith("../"):
                assert (ROOT / "docs" / generation.FOLDER / file).resolve().exists(), f"{name}: {target}"
            elif file:
                assert file in pages, f"{name}: {target}"
            else:
                assert label in labels, f"{name}: {target}"


def test_each_page_is_reached_from_the_entries_of_the_index(pages):
    reached = {f"{page}.md" for page in ENTRIES}
    for page in ENTRIES:
        listed = pages[f"{page}.md"].partition("```{toctree}\n:hidden:\n")[2].partition("```")[0]
        reached |= {f"{name}.md" for name in listed.split()}
    assert reached == pages.keys()


@pytest.mark.long
@pytest.mark.takes("it builds the site")
def test_sphinx_renders_the_pages_without_a_warning(tmp_path):
    for module in ("sphinx", "myst_nb"):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed: pip install 'chimera-dml[docs]'")
    source = tmp_path / "docs"
    source.mkdir()
    for name in ("style.md", "architecture.md", "architecture.png"):
        (source / name).write_bytes((ROOT / "docs" / name).read_bytes())
    for folder in ("explanation", "how-to", "reference", "tutorials"):
        for page in (ROOT / "docs" / folder).rglob("*.md"):
            stub = source / page.relative_to(ROOT / "docs")
            stub.parent.mkdir(parents=True, exist_ok=True)
            stub.write_text(f"---\norphan: true\n---\n# {page.stem}\n", encoding="utf-8")  # a target of links
    entries = "\n".join(f"reference/generated/{page}" for page in ENTRIES)
    (source / "index.md").write_text(f"# Reference\n\n```{{toctree}}\n{entries}\n```\n")
    for name in ("style.md", "architecture.md"):
        (source / name).write_text("---\norphan: true\n---\n" + (source / name).read_text(encoding="utf-8"))
    (source / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'docs/_extensions')!r})\n"
        "extensions = ['myst_nb', 'chimera_reference']\nmyst_heading_anchors = 4\nnb_execution_mode = 'off'\n"
        "suppress_warnings = ['myst.xref_missing']\n"
    )
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-n", "-W", "--keep-going", "-q", "-b", "html", str(source), str(tmp_path / "html")],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "html/reference/generated/api-training.html").read_text(encoding="utf-8")
    assert 'id="chimera.Trainer.fit"' in page
    strategies = (tmp_path / "html/reference/generated/strategies.html").read_text(encoding="utf-8")
    assert 'href="api-strategies.html#chimera.strategies.fed_avg.FedAvg"' in strategies
