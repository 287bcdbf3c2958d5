"""Models that a machine fetches from the cluster: only files that run no code, whole, and with the right hashes."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chimera.core.errors import ConfigurationError
from chimera.inference.models import check, load
from chimera.inference.models.spec import key_of
from chimera.inference.remote_workers import files
from chimera.inference.remote_workers.fetcher import Fetcher
from chimera.inference.remote_workers.files import SharedModels, read_piece
from chimera.inference.remote_workers.models import FAILED, ForeignModels, folders_of
from chimera.inference.remote_workers.protocol import FILE_PIECE_BYTES, FilesAnswer, FilesRequest, SharedFile
from inference.running import cluster, until
from inference.test_remote_workers import address
from inference_kit import tiny_bert

MACHINE = "a" * 16
BIG = os.urandom(2 * FILE_PIECE_BYTES + 1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a folder like that of a model, with files that are not sent."""
    folder = tmp_path / "coordinator" / "bert"
    folder.mkdir(parents=True)
    for name in ("config.json", "vocab.txt", "evil.py", "weights.bin", ".hidden.json", "a b.json", "chat.jinja"):
        (folder / name).write_text(name)
    (folder / "model.safetensors").write_bytes(BIG)
    (folder / "more.json").mkdir()
    return folder


class Answers:
    """The cluster as a fetcher sees it; the test may change its answers."""

    def __init__(
        self, change: Callable[[FilesRequest, FilesAnswer], FilesAnswer | None] = lambda _, found: found
    ) -> None:
        self.change, self.models = change, SharedModels()

    def connection(self) -> Any:
        class Connection:
            def break_off(self, why: str) -> None: ...
            def close(self) -> None: ...

        return Connection()

    def files(self, _: Any, worker: str, request: FilesRequest) -> FilesAnswer | None:
        assert (worker, request.machine) == ("b.w0", MACHINE)
        folder = Path(request.path)
        found = (
            FilesAnswer(data=read_piece(folder, request.name, request.at))
            if request.name
            else FilesAnswer(self.models.files(folder))
        )
        changed = self.change(request, found)
        return None if changed is None else msgspec.convert(msgspec.to_builtins(changed), FilesAnswer)


def fetched(cache: Path, cluster: Answers, table: dict[str, Any], max_bytes: int = 1 << 30) -> dict[str, Any]:
    """Return the table of a worker whose machine has no folder, after its folders are fetched."""
    fetcher = Fetcher(cluster, MACHINE, cache, max_bytes, lambda _: None)  # type: ignore[arg-type]
    fetcher.start()
    foreign = ForeignModels("b.w0", code=False, cache=cache)
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor() as threads:
        patch.setattr("chimera.inference.remote_workers.models.code_of", lambda _: "")
        patch.setattr("chimera.inference.remote_workers.models.is_here", lambda path: False)
        try:
            found = threads.submit(foreign.table, table, lambda: True).result(20)
            assert foreign.key(key_of(found)) == key_of(table)
            return found
        finally:
            fetcher.stop()


def test_files_that_run_no_code_are_fetched_and_kept(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chimera.inference.remote_workers.fetcher._RETRY_S", 0.01)
    asked: list[FilesRequest] = []

    def flaky(request: FilesRequest, found: FilesAnswer) -> FilesAnswer | None:
        asked.append(request)
        return None if len(asked) % 3 == 2 else found  # the network breaks again and again

    table = {"kind": "transformers", "task": "fill-mask", "model": str(model), "stamp": "1"}
    found = fetched(tmp_path / "cache", Answers(flaky), table)
    folder = Path(found["model"])
    assert sorted(each.name for each in folder.iterdir()) == [
        "chat.jinja",
        "config.json",
        "model.safetensors",
        "vocab.txt",
    ]
    assert (folder / "model.safetensors").read_bytes() == BIG
    modes = {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}
    assert (modes, stat.S_IMODE(folder.stat().st_mode)) == ({0o600}, 0o700)
    before = len(asked)
    assert fetched(tmp_path / "cache", Answers(flaky), table) == found
    assert len(asked) == before
    assert fetched(tmp_path / "cache", Answers(flaky), table | {"stamp": "2"})["model"] != found["model"]


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        ([], "has no files of a model that may be sent"),
        ([SharedFile("config.json", 1 << 40, "0" * 64)], "--fetch-gib permits"),
        ([SharedFile("config.json", 3, "0" * 64)], "has changed while it was fetched"),
        ([SharedFile("config.json", 11, "0" * 64)], "has another hash"),
        ([SharedFile("config.json", 11, "0" * 64)] * 2, "has no files of a model"),
    ],
)
def test_wrong_lists_leave_no_folder(listed: list[SharedFile], reason: str, model: Path, tmp_path: Path) -> None:
    wrong = Answers(lambda request, found: found if request.name else FilesAnswer(listed))
    with pytest.raises(ConfigurationError, match=reason):
        fetched(tmp_path / "cache", wrong, {"kind": "transformers", "model": str(model)})
    assert [each.name for each in (tmp_path / "cache").iterdir() if not each.name.endswith(FAILED)] == []


@pytest.mark.parametrize(
    "name", ["../x.json", "/etc/x.json", "a/b.json", "x.py", "x.bin", "x.json\n", "", ".x.json", "x.pt"]
)
def test_other_files_are_neither_listed_nor_sent(name: str, model: Path) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"files": [{"name": name, "size": 1, "sha256": "0" * 64}]}, FilesAnswer)
    with pytest.raises(ConfigurationError, match=r"is not sent: only \.safetensors"):
        read_piece(model, name, 0)


def test_links_out_of_the_folder_are_not_followed(model: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("secret")
    (model / "link.json").symlink_to(secret)
    with pytest.raises(ConfigurationError, match="is a link out of its folder"):
        read_piece(model, "link.json", 0)
    shared = SharedModels()
    assert shared.files(model) is None
    with pytest.raises(ConfigurationError, match="is a link out of its folder"):
        until(lambda: shared.files(model))


def test_hashes_are_those_of_the_files_and_the_number_of_files_is_bounded(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SharedModels()
    found = until(lambda: shared.files(model))
    assert {each.name: each.sha256 for each in found}["model.safetensors"] == hashlib.sha256(BIG).hexdigest()
    monkeypatch.setattr(files, "MAX_FILES", 3)
    with pytest.raises(ConfigurationError, match="at most 3 are sent"):
        shared.files(model)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        shared.files(model / "none")


def test_the_model_that_was_not_used_for_the_longest_time_makes_room(model: Path, tmp_path: Path) -> None:
    cache, table = tmp_path / "cache", {"kind": "transformers", "model": str(model)}
    size = sum(each.size for each in _listed(SharedModels(), model))
    folders = [Path(fetched(cache, Answers(), table | {"stamp": stamp})["model"]) for stamp in "12"]
    os.utime(folders[0], (1, 1))
    third = Path(fetched(cache, Answers(), table | {"stamp": "3"}, 2 * size + 1)["model"])
    assert [each.is_dir() for each in (*folders, third)] == [False, True, True]


def _listed(shared: SharedModels, folder: Path) -> list[SharedFile]:
    return list(until(lambda: shared.files(folder)))


def test_models_that_run_code_are_not_fetched() -> None:
    table = {"kind": "transformers", "model": "/a", "tokenizer": "b"}
    assert list(folders_of(table)) == [("model", "/a")]
    for more in ({"trust_remote_code": True}, {"pickled_weights": True}, {"kind": "factory"}, {"kind": "chimera"}):
        assert list(folders_of(table | more)) == []


def test_a_worker_stops_waiting_when_its_batch_is_taken_back(tmp_path: Path) -> None:
    foreign, taken_back = ForeignModels("b.w0", code=False, cache=tmp_path / "cache"), threading.Event()
    table = {"kind": "transformers", "model": str(tmp_path / "none")}
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(foreign.table, table, lambda: not taken_back.is_set())
        until(lambda: list((tmp_path / "cache").glob("*.wanted")))
        taken_back.set()
        assert str(waiting.exception(20)) == "the batch was taken back"


@pytest.mark.long
@pytest.mark.takes("clusters with and without --fetch-models load a model of transformers")
@pytest.mark.parametrize("permits", [True, False])
def test_a_machine_without_the_folder_of_a_model_fetches_it(permits: bool, tmp_path: Path) -> None:
    if (
        not shutil.which("unshare")
        or subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs mount namespaces: install util-linux, and allow unprivileged user namespaces or run as root")
    table = check({"kind": "transformers", "task": "fill-mask", "model": str(tiny_bert(tmp_path / "models" / "bert"))})
    queries = [f"the {word} sat on the [MASK] ." for word in ("cat", "dog")] * 10
    options = ["--port", "0", *(["--fetch-models"] if permits else [])]
    with cluster(tmp_path, workers=0, standbys=0, options=options) as running:
        command = [sys.executable, "-m", "chimera", "infer", "worker", "--join", address(tmp_path), "--name", "b"]
        command += [
            "--token-file",
            str(running.folder / "worker-token"),
            "--folder",
            str(tmp_path / "b"),
            "--fetch-models",
        ]
        hidden = f"mount -t tmpfs none {tmp_path / 'models'} && exec {' '.join(command)}"
        with (tmp_path / "b.log").open("wb") as log:
            machine = subprocess.Popen(["unshare", "-rm", "sh", "-c", hidden], stdout=log, stderr=log)
        try:
            job = running.client.submit(table, queries)
            row = running.client.wait(job, 60)
            if permits:
                assert row["errors"] == 0
                assert running.answers(job) == load(table).predict(queries)
            else:
                assert row["state"] == "failed"
                assert row["error"] == (
                    "the model cannot be loaded: this cluster sends no models: start it with 'chimera infer up --fetch-models'"
                )
        finally:
            machine.terminate()
            machine.wait(20)
