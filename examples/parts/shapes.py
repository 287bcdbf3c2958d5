"""Images of shapes, their augmentation and a network: for images.toml. ``python shapes.py FOLDER`` writes the images."""

import random
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageOps
from torch import nn

KINDS = ("circle", "cross", "square")


def draw(kind: str, rng: random.Random) -> Image.Image:
    """Return an image of 32 x 32 pixels with one shape on a noisy background."""
    background = np.random.default_rng(rng.randrange(2**32)).integers(0, 120, (32, 32, 3), np.uint8)
    image = Image.fromarray(background)
    pen = ImageDraw.Draw(image)
    size = rng.randrange(10, 20)
    x, y = rng.randrange(32 - size), rng.randrange(32 - size)
    color = tuple(rng.randrange(130, 256) for _ in range(3))
    if kind == "circle":
        pen.ellipse((x, y, x + size, y + size), outline=color, width=3)
    elif kind == "square":
        pen.rectangle((x, y, x + size, y + size), outline=color, width=3)
    else:
        pen.line((x, y, x + size, y + size), fill=color, width=3)
        pen.line((x, y + size, x + size, y), fill=color, width=3)
    return image


def write(folder: Path, images: int = 300) -> None:
    """Write ``images`` files per kind, in one folder per kind."""
    rng = random.Random(1)
    for kind in KINDS:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(images):
            draw(kind, rng).save(folder / kind / f"{number}.png")


def plain(image: Image.Image) -> np.ndarray:
    """Return the pixels as float32 from -1 to 1, shape (3, 32, 32)."""
    return np.asarray(image, np.float32).transpose(2, 0, 1) / 127.5 - 1


def augment(image: Image.Image) -> np.ndarray:
    """Return the pixels of the image, mirrored and shifted at random."""
    if random.random() < 0.5:
        image = ImageOps.mirror(image)
    shifted = ImageOps.expand(image, 4).crop(
        (left := random.randrange(9), top := random.randrange(9), left + 32, top + 32)
    )
    return plain(shifted)


def network(*, outputs: int, width: int = 16) -> nn.Module:
    """Return a network of three convolutions with batch normalization."""
    layers: list[nn.Module] = []
    channels = 3
    for factor in (1, 2, 4):
        layers += [
            nn.Conv2d(channels, factor * width, 3, stride=2, padding=1),
            nn.BatchNorm2d(factor * width),
            nn.ReLU(),
        ]
        channels = factor * width
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(channels, outputs))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
