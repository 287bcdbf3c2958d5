from __future__ import annotations

import gzip
import os
import struct
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets

from chimera.core.errors import ConfigurationError, DataError
from chimera.data import mnist as mnist_module
from chimera.data import scikit_learn
from chimera.data.readers.idx import read_idx
from chimera.data.split import DATASETS

REAL = Path(os.environ.get("CHIMERA_DATA", "nowhere")) / "mnist"
FILES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]


@pytest.fixture(autouse=True)
def no_data_and_no_network(tmp_path, monkeypatch):
    """Unset the data folder, empty the cache, and set a proxy that refuses, so that no test uses the network."""
    monkeypatch.delenv("CHIMERA_DATA", raising=False)
    for name in ("XDG_CACHE_HOME", "SCIKIT_LEARN_DATA"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(urllib.request, "_opener", None)  # urllib caches the proxies at the first use


def idx(array):
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_images(folder, *, zipped, train=30, test=10, labels=None):
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = []
    for name, count in zip(FILES, (train, train, test, test), strict=True):
        array = rng.integers(0, 256, (count, 4, 4)) if "images" in name else np.arange(count) % 10
        if labels is not None and name == FILES[1]:
            array[: len(labels)] = labels
        arrays.append(array.astype(np.uint8))
        content = idx(arrays[-1])
        (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(content) if zipped else content)
    return arrays


OF_SCIKIT_LEARN = {
    "iris": ((150, 4), 3, sklearn.datasets.load_iris),
    "wine": ((178, 13), 3, sklearn.datasets.load_wine),
    "breast-cancer": ((569, 30), 2, sklearn.datasets.load_breast_cancer),
    "digits": ((1797, 64), 10, sklearn.datasets.load_digits),
    "diabetes": ((442, 10), 1, lambda: sklearn.datasets.load_diabetes(scaled=False)),
}


@pytest.mark.parametrize("name", OF_SCIKIT_LEARN)
@pytest.mark.parametrize("files", [True, False], ids=["files", "loaders"])
def test_data_sets_of_scikit_learn_have_its_content(name, files, monkeypatch):
    if not files:
        monkeypatch.setattr(scikit_learn, "_folder", lambda: None)
    shape, outputs, load = OF_SCIKIT_LEARN[name]
    options = {"standardize": False} | ({"scale_target": False} if name == "diabetes" else {})
    split = DATASETS.create(name, options)
    bunch = load()
    scale = 16 if name == "digits" else 1
    ours = np.concatenate([split.train.inputs, split.test.inputs]) * scale
    assert ours.shape == shape
    assert split.train.outputs == split.test.outputs == outputs
    theirs = bunch.data.astype(np.float32)
    assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, theirs.tolist()))
    pairs = {(tuple(row), target) for row, target in zip(theirs.tolist(), bunch.target.tolist(), strict=True)}
    train = zip((split.train.inputs * scale).reshape(-1, shape[1]).tolist(), split.train.targets.tolist(), strict=True)
    assert {(tuple(row), target) for row, target in train} <= pairs
    if name != "diabetes":
        assert split.train.classes == tuple(map(str, bunch.target_names))


@pytest.mark.parametrize("name", OF_SCIKIT_LEARN)
def test_data_sets_of_scikit_learn_are_scaled_for_sgd_by_default(name):
    split = DATASETS.create(name, {"test_fraction": 0.3, "seed": 4, "limit": 60})
    assert len(split.train) == 60
    assert len(split.test) == round(0.3 * OF_SCIKIT_LEARN[name][0][0])
    assert split.train.name == name
    if name == "digits":
        assert split.train.inputs.min() >= 0
        assert split.train.inputs.max() <= 1
    else:
        assert np.allclose(split.train.inputs.mean(axis=0), 0, atol=1e-5)
        assert split.train.features is not None
        assert len(split.train.features) == split.train.input_shape[0]
    if name == "diabetes":
        assert abs(split.train.targets.std() - 1) < 1e-5


def test_digits_are_flat_or_images():
    flat, image = (DATASETS.create("digits", {"shape": shape}) for shape in ("flat", "image"))
    assert (flat.train.input_shape, image.train.input_shape) == ((64,), (1, 8, 8))
    assert np.array_equal(flat.train.inputs, image.train.inputs.reshape(-1, 64))
    for name in ("digits", "mnist"):
        with pytest.raises(ConfigurationError, match="shape"):
            DATASETS.create(name, {"shape": "round"})
        with pytest.raises(ConfigurationError, match="shape 'round' is unknown"):
            DATASETS.find(name).factory(shape="round")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["path", "folder of its own", "data folder", "cache"])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_images_are_found_in_every_supported_place(name, place, zipped, tmp_path, monkeypatch):
    folder = tmp_path / "data" / (name if place == "folder of its own" else "")
    images, labels, test_images, test_labels = write_images(folder, zipped=zipped)
    options = {"path": str(folder)} if place == "path" else {}
    if place == "cache":
        (tmp_path / "XDG_CACHE_HOME" / "chimera").mkdir(parents=True)
        parts = {"x_train": images, "y_train": labels, "x_test": test_images, "y_test": test_labels}
        np.savez(tmp_path / "XDG_CACHE_HOME" / "chimera" / f"{name}.npz", **parts)
    elif place != "path":
        monkeypatch.setenv("CHIMERA_DATA", str(tmp_path / "data"))
    split = DATASETS.create(name, options)
    assert np.allclose(split.train.inputs, images.reshape(30, 16) / 255, atol=1e-6)
    assert np.array_equal(split.test.targets, test_labels)
    assert split.train.outputs == 10
    image = DATASETS.create(name, options | {"shape": "image", "limit": 7})
    assert (len(image.train), len(image.test), image.train.input_shape) == (7, 10, (1, 4, 4))
    again = DATASETS.create(name, options | {"test_fraction": 0.5, "standardize": True})
    assert (len(again.train), len(again.test)) == (20, 20)
    assert np.allclose(again.train.inputs.mean(axis=0), 0, atol=1e-5)


def test_files_of_another_data_set_are_rejected(tmp_path):
    write_images(tmp_path / "fashion", zipped=True, labels=(9, 0, 0, 3, 0, 2, 7, 2))
    with pytest.raises(DataError, match="holds fashion-mnist, not mnist"):
        DATASETS.create("mnist", {"path": str(tmp_path / "fashion")})
    assert len(DATASETS.create("fashion-mnist", {"path": str(tmp_path / "fashion")}).train) == 30


def test_missing_or_mismatched_files_are_named(tmp_path):
    with pytest.raises(DataError, match=f"no mnist in .*: needed are {FILES[0]}"):
        DATASETS.create("mnist", {"path": str(tmp_path)})
    write_images(tmp_path, zipped=True)
    (tmp_path / f"{FILES[2]}.gz").unlink()
    with pytest.raises(DataError, match=f"lacks {FILES[2]}"):
        DATASETS.create("mnist", {"path": str(tmp_path)})
    (tmp_path / FILES[2]).write_bytes(idx(np.zeros((9, 4, 4), np.uint8)))
    with pytest.raises(DataError, match="do not match"):
        DATASETS.create("mnist", {"path": str(tmp_path)})


GOOD = idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
INVALID_IDX = {
    "empty": (b"", "begins with nothing"),
    "foreign": (b"PK\x03\x04" + bytes(40), "not an IDX file .* begins with 504b0304, not 00000803"),
    "labels": (idx(np.zeros(9, np.uint8)), "begins with 00000801"),
    "floats": (b"\x00\x00\x0d\x03" + GOOD[4:], "begins with 00000d03"),
    "header cut": (GOOD[:10], "not an IDX file"),
    "truncated": (GOOD[:-1], "2 x 3 x 4 bytes"),
    "too long": (GOOD + b"!", "2 x 3 x 4 bytes"),
    "terabytes": (
        bytes((0, 0, 8, 3)) + b"\xff" * 12 + bytes(50),
        "4294967295 x 4294967295 x 4294967295 bytes|decompresses to more",
    ),
}


@pytest.mark.parametrize("kind", INVALID_IDX)
@pytest.mark.parametrize("zipped", [True, False])
def test_an_invalid_idx_file_gives_a_one_line_error_before_allocation(kind, zipped, tmp_path):
    content, message = INVALID_IDX[kind]
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path, 3)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_damaged_or_truncated_gzip_stream_is_an_error(tmp_path):
    path = tmp_path / "file.gz"
    whole = gzip.compress(idx(np.random.default_rng(0).integers(0, 256, (9, 9, 9)).astype(np.uint8)))
    for content in (whole[:-1], whole[:-9], whole[:40], whole[:60] + b"????" + whole[64:], whole[:-6] + b"??????"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"file\.gz"):
            read_idx(path, 3)
    path.write_bytes(whole)
    assert read_idx(path, 3).shape == (9, 9, 9)
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path / "none", 3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "wanted"),
    [("mnist", FILES[3]), ("fashion-mnist", FILES[3]), ("california-housing", "california-housing.npz")],
)
def test_without_files_and_network_the_error_names_the_files_and_the_searched_places(
    name, wanted, tmp_path, monkeypatch
):
    monkeypatch.setenv("CHIMERA_DATA", str(tmp_path / "mine"))
    begin = time.monotonic()
    with pytest.raises(DataError) as caught:
        DATASETS.create(name)
    assert time.monotonic() - begin < 20
    message = str(caught.value)
    assert "\n" not in message
    for part in (name, "could not be downloaded", "refused", wanted, str(tmp_path / "mine"), "'path'", "$CHIMERA_DATA"):
        assert part in message
    assert not (tmp_path / "XDG_CACHE_HOME" / "chimera" / f"{name}.npz").exists()


def test_a_download_is_cached(tmp_path, monkeypatch):
    images, labels = np.full((70_000, 2, 2), 51, np.uint8), (np.arange(70_000) % 10).astype(np.uint8)
    monkeypatch.setattr(mnist_module, "_of_openml", lambda number: (images, labels))
    first = DATASETS.create("mnist")
    monkeypatch.setattr(mnist_module, "_of_openml", lambda number: pytest.fail("downloaded twice"))
    second = DATASETS.create("mnist")
    assert (len(first.train), len(first.test)) == (60_000, 10_000)
    assert np.allclose(first.train.inputs, 0.2)
    assert first.test.fingerprint() == second.test.fingerprint()
    assert [file.name for file in (tmp_path / "XDG_CACHE_HOME" / "chimera").iterdir()] == ["mnist.npz"]


@pytest.mark.parametrize("place", [0.25, 0.5, 0.75, None], ids=["early", "middle", "late", "cut"])
def test_a_damaged_file_in_the_cache_is_an_error(place, tmp_path, monkeypatch):
    images, labels = np.full((60_010, 2, 2), 51, np.uint8), (np.arange(60_010) % 10).astype(np.uint8)
    monkeypatch.setattr(mnist_module, "_of_openml", lambda number: (images, labels))
    DATASETS.create("mnist")
    copy = tmp_path / "XDG_CACHE_HOME" / "chimera" / "mnist.npz"
    raw = bytearray(copy.read_bytes())
    if place is None:
        del raw[len(raw) // 2 :]
    else:
        raw[int(len(raw) * place)] ^= 1
    copy.write_bytes(raw)
    with pytest.raises(DataError, match=r"mnist\.npz .*; remove it, and the next run downloads it again"):
        DATASETS.create("mnist")
    copy.unlink()
    assert len(DATASETS.create("mnist").test) == 10


def test_an_unwritable_cache_gives_a_warning(tmp_path, monkeypatch):
    images, labels = np.zeros((60_010, 1, 1), np.uint8), np.zeros(60_010, np.uint8)
    monkeypatch.setattr(mnist_module, "_of_openml", lambda number: (images, labels))
    (tmp_path / "XDG_CACHE_HOME").write_text("a file where a folder should be")
    with pytest.warns(RuntimeWarning, match="next run downloads again"):
        assert len(DATASETS.create("mnist").test) == 10


def test_california_housing_is_read_from_the_users_files(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "california-housing.npz", x=rng.normal(size=(50, 8)), y=rng.normal(2, 1, 50))
    monkeypatch.setenv("CHIMERA_DATA", str(tmp_path))
    split = DATASETS.create("california-housing")
    assert (split.train.input_shape, split.train.outputs, len(split.test)) == ((8,), 1, 10)
    assert abs(split.train.targets.mean()) < 1e-6
    (tmp_path / "c.csv").write_text("\n".join(f"{i},{i * i}" for i in range(50)))
    split = DATASETS.create("california-housing", {"path": str(tmp_path / "c.csv"), "scale_target": False})
    assert split.train.task == "regression"


COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # train samples of each digit of MNIST


@pytest.mark.parametrize("kind", ["written", "real"] if (REAL / f"{FILES[0]}.gz").exists() else ["written"])
def test_60_000_images_are_read_within_2_seconds(kind, tmp_path):
    if kind == "written":
        shapes = ((60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,))
        for name, shape in zip(FILES, shapes, strict=True):
            array = np.full(shape, 255, np.uint8) if "images" in name else np.repeat(np.arange(10), shape[0] // 10)
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array.astype(np.uint8)), compresslevel=1))
    begin = time.process_time()
    split = DATASETS.create("mnist", {"path": str(REAL if kind == "real" else tmp_path)})
    assert time.process_time() - begin < 2  # a quarter of a second on an idle core
    assert (split.train.inputs.shape, split.test.inputs.shape) == ((60_000, 784), (10_000, 784))
    assert split.train.inputs.max() == 1
    assert np.bincount(split.train.targets).tolist() == (COUNTS if kind == "real" else [6000] * 10)


def test_every_data_set_is_listed_with_a_summary():
    names = [entry.name for entry in DATASETS.entries()]
    assert {
        *OF_SCIKIT_LEARN,
        "mnist",
        "fashion-mnist",
        "california-housing",
        "csv",
        "huggingface",
        "image-folder",
        "instructions",
        "nodes",
        "npz",
        "parquet",
        "text",
        "text-blocks",
    } == set(names)
    assert all(entry.summary for entry in DATASETS.entries())


@pytest.mark.parametrize("name", ["iris", "wine", "breast-cancer", "diabetes"])
def test_columns_have_the_names_of_scikit_learn(name: str) -> None:
    loader = getattr(sklearn.datasets, f"load_{name.replace('-', '_')}")
    assert DATASETS.create(name, {}).train.features == tuple(loader()["feature_names"])
