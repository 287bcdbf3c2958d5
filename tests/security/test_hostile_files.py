"""Tests of untrusted files: readers allocate bounded memory, and each error is one line that names the file."""

from __future__ import annotations

import gzip
import importlib
import io
import os
import shutil
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import chimera
from chimera.core.errors import ChimeraError, ConfigurationError, DataError
from chimera.data.dataset import Dataset
from chimera.data.readers import decompression
from chimera.data.readers.idx import read_idx
from chimera.embeddings import WordVectors
from chimera.inference import models
from chimera.inference.inputs import queries
from chimera.inference.models.images import open_image
from chimera.report import run_files
from chimera.report.comparison_page import page as comparison_page
from chimera.training.artifacts import signature
from chimera.training.artifacts.checkpoint import Checkpoints
from chimera.training.artifacts.signature import Signature
from chimera.training.experiment import experiment
from chimera.training.experiment.experiment import Experiment

MAX_BYTES = 9 << 20
"""What a reader may allocate for a hostile file in these tests, whose limit of unpacked bytes is lower than the true one."""


@contextmanager
def bounded(most: int = MAX_BYTES) -> Iterator[None]:
    """Raise `AssertionError` if the block allocates more bytes, touched or not."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most, f"{peak} bytes were allocated"


def refused(read: Callable[[], Any], path: Path, said: str | None = None) -> None:
    """Check that a file is refused in one line that names it, without much memory."""
    with bounded(), pytest.raises(ConfigurationError, match=said) as caught:
        read()
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the bombs of these tests small."""
    monkeypatch.setattr(decompression, "MIN_LIMIT_BYTES", 1 << 20)


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Import the readers' libraries, whose memory must not be counted."""
    Dataset.of(pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1]}))
    for name in ("fsspec.implementations.local", "sklearn.linear_model", "PIL.Image", "PIL.PngImagePlugin"):
        importlib.import_module(name)


def npy(header: str, content: bytes = b"", version: int = 1) -> bytes:
    """Return an .npy file with any header."""
    told = header.encode() + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(told))
    return b"\x93NUMPY" + bytes((version, 0)) + length + told + content


def array(shape: str, content: bytes = b"", dtype: str = "'<f8'") -> bytes:
    """Return an .npy file that states a shape and a type."""
    return npy(f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}", content)


def npz(path: Path, x: bytes, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """Write an archive of inputs and targets."""
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", x)
        archive.writestr("y.npy", array("(2,)", bytes(16)))
    return path


ARRAYS = {
    "a terabyte": array("(137438953472,)"),
    "more bytes than 64 bits count": array("(4294967296, 4294967296)"),
    "rows of a terabyte": array("(1, 137438953472)"),
    "16 GB in a type": array("(20,)", dtype="('<f8', (100000000,))"),
    "a negative length": array("(4, -5)"),
    "truth values for lengths": array("(True, 2)", bytes(16)),
    "a long header": npy("x" * 60_000),
    "a header of 2 MB": npy("x" * (2 << 20), version=2),
    "a header of 4 GB": b"\x93NUMPY\2\0\xff\xff\xff\xff",
    "deep nesting": npy("[" * 3000),
    "a deep expression": npy("-" * 9000 + "1"),
    "no key": npy("{[1]: 2}"),
    "an open text": npy("{'a': '''"),
    "odd indentation": npy("  1\n 2"),
    "an empty type": array("(1,)", dtype="()"),
    "a list of types": array("(1,)", dtype="[[1, 2, 3]]"),
    "objects": array("(1,)", bytes(8), dtype="'|O'"),
    "a version to come": b"\x93NUMPY\7\0" + bytes(90),
    "nothing": b"",
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("ending", [".npz", ".npy", ".npy.gz"])
def test_an_array_larger_than_its_file_is_never_allocated(kind: str, ending: str, tmp_path: Path) -> None:
    path, content = tmp_path / f"x{ending}", ARRAYS[kind]
    if ending == ".npz":
        npz(path, content)
        refused(lambda: Dataset.of(path), path)
    else:
        path.write_bytes(gzip.compress(content) if ending == ".npy.gz" else content)
        refused(lambda: list(queries(str(path))), path)


@given(header=st.text(st.sampled_from("{}[]()'\",:-<f8Oib1 \n\\") | st.characters(max_codepoint=255), max_size=60))
def test_any_array_header_is_read_or_rejected(tmp_path_factory: pytest.TempPathFactory, header: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.npy"
    for text in (header, f"{{'descr': {header}, 'fortran_order': False, 'shape': (1,), }}", f"{{'shape': {header}}}"):
        path.write_bytes(npy(text, bytes(8)))
        with suppress(ChimeraError):
            list(queries(str(path)))


def test_a_member_whose_name_has_no_ending_is_checked_like_others(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inputs", ARRAYS["a terabyte"])
        archive.writestr("targets", array("(2,)", bytes(16)))
    refused(lambda: Dataset.of(path), path)


METHODS = {"bzip2": zipfile.ZIP_BZIP2, "lzma": zipfile.ZIP_LZMA}


@pytest.mark.parametrize("method", METHODS)
def test_archives_use_the_compression_methods_of_numpy(method: str, tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", array("(2,)", bytes(16)), METHODS[method])
    refused(lambda: Dataset.of(path), path, "by a method that NumPy does not use")


@pytest.mark.parametrize(("place", "value"), [(8, 1), (10, 99), (6, 99), (24, 255), (16, 255)])
def test_an_archive_with_a_damaged_directory_is_rejected(place: int, value: int, tmp_path: Path) -> None:
    """Encrypted, an unknown method, a later version, another size, another checksum."""
    path = npz(tmp_path / "x.npz", array("(2,)", bytes(16)))
    raw = bytearray(path.read_bytes())
    raw[raw.find(b"PK\x01\x02") + place] = value
    path.write_bytes(raw)
    refused(lambda: Dataset.of(path), path)


def test_damaged_archive_content_is_rejected(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", array("(2,)", bytes(16)))
    raw = bytearray(path.read_bytes())
    raw[40:50] = b"\xff" * 10
    path.write_bytes(raw)
    refused(lambda: Dataset.of(path), path)


def written(path: Path, content: bytes) -> Path:
    """Write a gzip file."""
    path.write_bytes(gzip.compress(content))
    return path


UNPACKED: dict[str, tuple[str, Callable[[Path], Path], Callable[[Path], Any]]] = {
    "archive": ("x.npz", lambda path: npz(path, array("(2097152,)", bytes(16 << 20))), Dataset.of),
    "images": (
        "x.gz",
        lambda path: written(path, bytes((0, 0, 8, 1)) + struct.pack(">I", 16 << 20) + bytes(16 << 20)),
        lambda path: read_idx(path, 1),
    ),
    "rows": ("x.csv.gz", lambda path: written(path, b"1,2\n" * (1 << 20)), Dataset.of),
    "one line": ("x.csv.gz", lambda path: written(path, b"1,2\n" + b"1" * (16 << 20)), Dataset.of),
    "blank lines": ("x.csv.gz", lambda path: written(path, b"\n" * (8 << 20)), Dataset.of),
}


@pytest.mark.parametrize("kind", UNPACKED)
def test_a_file_unpacks_to_a_bounded_multiple_of_its_size(kind: str, tmp_path: Path) -> None:
    name, write, read = UNPACKED[kind]
    path = write(tmp_path / name)
    refused(lambda: read(path), path, "decompresses to more than 100 times its size")


def test_files_within_the_unpacking_limit_are_read(tmp_path: Path) -> None:
    rows = "".join(f"{x},{x % 3}\n" for x in np.random.default_rng(0).integers(0, 99, 220_000).tolist())
    path = written(tmp_path / "x.csv.gz", rows.encode())
    assert len(rows) > decompression.max_decompressed_bytes(0)
    assert len(Dataset.of(path)) == 220_000


@pytest.mark.parametrize("name", ["x.csv.gz", "x.txt.gz", "x.jsonl.gz", "x.npy.gz"])
def test_damaged_gzip_data_are_rejected(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / name, bytes(range(256)) * 20 if name == "x.npy.gz" else b"1,2\n3,4\n" * 200)
    raw = bytearray(path.read_bytes())
    raw[14:24] = b"\xff" * 10
    path.write_bytes(raw)
    refused(lambda: list(queries(str(path))), path)
    if name == "x.csv.gz":
        refused(lambda: Dataset.of(path), path)


def test_a_deeply_nested_value_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"[" * 200_000 + b"\n")
    refused(lambda: list(queries(str(path))), path, "line 1: not JSON")


SPARSE_BYTES = 1 << 40
"""Size of a file without content, of which an archive is small."""

DOCUMENTS: dict[str, Callable[[Path], Any]] = {
    "experiment.toml": Experiment.load,
    "signature.json": lambda path: Signature.read(path.parent),
    "comparison.json": lambda path: chimera.Comparison.load(path.parent),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_larger_than_memory_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (experiment, signature, comparison_page):
        for limit in {"MAX_SETTINGS_BYTES", "MAX_DOCUMENT_BYTES"} & set(vars(module)):
            monkeypatch.setattr(module, limit, 1 << 20)
    path = tmp_path / name
    path.touch()
    os.truncate(path, SPARSE_BYTES)
    with bounded(), pytest.raises(ConfigurationError, match="has more than 1 MiB"):
        DOCUMENTS[name](path)


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "events.jsonl", "trace.jsonl", "experiment.toml", "summary.json", "data.json"]
)
def test_a_report_needs_bounded_memory_for_files_larger_than_memory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "MAX_DOCUMENT_BYTES", 1 << 20)
    monkeypatch.setattr(run_files, "_MAX_LINE_BYTES", 1 << 20)
    monkeypatch.setattr(run_files, "_CHUNK_BYTES", 1 << 20)
    for each in ("metrics.jsonl", name):
        (tmp_path / each).write_text('{"round": 1}\n' if each == "metrics.jsonl" else "")
    os.truncate(tmp_path / name, SPARSE_BYTES)
    with bounded():
        found = run_files.read_run(tmp_path)
    assert [note for note in found.notes if note.startswith(name) and "could not be read" in note]
    assert found.metrics == [{"round": 1}]  # lines before the hostile one stay


def tensors(told: dict[str, tuple[str, list[int]]], content: bytes = b"") -> bytes:
    """Return a safetensors file with consecutive arrays of 2 bytes each, followed by the content."""
    spans = {name: [2 * place, 2 * place + 2] for place, name in enumerate(told)}
    if content:
        spans = {name: [0, len(content)] for name in told}
    header = {
        name: {"dtype": kind, "shape": shape, "data_offsets": spans[name]} for name, (kind, shape) in told.items()
    }
    raw = msgspec.json.encode(header)
    return struct.pack("<Q", len(raw)) + raw + (content or bytes(2 * len(told)))


STRANGE = {
    "bfloat16": ("BF16", [1]),
    "float8": ("F8_E4M3", [2]),
    "float4": ("F4", [4]),
    "an axis too many": ("U8", [2] + [1] * 90),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_tensor_types_unknown_to_numpy_are_rejected(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(tensors({"vectors": STRANGE[kind], "words": ("U8", [2])}))
    refused(lambda: WordVectors.load(path), path, "not a readable safetensors file")
    checkpoints = tmp_path / "round-1.safetensors"
    checkpoints.write_bytes(tensors({"tree": STRANGE[kind]}))
    refused(Checkpoints(str(tmp_path)).read_last, checkpoints, "is not a checkpoint")


TREES = {
    "nested without end": b"\x91" * 100_000,
    "nested tables": b"\x81\xa1a" * 100_000 + b"\xc0",
    "a number": b"\x01",
    "a list": b"\x90",
    "nothing": b"\xc0",
    "an array that is not there": msgspec.msgpack.encode({"a": {"__array__": "b"}}),
    "an array by a list": msgspec.msgpack.encode({"a": {"__array__": [1]}}),
    "no UTF-8": b"\x81\xa1\xff\x01",
    "a list of 4 billion": b"\x81\xa1a\xdd\xff\xff\xff\xff",
}


@pytest.mark.parametrize("kind", TREES)
def test_an_invalid_checkpoint_is_rejected(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "round-1.safetensors"
    path.write_bytes(tensors({"tree": ("U8", [len(TREES[kind])])}, TREES[kind]))
    refused(Checkpoints(str(tmp_path)).read_last, path, "is not a checkpoint")


def test_a_chunk_of_hdf5_is_no_larger_than_its_file(tmp_path: Path) -> None:
    """One small row made the library allocate a chunk of any size."""
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["words"] = np.frombuffer(b"a", np.uint8)
        rows = file.create_dataset("vectors", (1, 2), "f4", maxshape=(None, 2), chunks=(4 << 20, 2), compression="gzip")
        rows[0] = 1
    assert path.stat().st_size < 1 << 20
    refused(lambda: WordVectors.load(path), path, "states more than the file's")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run."""
    return chimera.train(
        "mlp", "iris", engine="simulated", workers=1, rounds=1, out=tmp_path_factory.mktemp("run")
    ).run_dir


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """Return a copy of it, to be changed."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


MODELS = {
    "wide layers": ('{name = "mlp", hidden = [30000, 30000]}', {}),
    "many layers": ('{name = "mlp", hidden = [' + "9, " * 1000 + "]}", {}),
    "many outputs": ('"mlp"', {"outputs": 10_000_000_000}),
    "many channels": ('{name = "cnn", channels = [20000, 20000]}', {"input_shape": [1, 8, 8]}),
    "a wide input": ('"logistic-regression"', {"input_shape": [1_000_000_000]}),
    "an estimator": ('"sklearn-sgd-classifier"', {"input_shape": [100_000], "outputs": 20_000}),
    "word vectors": ('{name = "cbow", dim = 1000000, output = "hierarchical-softmax"}', {"outputs": 20_000}),
    "a softmax over words": ('{name = "skip-gram", dim = 1000000}', {"outputs": 20_000, "input_shape": [1]}),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_run_folder_creates_no_model_larger_than_its_weights(kind: str, folder: Path) -> None:
    table, change = MODELS[kind]
    signature = folder / "signature.json"
    signature.write_bytes(msgspec.json.encode({**msgspec.json.decode(signature.read_bytes()), **change}))
    (folder / "experiment.toml").write_text(f"model = {table}\n")
    refused(
        lambda: models.load({"kind": "chimera", "run": str(folder)}), folder / "weights.safetensors", "the model would"
    )


BAD_FILES = {
    "deep TOML": ("experiment.toml", b"model = " + b"[" * 50_000, "experiment"),
    "a number for a model": ("experiment.toml", b"model = 5", "must be a name or a table"),
    "a table without a name": ("experiment.toml", b"model = {hidden = [1]}", "needs a 'name'"),
    "deep JSON": ("signature.json", b'{"input_scaling": ' + b"[" * 100_000, "cannot be read"),
    "no numbers": ("signature.json", b'"input_scaling":[["x"],[1]]', "could not convert"),
    "ragged numbers": ("signature.json", b'"input_scaling":[[1,[2]],[1]]', "cannot be read"),
    "no outputs": ("signature.json", b'"outputs":0', "0 outputs"),
    "a negative shape": ("signature.json", b'"input_shape":[-4]', r"shape \(-4,\)"),
    "no weights": ("weights.safetensors", b"", "has bytes"),
    "bfloat16": ("weights.safetensors", tensors({"0.weight": ("BF16", [1])}), "weights"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_serving_a_damaged_run_raises_a_one_line_error(kind: str, folder: Path) -> None:
    name, content, said = BAD_FILES[kind]
    if content.startswith(b'"'):  # one field of the object
        key = content.split(b":")[0].decode().strip('"')
        good = msgspec.json.decode((folder / name).read_bytes())
        content = msgspec.json.encode({**good, key: msgspec.json.decode(content.partition(b":")[2])})
    (folder / name).write_bytes(content)
    with bounded(), pytest.raises(ConfigurationError, match=said) as caught:
        models.load({"kind": "chimera", "run": str(folder)})
    assert "\n" not in str(caught.value)


def test_the_bound_of_a_model_ends_with_its_block(trained: Path) -> None:
    models.load({"kind": "chimera", "run": str(trained)})
    assert nn.Linear(2000, 2000).weight.numel() == 4_000_000


@pytest.fixture(scope="module")
def estimator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a fitted estimator."""
    skops_io = pytest.importorskip("skops.io")
    from sklearn.tree import DecisionTreeClassifier  # whose nodes are an array of records

    path = tmp_path_factory.mktemp("estimator") / "x.skops"
    skops_io.dump(DecisionTreeClassifier().fit([[0.0], [1.0]], [0, 1]), path)
    return path


MEMBERS: dict[str, tuple[str, bytes, int]] = {
    "an array of a terabyte": (".npy", array("(137438953472,)"), zipfile.ZIP_STORED),
    "an array that unpacks": (".npy", array("(2097152,)", bytes(16 << 20)), zipfile.ZIP_DEFLATED),
    "another method": (".npy", array("(2,)", bytes(16)), zipfile.ZIP_BZIP2),
    "a deep schema": ("schema.json", b"[" * 100_000, zipfile.ZIP_STORED),
    "a schema of another kind": ("schema.json", b"5", zipfile.ZIP_STORED),
}


TREE = ["sklearn.tree._tree.Tree"]


def nested(content: bytes, name: str = "data.npy", depth: int = 1) -> bytes:
    """Return an archive with one member, in ``depth - 1`` further archives."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue() if depth == 1 else nested(file.getvalue(), "inner.npz", depth - 1)


NESTED = {
    "an array of a terabyte by another name": array("(137438953472,)"),
    "an archive with an array of a terabyte": nested(array("(137438953472,)")),
    "an archive that unpacks": nested(array("(2097152,)", bytes(16 << 20))),
    "an archive of another name": nested(array("(2097152,)", bytes(16 << 20)), "data"),
    "an archive in an archive": nested(array("(2,)", bytes(16)), depth=2),
    "a damaged archive": nested(array("(2,)", bytes(16)))[:-30],
}


@pytest.mark.parametrize("kind", NESTED)
def test_members_of_estimator_files_are_checked_by_their_content(kind: str, estimator: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.skops"
    path.write_bytes(estimator.read_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("matrix", NESTED[kind])
    refused(lambda: models.load({"kind": "sklearn", "file": str(path), "trusted": TREE}), path)


def test_an_estimator_with_a_sparse_matrix_is_read(tmp_path: Path) -> None:
    skops_io = pytest.importorskip("skops.io")
    from scipy.sparse import csr_matrix
    from sklearn.neighbors import KNeighborsClassifier

    path = tmp_path / "x.skops"
    fitted = KNeighborsClassifier(1, algorithm="brute").fit(csr_matrix([[0.0, 0.0], [5.0, 0.0]]), [0, 1])
    skops_io.dump(fitted, path)
    table = {"kind": "sklearn", "file": str(path), "trusted": ["scipy.sparse._csr.csr_matrix"]}
    assert models.load(table).predict([[4.0, 0.0]]) == [1]


def test_a_tree_file_is_read(estimator: Path) -> None:
    assert models.load({"kind": "sklearn", "file": str(estimator), "trusted": TREE}).predict([[0.9]]) == [1]


@pytest.mark.parametrize("kind", MEMBERS)
def test_estimator_files_are_bounded(kind: str, estimator: Path, tmp_path: Path) -> None:
    ending, content, method = MEMBERS[kind]
    path = tmp_path / "x.skops"
    with zipfile.ZipFile(estimator) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            changed = info.filename.endswith(ending)
            new.writestr(info.filename, content if changed else old.read(info), method if changed else None)
    refused(lambda: models.load({"kind": "sklearn", "file": str(path), "trusted": TREE}), path)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n%%EndComments\n%%EOF\n"


def png(width: int, height: int) -> bytes:
    """Return a PNG with a stated size and no content."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    end = b"IEND"
    chunks = [struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in (header, end)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


PICTURES = {
    "more pixels than are opened": (png(20_000, 20_000), "at most 80000000 are opened|has too many pixels"),
    "billions of pixels": (png(2**31 - 1, 2**31 - 1), "is no image|at most 80000000 are opened|has too many pixels"),
    "no pixels": (png(0, 0), "is no image"),
    "nothing behind the header": (png(10, 10), "is no image"),
    "a program for Ghostscript": (EPS, "is no image, or a broken one: UnidentifiedImageError"),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_an_image_is_bounded_and_read_by_no_other_program(kind: str, tmp_path: Path) -> None:
    content, said = PICTURES[kind]
    path = tmp_path / "x.png"
    path.write_bytes(content)
    with bounded(80 << 20), pytest.raises(DataError, match=said) as caught:
        open_image(str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
