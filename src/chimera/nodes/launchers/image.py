"""The image of all workers' containers: a base image with Python, this installation of Chimera, and its dependencies.

This machine downloads all packages with its own pip configuration, and builds the image without a network. The build works
behind any proxy or mirror with which pip works on this machine.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib.metadata
import io
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera import version
from chimera.nodes.launchers.launcher import Echo, LauncherError
from chimera.version import __version__

REPOSITORY = "chimera-worker"
DISTRIBUTION = "chimera-dml"
EXTRA = "nodes"
FETCH_S = 1800.0
STAGE_LABEL = "chimera.image"

DOCKERFILE = f"""\
FROM {{base}} AS build
LABEL {STAGE_LABEL}=build
COPY wheels /wheels
RUN python3 -m venv /opt/chimera \\
 && /opt/chimera/bin/pip install --no-cache-dir --no-compile --no-index --find-links /wheels {{packages}} \\
 && (/opt/chimera/bin/python -m compileall -q -j 0 -x /tests/ /opt/chimera/lib >/dev/null || true)

FROM {{base}}
COPY --from=build /opt/chimera /opt/chimera
ENV PATH=/opt/chimera/bin:$PATH HOME=/home/chimera PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN mkdir -p /home/chimera
WORKDIR /home/chimera
USER 10001:10001
LABEL {STAGE_LABEL}=done
"""
_PROBE = "import platform, sys; print((sys.version_info[:2], platform.machine(), platform.libc_ver()))"


@dataclass(frozen=True)
class Target:
    """The platform of the wheels: a version of Python, a machine (``x86_64``), a version of glibc."""

    python: tuple[int, int]
    machine: str
    glibc: tuple[int, int]

    def pip_options(self) -> list[str]:
        """Return the options of ``pip download`` for such wheels, newest platforms first."""
        platforms = [f"manylinux_2_{minor}_{self.machine}" for minor in range(self.glibc[1], 4, -1)]
        platforms += [f"manylinux2014_{self.machine}", f"manylinux2010_{self.machine}", f"linux_{self.machine}"]
        version = ".".join(map(str, self.python))
        options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={version}"]
        return options + [f"--platform={platform}" for platform in platforms]


def worker_image(client: Any, base: str, packages: Sequence[str], echo: Echo) -> str:
    """Return the tag of the workers' image. Build the image if it does not exist yet.

    Parameters
    ----------
    client : a Docker client.
    base : the base image; pulled if it is not on this machine.
    packages : requirements to install besides Chimera, such as ``torch``.
    echo : prints a line for the user.

    Raises
    ------
    LauncherError : the base image cannot be pulled or used, a package cannot be downloaded, or the build failed.
    """
    from docker.errors import DockerException, ImageNotFound

    wheel = build_wheel()
    try:
        base_id = _base(client, base, echo)
        tag = f"{REPOSITORY}:{__version__}-{_digest(DOCKERFILE, base_id, *sorted(packages), wheel)}"
        try:
            client.images.get(tag)
        except ImageNotFound:
            echo(f"building the workers' image {tag} on {base}: this is done once and takes some minutes")
            _build(client, tag, base, packages, wheel)
    except DockerException as error:
        raise LauncherError(f"cannot build the workers' image: {reason(error)}") from error
    return tag


def _base(client: Any, base: str, echo: Echo) -> str:
    from docker.errors import DockerException, ImageNotFound

    try:
        return str(client.images.get(base).id)
    except ImageNotFound:
        echo(f"pulling the image {base}")
    try:
        client.images.pull(base)
        return str(client.images.get(base).id)
    except DockerException as error:
        raise LauncherError(
            f"the image {base!r} is not on this machine, and it cannot be pulled ({reason(error)}); "
            "set CHIMERA_BASE_IMAGE to an image with Python 3.11 or newer, or CHIMERA_LAUNCHER=process"
        ) from error


def _build(client: Any, tag: str, base: str, packages: Sequence[str], wheel: bytes) -> None:
    from docker.errors import BuildError

    target = _target(client, base)
    with tempfile.TemporaryDirectory(prefix="chimera-image-") as folder:
        wheels = Path(folder) / "wheels"
        wheels.mkdir()
        own = wheels / wheel_name()
        own.write_bytes(wheel)
        wanted = [f"{DISTRIBUTION}[{EXTRA}] @ {own.as_uri()}", *packages]
        _fetch(wanted, target, wheels)
        named = " ".join(f"'{package}'" for package in (f"{DISTRIBUTION}[{EXTRA}]", *packages))
        (Path(folder) / "Dockerfile").write_text(DOCKERFILE.format(base=base, packages=named), encoding="utf-8")
        try:
            client.images.build(path=folder, tag=tag, rm=True, forcerm=True, network_mode="none")
        except BuildError as error:
            log = "".join(str(line.get("stream") or line.get("error") or "") for line in error.build_log)
            raise LauncherError(f"the build of the workers' image failed:\n{log[-2000:].strip()}") from error
        finally:
            client.images.prune(filters={"dangling": True, "label": f"{STAGE_LABEL}=build"})


def _target(client: Any, base: str) -> Target:
    from docker.errors import ContainerError, DockerException

    try:
        output = client.containers.run(base, ["python3", "-c", _PROBE], remove=True, network_mode="none", entrypoint=[])
        python, machine, (libc, libc_version) = ast.literal_eval(output.decode())
    except (ContainerError, DockerException, ValueError, SyntaxError) as error:
        raise LauncherError(f"the image {base!r} cannot run python3: {error}; set CHIMERA_BASE_IMAGE") from error
    if python < (3, 11) or libc != "glibc":
        raise LauncherError(
            f"the image {base!r} has Python {python[0]}.{python[1]} on {libc or 'a libc that is not glibc'}; "
            "Chimera needs Python 3.11 or newer on glibc: set CHIMERA_BASE_IMAGE"
        )
    major, minor = map(int, libc_version.split(".")[:2])
    return Target(python, machine, (major, minor))


def _fetch(wanted: Sequence[str], target: Target, wheels: Path) -> None:
    """Download wheels for the target, in the versions that are installed on this machine."""
    constraints = wheels.parent / "constraints.txt"
    constraints.write_text("".join(f"{pin}\n" for pin in installed_versions()), encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += [*target.pip_options(), f"--constraint={constraints}", f"--dest={wheels}", *wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)  # noqa: S603 - docker or pip with arguments of the project, no shell
    except subprocess.TimeoutExpired as error:
        raise LauncherError(f"downloading the packages of the workers' image took over {FETCH_S:g} s") from error
    if done.returncode:
        raise LauncherError(f"cannot download the packages of the workers' image:\n{done.stderr[-2000:].strip()}")


def installed_versions() -> list[str]:
    """Return the packages installed here as pip constraints, so that workers use the same versions as the master."""
    found = {}
    for distribution in importlib.metadata.distributions():
        name, version = distribution.metadata["Name"], distribution.version
        if name and name.lower() not in (DISTRIBUTION, "pip", "setuptools", "wheel"):
            found[name.lower()] = f"{name}=={version.partition('+')[0]}"
    return sorted(found.values())


def wheel_name() -> str:
    """Return the file name of Chimera's wheel."""
    return f"{DISTRIBUTION.replace('-', '_')}-{__version__}-py3-none-any.whl"


def build_wheel() -> bytes:
    """Return this installation of Chimera as a wheel. The same files give the same bytes."""
    package = Path(version.__file__).parent
    info = f"{DISTRIBUTION.replace('-', '_')}-{__version__}.dist-info"
    files = {
        path.relative_to(package.parent).as_posix(): path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    files[f"{info}/METADATA"] = _metadata(package).encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: chimera\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{name},sha256={_record_hash(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _metadata(package: Path) -> str:
    """Return the package metadata, from `pyproject.toml` in a source tree, otherwise from the installation."""
    project = package.parent.parent / "pyproject.toml"
    if not project.is_file():
        return importlib.metadata.distribution(DISTRIBUTION).read_text("METADATA") or ""
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    lines = ["Metadata-Version: 2.1", f"Name: {DISTRIBUTION}", f"Version: {__version__}"]
    lines += [f"Requires-Python: {table['requires-python']}", f"Provides-Extra: {EXTRA}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in table["dependencies"]]
    lines += [
        f'Requires-Dist: {requirement} ; extra == "{EXTRA}"' for requirement in table["optional-dependencies"][EXTRA]
    ]
    return "\n".join(lines) + "\n"


def reason(error: Exception) -> str:
    """Return Docker's error message in one line."""
    return " ".join(str(getattr(error, "explanation", None) or error).split())


def _record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:12]
