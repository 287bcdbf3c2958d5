"""Write the folder images: bright shapes on dark noise, in a folder for each class. Replace it by your own folder."""

import random
from pathlib import Path

from PIL import Image, ImageDraw

CLASSES = ("disc", "square")
SIZE = 32


def draw(kind: str, rng: random.Random) -> Image.Image:
    """Return an image of one shape."""
    image = Image.new("RGB", (SIZE, SIZE), tuple(rng.randrange(60) for _ in range(3)))
    side = rng.randrange(12, 22)
    left, top = rng.randrange(SIZE - side), rng.randrange(SIZE - side)
    box, color = (left, top, left + side, top + side), tuple(rng.randrange(120, 256) for _ in range(3))
    pen = ImageDraw.Draw(image)
    (pen.ellipse if kind == "disc" else pen.rectangle)(box, fill=color)
    return image


def write(folder: Path, each: int = 100) -> None:
    """Write ``each`` images of each class; the same in every call."""
    rng = random.Random(1)
    for kind in CLASSES:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            draw(kind, rng).save(folder / kind / f"{number}.png")


if __name__ == "__main__":
    write(Path(__file__).with_name("images"))
