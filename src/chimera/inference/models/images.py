"""Images that queries name. Workers open them, so that only the names are sent."""

from __future__ import annotations

import io
from typing import Any

from chimera.core.errors import DataError
from chimera.models.instantiation import first_line

MAX_IMAGE_BYTES = 64 << 20
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
"""Formats that are opened. Others are refused; Pillow would pass EPS to another program."""
MAX_PIXELS = 80_000_000  # below the number at which Pillow warns


def open_image(query: Any) -> Any:
    """Return a Pillow image in RGB, rotated by its EXIF orientation.

    Parameters
    ----------
    query : a path, a URL of fsspec (``gs://``, ``https://``, ``data:image/png;base64,...``), or pixels of type uint8 and shape
        (height, width), (height, width, 3) or (height, width, 4).

    Raises
    ------
    DataError : the image is missing, too large or broken.
    """
    from PIL import Image, ImageOps

    if not isinstance(query, str):
        return _of_pixels(query)
    content, name = _content(query), query if len(query) <= 200 else f"{query[:200]}..."
    Image.init()  # registers all formats
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DataError(f"{name} has {image.width} x {image.height} pixels; at most {MAX_PIXELS} are opened")
            return ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, ValueError, SyntaxError, EOFError) as error:  # Pillow raises SyntaxError for a broken PNG
        if isinstance(error, DataError):
            raise
        raise DataError(f"{name} is no image, or a broken one: {first_line(error)}") from error
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(f"{name} has too many pixels; at most {MAX_PIXELS} are opened") from error


def _content(query: str) -> bytes:
    import fsspec

    try:
        with fsspec.open(query, "rb") as file:
            content: bytes = file.read(MAX_IMAGE_BYTES + 1)
    except FileNotFoundError:
        raise DataError(f"there is no image {query!r}") from None
    except (OSError, ValueError, ImportError) as error:
        raise DataError(f"the image {query[:200]!r} cannot be read: {first_line(error)}") from error
    if len(content) > MAX_IMAGE_BYTES:
        raise DataError(f"{query!r} is larger than {MAX_IMAGE_BYTES >> 20} MiB")
    return content


def _of_pixels(query: Any) -> Any:
    import numpy as np
    from PIL import Image

    try:
        pixels = np.asarray(query)
        if (
            pixels.dtype != np.uint8
            and pixels.dtype.kind in "iu"
            and pixels.size
            and 0 <= pixels.min() <= pixels.max() < 256
        ):
            pixels = pixels.astype(np.uint8)  # from a list that was sent as JSON
    except ValueError as error:
        raise DataError(f"a {type(query).__name__} is no image: its rows differ in length") from error
    if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))):
        raise DataError(
            f"an array of {pixels.dtype} of shape {pixels.shape} is no image: it must be uint8, (height, width) or "
            "(height, width, 3)"
        )
    return Image.fromarray(pixels).convert("RGB")
