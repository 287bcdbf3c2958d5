"""Image files in one folder per class: classes, transforms, splits, damaged files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from chimera.core.errors import ConfigurationError, DataError
from chimera.data import image_folder as module
from chimera.data.split import DATASETS


def write(folder: Path, classes: tuple[str, ...] = ("cat", "dog"), images: int = 6, size: int = 8) -> Path:
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for index in range(images):
            pixels = np.full((size, size, 3), 20 * index, np.uint8)
            pixels[:, :, number] = 255
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    return folder


def mean_color(image: Any) -> Any:
    return np.asarray(image, np.float32).mean((0, 1))


def test_classes_are_the_folders_and_pixels_are_read_in_rgb(tmp_path: Path) -> None:
    split = DATASETS.create("image-folder", {"path": str(write(tmp_path / "a"))})
    assert split.train.classes == ("cat", "dog")
    images, labels = split.train.take(np.arange(len(split.train)))
    assert images.shape == (10, 3, 8, 8)
    assert all(float(image[label].min()) == 1.0 for image, label in zip(images, labels, strict=True))
    assert np.bincount(split.test.targets).tolist() == [1, 1]


def test_a_worker_receives_few_bytes_per_file(tmp_path: Path) -> None:
    def received(images: int) -> int:
        for name in ("cat", "dog"):
            (tmp_path / str(images) / name).mkdir(parents=True)
            for number in range(images):
                (tmp_path / str(images) / name / f"{number}.png").touch()
        data = DATASETS.create("image-folder", {"path": str(tmp_path / str(images))}).train
        assert len(data.targets) > images
        return len(pickle.dumps(data))

    assert received(300) - received(100) < 400 * 60  # 50,000 files then take less than 3 MB


def test_a_second_folder_is_the_test_part_and_has_its_own_transform(tmp_path: Path) -> None:
    options = {"path": str(write(tmp_path / "a")), "test_path": str(write(tmp_path / "b", images=2)), "size": 4}
    split = DATASETS.create("image-folder", {**options, "test_transform": mean_color})
    assert split.train.take(np.arange(3))[0].shape == (3, 3, 4, 4)
    assert split.test.take(np.arange(3))[0].shape == (3, 3)
    assert len(split.test) == 4


def test_other_files_do_not_count(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    (folder / "cat" / "notes.txt").write_text("no image")
    (folder / "cat" / ".hidden.png").write_text("no image")
    (folder / "empty").mkdir()
    assert len(module.ImageFolder(folder)) == 12
    assert module.ImageFolder(folder).classes == ("cat", "dog")


def test_a_damaged_image_is_named_when_it_is_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    (folder / "dog" / "3.png").write_bytes((folder / "dog" / "3.png").read_bytes()[:40])
    with pytest.raises(DataError, match=r"dog/3\.png cannot be read as an image"):
        module.ImageFolder(folder)[9]


def test_a_huge_image_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PIXELS", 50)
    with pytest.raises(DataError, match=r"cat/0\.png has 8 x 8 pixels, more than 50"):
        module.ImageFolder(write(tmp_path / "a"))[0]


def test_images_of_different_sizes_need_a_size(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    Image.new("L", (5, 7)).save(folder / "cat" / "0.png")
    data = DATASETS.create("image-folder", {"path": str(folder), "test_fraction": 0.1}).train
    with pytest.raises(DataError, match="cannot be collated into a batch"):
        data.take(np.arange(len(data)))
    scaled = DATASETS.create("image-folder", {"path": str(folder), "test_fraction": 0.1, "size": 6}).train
    assert scaled.take(np.arange(len(scaled)))[0].shape[1:] == (3, 6, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "nowhere"}, "there is no folder 'nowhere'"),
        ({"path": "."}, "has no folders with images"),
        ({"path": "a", "size": 0}, "size must be at least 1 pixel"),
        ({"path": "a", "test_path": "b"}, "a has the class folders cat, dog, b has cat, cow"),
    ],
)
def test_mistakes_get_a_clear_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "a"), write(tmp_path / "b", ("cat", "cow"))
    monkeypatch.chdir(tmp_path if options["path"] != "." else tmp_path / "empty")
    with pytest.raises(ConfigurationError, match=message):
        DATASETS.create("image-folder", options)


def folder_of(tmp_path: Path, image: Any, ending: str) -> Path:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(4):
            image.save(tmp_path / name / f"{number}.{ending}")
    return tmp_path


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_images_of_16_bits_keep_their_contrast(ending: str, tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    data = DATASETS.create("image-folder", {"path": str(folder_of(tmp_path, Image.fromarray(values), ending))})
    images, _ = data.train.take(np.arange(2))
    np.testing.assert_allclose(images[0], np.broadcast_to(values / 65535, (3, 8, 8)), atol=1 / 255)


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_images_of_32_bits_are_refused(kind: Any, tmp_path: Path) -> None:
    image = Image.fromarray(np.linspace(0, 1000, 64).astype(kind).reshape(8, 8))
    data = DATASETS.create("image-folder", {"path": str(folder_of(tmp_path, image, "tif"))})
    with pytest.raises(DataError, match=r"pixels of 32 bits .* whose range is not known: convert it to 8 or 16 bits"):
        data.train.take(np.arange(2))
