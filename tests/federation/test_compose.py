"""The example with Docker Compose: its commands in federation.md, with processes and folders in place of containers.

No test has the plug-in ``docker compose``. A program named ``docker`` in the folder of the test reads the real ``compose.yaml``
and runs the commands of its services. What it does not show: the image, networks and rights of containers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets")
yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "federation"
NODES = ("hospital-a", "hospital-b", "hospital-c")
DOCKER = """#!{python}
import json, os, shlex, subprocess, sys, time
from pathlib import Path
import yaml

root, given = Path({root!r}), sys.argv[2:]
services = yaml.safe_load(Path("compose.yaml").read_text())["services"]
own = {{"0.0.0.0": "127.0.0.1", "0.0.0.0:8444": "127.0.0.1:0", "hub": "127.0.0.1", "/experiment.toml": "experiment.toml",
       "/make_data.py": "make_data.py", "python": sys.executable}}

def start(name, command, **options):
    folder = root / "volumes" / name
    folder.mkdir(parents=True, exist_ok=True)
    for volume in services[name]["volumes"]:
        source, to = volume.split(":")[:2]
        if source.startswith("./"):
            (folder / source).write_bytes(Path(source).read_bytes())
        elif to != "/state":  # the volume of another service, below this one's
            (root / "volumes" / source).mkdir(parents=True, exist_ok=True)
            (folder / source).symlink_to(root / "volumes" / source)
    command = [own.get(word, word) if command[:2] != ["chimera", "hub"] or word != "hub" or place > 1 else word
               for place, word in enumerate(command)]
    if command[:3] == ["chimera", "hub", "up"]:
        command += ["--port", "0"]
    if command[0] == "chimera":
        command = [sys.executable, "-m", *command]
    return subprocess.Popen(command, cwd=folder, **options)

match given:
    case ["build", "hub"]:
        sys.exit(0)
    case ["run", "--rm", name, *command]:
        sys.exit(start(name, command or shlex.split(services[name]["command"])).wait())
    case ["exec", "-T", name, *command]:
        sys.exit(start(name, command).wait())
    case ["up", "-d", *names]:
        known = root / "pids.json"
        pids = json.loads(known.read_text()) if known.exists() else {{}}
        for name in names or [name for name in services if "profiles" not in services[name]]:
            if name not in pids:
                command = shlex.split(services[name]["command"])
                said = root / f"{{name}}.log"
                with said.open("wb") as log:
                    process = start(name, command, stdout=log, stderr=log, start_new_session=True)
                pids[name] = process.pid
                known.write_text(json.dumps(pids))
                while process.poll() is None and not said.read_bytes().endswith(b"\\n"):
                    time.sleep(0.05)
    case _:
        sys.exit(f"unknown: {{given}}")
"""


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
    return found["services"]


def test_nodes_have_a_folder_of_their_own_and_no_port() -> None:
    found = services()
    assert {"hub", "alice", "data", *NODES} == set(found)
    for name in NODES:
        assert "ports" not in found[name]
        assert found[name]["volumes"] == [f"{name}:/state"]
        (network,) = found[name]["networks"]
        assert [other for other in found if network in found[other].get("networks", [])] == ["hub", name]
    assert all(port.startswith("127.0.0.1:") for port in found["hub"]["ports"])
    assert all(
        service["cap_drop"] == ["ALL"] and service["image"] == "chimera-federation" for service in found.values()
    )


def test_files_of_the_image_exist() -> None:
    build = services()["hub"]["build"]
    root = (EXAMPLE / build["context"]).resolve()
    assert root == ROOT
    lines = (root / build["dockerfile"]).read_text().splitlines()
    for line in lines:
        if line.startswith("COPY "):
            assert all((root / name).exists() for name in line.split()[1:-1]), line
    assert lines[-1].startswith("USER ")


@pytest.mark.long
@pytest.mark.takes("it starts a hub, three nodes, a driver and ten commands, each as a process")
def test_the_documented_commands_train(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "how-to" / "federation.md").read_text()
    (script,) = re.findall(r"```sh\n(cd examples/federation\n.*?)```", text, re.DOTALL)
    example = tmp_path / "examples" / "federation"
    shutil.copytree(EXAMPLE, example)
    (example / "experiment.toml").write_text(
        (EXAMPLE / "experiment.toml").read_text().replace("rounds = 100", "rounds = 10")
    )
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(DOCKER.format(python=sys.executable, root=str(tmp_path)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environment = os.environ | {
        "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "accuracy" in done.stdout
        assert all(re.search(rf"{name} +node? +connected|{name}.*connected", done.stdout) for name in NODES), (
            done.stdout
        )
        assert "each follows the one before" in done.stdout
        volumes = tmp_path / "volumes"
        assert (volumes / "alice" / "run" / "weights.safetensors").is_file()
        assert all((volumes / name / "chimera-node" / "audit.jsonl").stat().st_size for name in NODES)
    finally:
        pids = tmp_path / "pids.json"
        for pid in json.loads(pids.read_text()).values() if pids.exists() else ():
            os.kill(pid, signal.SIGKILL)
