"""The transforms and the network of the experiment."""

import random

import numpy as np
from PIL import Image, ImageOps
from torch import nn

SIZE = 32


def pixels(image: Image.Image) -> np.ndarray:
    """Return the pixels as float32 from -1 to 1, shape (3, SIZE, SIZE)."""
    small = image.convert("RGB").resize((SIZE, SIZE))
    return np.asarray(small, np.float32).transpose(2, 0, 1) / 127.5 - 1


def augmented(image: Image.Image) -> np.ndarray:
    """Return the pixels of the image, mirrored at random in each epoch, from the run's seed."""
    return pixels(ImageOps.mirror(image) if random.random() < 0.5 else image)


def network(*, outputs: int, width: int = 16) -> nn.Module:
    """Return a convolutional network; Chimera passes ``outputs``, the number of classes."""
    layers: list[nn.Module] = []
    channels = 3
    for factor in (1, 2, 4):
        layers += [nn.Conv2d(channels, factor * width, 3, stride=2, padding=1), nn.ReLU()]
        channels = factor * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs))
