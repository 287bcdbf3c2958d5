"""Every extra, command, option and plug-in that a document names exists; every extra and plug-in that exists is documented."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from chimera.cli.embed import LEARN
from chimera.cli.list import FAMILIES
from chimera.cli.main import app
from chimera.codecs.codec import CODECS
from chimera.core.registry import checked_options, load_object
from chimera.core.signatures import parameters_of
from chimera.core.toml import read_toml
from chimera.models.conversion import ADAPTER_OPTIONS
from chimera.training.experiment.experiment import PLUGINS
from chimera.training.plugin import named, uplink_and_downlink

ROOT = Path(__file__).parents[1]
NOT_READ = [ROOT / "docs" / folder for folder in ("decisions", "_build", "reference/generated")]
DOCUMENTS = sorted(
    path
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if not any(path.is_relative_to(folder) for folder in NOT_READ)
)
TEXTS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in DOCUMENTS}
ALL_TEXT = "\n".join(TEXTS.values())
SOURCES = sorted((ROOT / "src").rglob("*.py"))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
INDIRECT = ("httptools", "tokenizers", "ipykernel")  # of uvicorn, transformers and myst-nb, which import them
REGISTRIES = {
    "data": "datasets", "model": "models", "strategy": "strategies", "codec": "codecs", "partition": "partitions",
    "engine": "engines",
}  # fmt: skip


# --- extras


def named_extras(text: str) -> set[str]:
    return {extra for names in re.findall(r"chimera-dml\[([a-z0-9,]+)\]", text) for extra in names.split(",")}


@pytest.mark.parametrize("document", TEXTS)
def test_the_extras_in_a_document_exist(document):
    assert named_extras(TEXTS[document]) <= EXTRAS.keys()


def test_the_extras_that_errors_name_exist():
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    named = set(re.findall(r"register\([^)]*extra=\"([a-z0-9]+)\"", code)) | set(
        re.findall(r"MissingExtraError\([^)]*, \"([a-z0-9]+)\"\)", code)
    )
    assert len(named) > 5
    assert named | named_extras(code) <= EXTRAS.keys()


@pytest.fixture(scope="module")
def words():
    """Return the words of all sources."""
    return frozenset(re.findall(r"\w+", "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)))


@pytest.fixture(scope="module")
def distributions():
    """Return the installed modules, each with the names of its distributions."""
    found = importlib.metadata.packages_distributions()
    return {module: {owner.lower() for owner in owners} for module, owners in found.items()}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"dev", "all"}))
def test_an_extra_is_documented_and_its_packages_are_imported(extra, words, distributions):
    assert extra in named_extras(ALL_TEXT), f"no document names chimera-dml[{extra}]"
    if extra == "docs":  # Sphinx loads the packages that its settings name
        words = frozenset(re.findall(r"\w+", (ROOT / "docs/conf.py").read_text(encoding="utf-8")))
    for requirement in EXTRAS[extra]:
        name = re.match(r"[\w-]+", requirement)[0]
        fallback = [name.replace("-", "_"), name.partition("-")[0]]  # where the distribution is not installed
        modules = [module for module, owners in distributions.items() if name in owners]
        if name != "chimera-dml" and name not in INDIRECT:
            assert any(module in words for module in modules or fallback), requirement


# --- commands

PROGRAM = typer.main.get_command(app)


def commands() -> Iterator[tuple[str, str]]:
    """Yield the commands of `chimera` in blocks and between backticks, each with the name of its document."""
    for document, text in TEXTS.items():
        joined = re.sub(r"\\\n\s*", " ", text)
        lines = re.findall(r"^(?: {4,}|\$ )?(?:\$ )?(?:[A-Z_]+=\S+ )*(chimera [^\n]*)$", joined, re.MULTILINE)
        for line in [*lines, *re.findall(r"`(chimera [^`\n]*)`", joined)]:
            yield document, line


def words_of(line: str) -> Iterator[str]:
    """Yield the words of a command without comments, redirections, following commands, brackets and quotes."""
    for word in re.split(r"(?<!\S)#|[;&<>]|(?<=\s)\|", line.replace("\\|", "|"))[0].split():
        yield word.strip("[]()'\",.:")


def check(line: str) -> str | None:
    """Return what is wrong with a command; None if its subcommands and options exist."""
    _, *words = words_of(line)
    places: list[Any] = [PROGRAM]
    for word in words:
        known = getattr(places[0], "commands", {})
        if LEARN in known and word not in known and not word.startswith("-"):
            places = [known[LEARN]]  # the argument of the default command
        elif known and re.fullmatch(r"[a-z][a-z|-]*", word):
            names = [name for name in word.split("|") if name]
            if missing := [name for name in names if name not in known]:
                return f"there is no command {missing[0]!r}"
            places = [known[name] for name in names]
        elif re.match(r"--?[a-z]", word):
            options = {spelled for place in places for p in place.params for spelled in (*p.opts, *p.secondary_opts)}
            if word.partition("=")[0] not in {*options, "--help"}:
                return f"there is no option {word!r}"
    return None


def test_commands_are_found_in_documents():
    found = list(commands())
    assert len(found) > 200
    expected = {"README.md", "docs/how-to/command-line.md", "docs/how-to/jobs.md", "docs/how-to/inference.md"}
    assert expected <= {document for document, _ in found}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("chimera train x.toml --engine ray  # comment --no", None),
        ("chimera infer up|down", None),
        ("chimera trains x.toml", "there is no command 'trains'"),
        ("chimera infer sideways", "there is no command 'sideways'"),
        ("chimera submit x.toml --cloud", "there is no option '--cloud'"),
    ],
)
def test_the_check_of_a_command_finds_what_does_not_exist(line, problem):
    assert check(line) == problem


@pytest.mark.parametrize("document", TEXTS)
def test_the_commands_in_a_document_exist(document):
    problems = [(line, problem) for where, line in commands() if where == document and (problem := check(line))]
    assert not problems


# --- plug-ins and their options


def tables() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tables of each block of TOML in a document that is of an experiment, with the document's name."""
    for document, text in TEXTS.items():
        for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL):
            read = read_toml(block)
            if read.keys() & {*PLUGINS, "train"} and "inference" not in document:
                yield document, read


def check_plugin(kind: str, value: Any) -> None:
    """Raise ConfigurationError if there is no plug-in of this name, or if it has no such options."""
    if not isinstance(value, str) and "name" not in value:
        value = {"name": "identity" if kind == "codec" else "nodes", **value}  # the defaults of such tables
    if kind == "codec":
        for each in uplink_and_downlink(value):
            CODECS.create(*each)
        return
    name, options = named(value)
    if kind == "model":
        options = {key: option for key, option in options.items() if key not in ADAPTER_OPTIONS}  # of every model
    if name and ":" not in name:
        factory = load_object(FAMILIES[REGISTRIES[kind]]).find(name).factory
        missing = {key for key, p in parameters_of(factory).items() if p.default is p.empty and key not in options}
        checked_options(f"{kind} {name!r}", factory, options, dict.fromkeys(missing))


@pytest.mark.parametrize("document", sorted({document for document, _ in tables()}))
def test_the_plug_ins_and_options_in_a_document_exist(document):
    for where, table in tables():
        if where == document:
            for kind in table.keys() & PLUGINS:
                check_plugin(kind, table[kind])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_registered_name_is_in_a_document(family):
    names = [entry.name for entry in load_object(FAMILIES[family]).entries()]
    assert [name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", ALL_TEXT)] == []


def test_engines_in_the_architecture_are_the_registered_ones():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = text.partition("## 3. The engine")[2].partition("\n## ")[0]
    described = set(re.findall(r"^(?:- |  )\*\*([a-z-]+)\*\*", section, re.MULTILINE))
    assert described == {entry.name for entry in load_object(FAMILIES["engines"]).entries()}
