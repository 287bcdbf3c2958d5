"""Virtual environments that hold a part of this one's packages: those that given requirements install, and no others.

Packages are linked from the environment that runs the tests, so that no network is needed. The source of Chimera comes from
this checkout. A ``pip`` in the environment answers ``pip install`` in the same way.
"""

from __future__ import annotations

import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

NAME = "chimera-dml"
SOURCE = Path(__file__).parents[1] / "src"
COMMANDS = {"chimera": "from chimera.cli.main import main; main()", "pytest": "import pytest; sys.exit(pytest.main())"}


def required(requirement: Requirement, found: dict[str, set[str]]) -> None:
    """Add the distributions of a requirement, and the requested extras of each, to ``found``."""
    new = {""} | requirement.extras
    known = found.setdefault(requirement.name, set())
    if new <= known:
        return
    known |= new
    for text in distribution(requirement.name).requires or []:
        needed = Requirement(text)
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in known):
            required(needed, found)


def install(folder: Path, *requirements: str) -> None:
    """Link the packages of requirements, such as ``chimera-dml[train]``, into the environment in a folder."""
    (packages,) = folder.glob("lib/python3*/site-packages")
    found: dict[str, set[str]] = {}
    for requirement in requirements:
        required(Requirement(requirement), found)
    for name in found:
        for file in distribution(name).files or []:
            top = file.parts[0]
            if top not in ("..", "/", "__pycache__") and not (packages / top).exists():
                (packages / top).symlink_to(distribution(name).locate_file(top))


def create(folder: Path) -> Path:
    """Create an environment with Chimera's base packages in a folder, and return its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "chimera-source.pth").write_text(f"{SOURCE}\n", encoding="utf-8")
    install(folder, NAME)
    python = folder / "bin" / "python"
    for command, code in COMMANDS.items():
        write_script(folder / "bin" / command, python, f"import sys\nif __name__ == '__main__':\n    {code}\n")
    write_script(
        folder / "bin" / "pip", Path(sys.executable),
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"import bare_environment\nbare_environment.pip({str(folder)!r}, sys.argv[1:])\n",
    )  # fmt: skip
    return python


def write_script(path: Path, python: Path, code: str) -> None:
    """Write a command that runs code with a Python."""
    path.write_text(f"#!{python}\n{code}", encoding="utf-8")
    path.chmod(0o755)


def pip(folder: str, arguments: list[str]) -> None:
    """Answer ``pip install [-e] REQUIREMENT``, where ``.`` is Chimera.

    Raises
    ------
    ValueError : the arguments are others.
    """
    if arguments[0] != "install":
        raise ValueError(f"this pip can only install: {arguments}")
    requirements = [argument for argument in arguments[1:] if argument != "-e"]
    install(Path(folder), *(text.replace(".", NAME, 1) if text.startswith(".") else text for text in requirements))
