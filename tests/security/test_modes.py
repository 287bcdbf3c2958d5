"""Files of runs, comparisons, jobs and inference clusters are readable by their owner only, even with an umask of 0."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.jobs.cluster_kit import chimera, experiment, running

from chimera.core.private import make_folder
from chimera.core.sqlite import SQLiteConnection, SQLiteFormat
from chimera.embeddings import WordVectors
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.membership import Members
from chimera.inference.session import InferenceCluster


@pytest.fixture(autouse=True)
def _umask_of_0() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """Return the paths below a folder that other users can access, with their modes."""
    modes = {path: path.lstat().st_mode for path in folder.rglob("*") if not path.is_symlink()}
    assert modes
    return [f"{path} {stat.filemode(mode)}" for path, mode in modes.items() if mode & 0o077]


def test_created_folders_are_private_and_existing_ones_keep_their_mode(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    make_folder(tmp_path / "shared" / "a" / "b")
    assert [path.name for path in tmp_path.rglob("*") if path.stat().st_mode & 0o077] == ["shared"]
    (tmp_path / "file").touch(0o600)
    for path in (tmp_path / "file", tmp_path / "file" / "a"):
        with pytest.raises(NotADirectoryError, match=r"Not a directory: .*file'"):
            make_folder(path)


@pytest.mark.long
def test_a_training_run(tmp_path: Path) -> None:
    file = experiment(tmp_path / "mine", rounds=4)
    ran = chimera(
        "train",
        file,
        "--engine",
        "simulated",
        "--out",
        tmp_path / "runs" / "one",
        "--set",
        "train.checkpoint_every=2",
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    assert list((tmp_path / "runs" / "one" / "checkpoints").iterdir())
    assert not open_to_others(tmp_path / "runs")
    assert (tmp_path / "runs").stat().st_mode & 0o077 == 0


@pytest.mark.long
def test_a_comparison(tmp_path: Path) -> None:
    file = experiment(tmp_path / "mine", rounds=2)
    ran = chimera(
        "compare",
        file,
        "--vary",
        "train.seed=1",
        "--set",
        "engine.name=simulated",
        "--out",
        tmp_path / "grid",
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "grid" / "comparison.csv").exists()
    assert not open_to_others(tmp_path / "grid")


@pytest.mark.long
def test_a_job_on_a_cluster(tmp_path: Path) -> None:
    file = experiment(tmp_path / "mine", rounds=40)
    (tmp_path / "mine" / "code_of_mine.py").write_text(
        "from pathlib import Path\n\ndef f(worker):\n    Path('of my own').write_text('x')\n    return 1\n"
    )
    with running(tmp_path / "cluster") as cluster:
        ran = chimera("submit", file, "--folder", cluster.folder.path, "--follow", cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        call = f"submit(code_of_mine.f, cluster={str(cluster.folder.path)!r})"
        code = f"import code_of_mine; from chimera.jobs.client.handle import submit; print({call}.result())"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path / "mine", capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(["", *sys.path])},
        )  # fmt: skip
        assert done.stdout.strip() == "[1, 1]", done.stderr
        assert list(cluster.folder.path.rglob("of my own"))
        assert not open_to_others(cluster.folder.path)


@pytest.mark.long
def test_an_inference_cluster(tmp_path: Path) -> None:
    with InferenceCluster(workers=1, folder=tmp_path / "cluster", preload=""):
        assert (tmp_path / "cluster" / "journal.sqlite").exists()
        assert not open_to_others(tmp_path / "cluster")


def test_the_files_of_a_journal_and_of_members(tmp_path: Path) -> None:
    kind = SQLiteFormat("journal", 17, 1, "CREATE TABLE rows (row INTEGER)")
    channel = SQLiteConnection(tmp_path / "deep" / "journal.sqlite", kind)
    channel.prepare()
    folder = ClusterFolder(tmp_path / "inference")
    folder.create()
    folder.note_leader(1, "http://127.0.0.1:1")
    Members(folder.members).join("worker", "one", "http://127.0.0.1:1", state="idle")
    assert len(list((tmp_path / "deep").iterdir())) > 1  # SQLite's own beside it
    assert not open_to_others(tmp_path)
    channel.close()


@pytest.mark.parametrize("ending", [".csv", ".txt", ".bin", ".safetensors"])
def test_word_vectors(ending: str, tmp_path: Path) -> None:
    WordVectors(("a", "b"), np.zeros((2, 3), np.float32)).save(tmp_path / f"vectors{ending}")
    assert not open_to_others(tmp_path)
