"""Tests of shared files: any content is accepted or gives a one-line error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.core.errors import ChimeraError, ConfigurationError
from chimera.inference import models
from chimera.inference.cluster_folder import ClusterFolder as InferenceFolder
from chimera.jobs.cluster.folder import ClusterFolder
from chimera.jobs.files.content_store import check_manifest
from chimera.jobs.hosts import Hosts
from chimera.jobs.store.records import Submission
from chimera.nodes.settings import read_settings
from chimera.training.experiment.experiment import Experiment
from chimera.training.experiment.toml import literal


def hosts(path: Path) -> None:
    """Read a file of machines, up to the commands for them."""
    Hosts.load(path).commands()


def experiment(path: Path) -> None:
    """Read an experiment, up to its trainer."""
    Experiment.load(path).trainer(out=path.parent / "run")


READERS: dict[str, Callable[[Path], Any]] = {"hosts": hosts, "experiment": experiment, "model": models.read}

GOOD = {
    "hosts": {"server": {"host": "127.0.0.1"}, "worker": [{"host": "a", "user": "u", "ray": "ray"}], "port": 1},
    "experiment": {
        "data": {"name": "iris"},
        "model": {"name": "mlp", "hidden": [1]},
        "train": {"rounds": 1, "workers": 1},
        "engine": {"name": "simulated"},
    },
    "model": {"kind": "chimera", "run": "x", "trust_code": False},
}

TEXTS = {
    "nested lists": "a = " + "[" * 50_000,
    "nested tables": "a = " + "{b = " * 5_000,
    "a long name": ".".join("a" * 5_000) + " = 1",
    "a long number": "port = " + "9" * 5_000,
    "a date that is none": "a = 2000-02-31",
    "a surrogate": 'a = "\\ud800"',
    "nothing": "",
    "a zero byte": "a = \0",
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("reader", READERS)
def test_an_invalid_document_raises_a_one_line_error(reader: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(TEXTS[text])
    with pytest.raises(ConfigurationError) as caught:
        READERS[reader](path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", sorted(set(TEXTS) - {"nothing", "a long name"}))
def test_invalid_node_settings_raise_a_one_line_error(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chimera.toml").write_text(TEXTS[text])
    with pytest.raises(ConfigurationError, match=r"chimera\.toml") as caught:
        read_settings()
    assert "\n" not in str(caught.value)


_LEAVES = st.sampled_from(
    [0, -1, 1 << 70, True, 1.5, "", "x", "../..", "os:system", "\0", "-oProxyCommand=x", "é" * 300]
)
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.", max_size=3), inner, max_size=3)
)


def changed(value: Any, draw: Callable[[Any], Any]) -> Any:
    """Return a document with one value replaced by any."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from([*value, "other"]))
        return {**value, key: changed(value.get(key), draw)}
    return draw(_VALUES)


@pytest.mark.parametrize("reader", READERS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_value_in_a_document_is_accepted_or_rejected_in_one_line(
    reader: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tables = changed(GOOD[reader], data.draw)
    path = tmp_path_factory.getbasetemp() / f"any-{reader}.toml"
    tables = tables if isinstance(tables, dict) else {"a": tables}
    path.write_text("".join(f"{literal(key)} = {literal(value)}\n" for key, value in tables.items()))
    try:
        READERS[reader](path)
    except ChimeraError as error:
        told = str(error)
    else:
        told = ""
    assert "\n" not in told


@given(paths=st.dictionaries(st.text(max_size=8), st.integers(-5, 1 << 70), max_size=3), digest=st.text(max_size=70))
def test_any_manifest_is_decoded_or_rejected(paths: dict[str, int], digest: str) -> None:
    manifest = {path: {"sha256": digest, "size": size, "mode": size} for path, size in paths.items()}
    try:
        check_manifest(msgspec.convert({"name": "x", "experiment": "", "manifest": manifest}, Submission).manifest)
    except (ChimeraError, msgspec.MsgspecError) as error:
        told = str(error)
    else:
        told = ""
    assert "\n" not in told


NOTES = {"deep": b"[" * 100_000, "a list": b"[]", "no UTF-8": b"\xff", "nothing": b"", "deep tables": b'{"a":' * 50_000}


@pytest.mark.parametrize("content", NOTES)
def test_a_damaged_cluster_file_is_ignored(content: str, tmp_path: Path) -> None:
    for name in ("options.json", "leader"):
        (tmp_path / name).write_bytes(NOTES[content])
    assert ClusterFolder(tmp_path).options() is None
    assert InferenceFolder(tmp_path).leader() is None
    job = ClusterFolder(tmp_path).job("1")
    job.path.mkdir(parents=True)
    (job.path / "outcome-2.json").write_bytes(NOTES[content])
    found = job.outcome(2)  # the daemon would exit again and again
    assert found is not None
    assert found.state == "broke"
    assert "outcome-2.json is damaged" in found.reason
