"""Runs whose files are in an object store: here in the memory of this process; `test_s3` uses a real server."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

import chimera
from chimera.cli.main import app
from chimera.core.errors import ConfigurationError
from chimera.training.artifacts.checkpoint import Checkpoints
from chimera.training.artifacts.download import local_copy
from chimera.training.artifacts.growing_file import SEGMENT_BYTES, GrowingFile
from chimera.training.artifacts.location import folder_of
from chimera.training.artifacts.object_store import ObjectStore, StoreError
from chimera.training.comparison.stored_grid import StoredGrid
from training.conftest import Fit

memory = fsspec.filesystem("memory")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the URL of a new folder; private folders of runs are below ``tmp_path / "private"``."""
    (tmp_path / "private").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "private"))
    url = f"memory://{uuid.uuid4().hex}/run"
    yield url
    memory.rm(url.rpartition("/")[0], recursive=True)


def names(url: str) -> list[str]:
    return sorted(path.partition("/run/")[2] for path in memory.find(url))


def content(url: str, name: str) -> bytes:
    return memory.cat_file(f"{url}/{name}")


@pytest.mark.takes("it imports torch")
def test_a_run_in_a_store_has_the_files_of_a_run_in_a_folder(fit: Fit, tmp_path: Path, url: str) -> None:
    here, there = fit("run", evaluate_every=10), fit(out=url, evaluate_every=10)
    local = {str(path.relative_to(here.run_dir)) for path in here.run_dir.rglob("*") if path.is_file()}
    assert {name for name in names(url) if "round" not in name} == {name for name in local if "round" not in name}
    assert "checkpoints/round-000000030.safetensors" in names(url)  # slower uploads would skip the others
    for name in ("weights.safetensors", "metrics.jsonl", "trace.jsonl", "data.json", "signature.json"):
        assert content(url, name) == (here.run_dir / name).read_bytes(), name
    assert there.summary()["run_dir"] == there.location == url
    assert there.report == f"{url}/report.html"
    assert not list((tmp_path / "private").iterdir())


def test_a_run_resumes_from_a_store_as_from_a_folder(fit: Fit, url: str) -> None:
    for out in (url, "run"):
        where = {"out": out} if out == url else {"name": out}
        fit(rounds=12, evaluate_every=6, **where)
        last = fit(rounds=20, evaluate_every=6, resume=True, workers=2, **where)
    for name in ("weights.safetensors", "metrics.jsonl", "trace.jsonl"):
        assert content(url, name) == (last.run_dir / name).read_bytes(), name


def test_a_damaged_checkpoint_is_named_by_its_url_and_the_run_resumes_without_it(fit: Fit, url: str) -> None:
    fit(out=url, rounds=12, evaluate_every=6)
    damaged = sorted(memory.find(f"{url}/checkpoints"))[-1]
    memory.pipe_file(damaged, memory.cat_file(damaged)[:-1])
    with pytest.raises(ConfigurationError, match="is not a checkpoint") as caught:
        fit(out=url, rounds=20, resume=True)
    assert str(caught.value).startswith(f"{url}/checkpoints/round-000000012.safetensors is not")
    memory.rm_file(damaged)
    assert fit(out=url, rounds=20, resume=True).cost.rounds == 20


def test_a_second_run_with_one_url_is_refused(fit: Fit, url: str) -> None:
    fit(out=url, rounds=2)
    with pytest.raises(ConfigurationError, match=f"{url} already contains a run"):
        fit(out=url + "/", rounds=2)


def test_a_second_fit_of_one_trainer_does_not_replace_the_run_of_the_first(url: str) -> None:
    trainer = chimera.Trainer("logistic-regression", "digits", engine="simulated", rounds=2, out=url)
    trainer.fit()
    files = {name: memory.cat_file(name) for name in memory.find(url)}
    with pytest.raises(ConfigurationError, match=f"{url} already contains a run"):
        trainer.fit()
    assert {name: memory.cat_file(name) for name in memory.find(url)} == files


@pytest.mark.long
def test_a_model_and_a_plot_are_made_from_a_store(fit: Fit, tmp_path: Path, url: str) -> None:
    run = fit(out=url, rounds=2)
    assert chimera.load(url).state_dict().keys() == run.model.state_dict().keys()
    assert run.plot(tmp_path / "plot.svg").stat().st_size
    with pytest.raises(ConfigurationError, match="the files of this run are in memory://"):
        run.plot()
    assert url in run._repr_html_()
    with pytest.raises(ConfigurationError, match="there is no run in memory://nothing/run"):
        chimera.load("memory://nothing/run")
    assert [path.name for path in (tmp_path / "private").iterdir()] == []


def test_the_report_of_a_run_in_a_store_is_made_there(fit: Fit, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fit(out=url, rounds=2)
    before = content(url, "report.html")
    memory.rm_file(f"{url}/report.html")
    assert app(["report", url], standalone_mode=False) == 0
    assert capsys.readouterr().out == f"{url}/report.html\n"
    assert content(url, "report.html") == before


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s3://key:secret@bucket/run", "a user name or a password"),
        ("s3://key:sec/ret@bucket/run", "a user name or a password"),
        ("s3://secret@bucket/run", "a user name or a password"),
        ("sftp://user:secret@host/run", "a user name or a password"),
        ("gs://bucket/run?token=secret", "has options"),
        ("simplecache::s3://key:secret@bucket/run", "is not one URL"),
        ("s3://bucket/../run", "is not the folder of a run"),
        ("s3://bucket//run", "is not the folder of a run"),
        ("", "is empty"),
        ("s3://", "is not the folder of a run"),
        ("s3:/bucket/run", "one slash"),
        (Path("s3://bucket/run"), "one slash"),
    ],
)
def test_a_url_that_no_run_can_use_is_refused_without_its_secret(fit: Fit, url: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        fit(out=url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["s3://bucket", "sftp://user@host:22/a/run/", "abfs://c@account.dfs.core.windows.net/run", "hdfs://host:9000/a@b"],
)
def test_other_urls_are_accepted(url: str) -> None:
    assert folder_of(url) is None


def test_urls_of_this_machine_are_folders(tmp_path: Path) -> None:
    assert folder_of(f"file://{tmp_path}/run/") == tmp_path / "run"
    assert folder_of("runs/a:b") == Path("runs/a:b")


def test_a_comparison_is_not_mixed_with_other_files_of_a_store(url: str) -> None:
    experiment = chimera.Experiment.of(model="mlp", data="digits", rounds=1)
    memory.pipe_file(f"{url}/other.txt", b"of another user")
    for resume, why in ((False, "is not empty: resume its comparison"), (True, "holds no comparison to resume")):
        with pytest.raises(ConfigurationError, match=f"{url} {why}"):
            chimera.compare(experiment, {"train.batch_size": [8, 16]}, out=url, resume=resume)
    assert names(url) == ["other.txt"]
    with pytest.raises(ConfigurationError, match="is not the folder of a comparison"):
        chimera.Comparison.load(url)


def test_a_comparison_in_a_store_names_folders_only(url: str) -> None:
    memory.pipe_file(f"{url}/elsewhere/summary.json", b"{}")
    for name in ("../elsewhere", "..", "", "a/b"):
        with pytest.raises(ConfigurationError, match="which is no name of a folder"):
            StoredGrid(url).fetch([name])


def test_unknown_stores_are_refused(fit: Fit) -> None:
    with pytest.raises(ConfigurationError, match=r"the object store nowhere://bucket/run cannot be used: .*nowhere"):
        fit(out="nowhere://bucket/run")


def test_a_large_growing_file_is_uploaded_in_segments(tmp_path: Path, url: str) -> None:
    store, path = ObjectStore(url), tmp_path / "trace.jsonl"
    file = GrowingFile(store, path)
    file.send(whole=False)  # there is no such file yet
    written = b""
    for size in (10, SEGMENT_BYTES + 5, 3 * SEGMENT_BYTES - 10):
        path.write_bytes(written := written + bytes([len(written) % 251]) * (size - len(written)))
        file.send(whole=False)
        with local_copy(url, ["trace.jsonl"]) as folder:
            assert (folder / "trace.jsonl").read_bytes() == written
    assert names(url) == ["trace.jsonl", *(f"trace.jsonl.0000{number}" for number in range(3))]
    shorter = GrowingFile(store, path)  # of a run that resumes
    path.write_bytes(written := written[: SEGMENT_BYTES + 1])
    shorter.send(whole=False)
    with local_copy(url, ["trace.jsonl"]) as folder:
        assert (folder / "trace.jsonl").read_bytes() == written
    assert names(url) == ["trace.jsonl", "trace.jsonl.00000", "trace.jsonl.00001"]
    shorter.send(whole=True)
    assert names(url) == ["trace.jsonl"]
    assert content(url, "trace.jsonl") == written


def test_segments_of_another_age_do_not_mix(tmp_path: Path, url: str) -> None:
    memory.pipe_file(f"{url}/trace.jsonl.00000", bytes(SEGMENT_BYTES))
    memory.pipe_file(f"{url}/trace.jsonl.00001", b"new")
    memory.pipe_file(f"{url}/trace.jsonl.00002", b"of an earlier process")
    with local_copy(url, ["trace.jsonl"]) as folder:
        assert (folder / "trace.jsonl").read_bytes() == bytes(SEGMENT_BYTES) + b"new"


def test_files_that_are_too_large_are_not_read(tmp_path: Path, url: str) -> None:
    memory.pipe_file(f"{url}/experiment.toml", bytes((16 << 20) + 1))
    with pytest.raises(StoreError, match=r"experiment.toml has 16,777,217 bytes; at most 16,777,216 are read"):
        chimera.load(url)


def test_a_file_that_has_another_size_than_its_store_states_is_not_read_further(tmp_path: Path, url: str) -> None:
    store, path = ObjectStore(url), tmp_path / "weights"
    memory.pipe_file(f"{url}/weights.safetensors", bytes(100))
    store.get("weights.safetensors", path, 99)
    assert path.read_bytes() == bytes(99)
    with pytest.raises(StoreError, match=r"weights.safetensors does not have the 101 bytes"):
        store.get("weights.safetensors", path, 101)


class Remote(LocalFileSystem):
    """A file system with moves, and with files that appear before they are complete, as that of a server of SFTP."""

    protocol = "remote"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("remote://"))


class Watch(chimera.Callback):
    """Checks at some rounds that the run can resume from each checkpoint in the store, a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.found = folder, set[str]()

    def on_progress(self, progress: chimera.Progress) -> None:
        if progress.rounds % 5 or not progress.rounds:
            return
        deadline_s = time.monotonic() + 60
        while not (self.folder / "checkpoints" / f"round-{progress.rounds - 1:09d}.safetensors").exists():
            assert time.monotonic() < deadline_s
        for path in (self.folder / "checkpoints").glob("*.safetensors"):
            one = f"memory://{uuid.uuid4().hex}"
            try:
                memory.pipe_file(f"{one}/round-1.safetensors", path.read_bytes())
            except FileNotFoundError:  # a newer one has replaced it
                continue
            saved = Checkpoints(one).read_last()
            assert saved is not None
            self.found.add(path.name)
            for name, size in saved["files"].items():
                assert (self.folder / name).stat().st_size >= size, (path, name)


@pytest.mark.long
def test_a_run_can_resume_from_each_checkpoint_in_the_store(fit: Fit, tmp_path: Path) -> None:
    fsspec.register_implementation("remote", Remote, clobber=True)
    watch = Watch(tmp_path / "there" / "run")
    fit(out=f"remote://{watch.folder}", rounds=20, checkpoint_every=1, log_every=1, callbacks=[watch])
    assert len(watch.found) >= 3
    assert len(list((watch.folder / "checkpoints").iterdir())) <= 3  # as many as the run itself keeps


def test_what_a_failed_run_left_in_a_store_is_replaced(fit: Fit, url: str) -> None:
    for name in ("metrics.jsonl", "trace.jsonl", "trace.jsonl.00003", "data.json"):
        memory.pipe_file(f"{url}/{name}", b"rubbish")
    fit(out=url, rounds=2)
    assert "trace.jsonl.00003" not in names(url)
    assert b"rubbish" not in content(url, "metrics.jsonl") + content(url, "data.json")


@pytest.mark.long
def test_a_run_resumes_from_a_file_system_that_shows_incomplete_files(fit: Fit, tmp_path: Path) -> None:
    fsspec.register_implementation("remote", Remote, clobber=True)
    there = f"remote://{tmp_path}/there/run"
    for out in (there, tmp_path / "run"):
        fit(out=out, rounds=10, evaluate_every=5)
        run = fit(out=out, rounds=15, evaluate_every=5, resume=True)
    assert not list((tmp_path / "there").rglob("*.part"))
    weights = [(folder / "run" / "weights.safetensors").read_bytes() for folder in (tmp_path, tmp_path / "there")]
    assert weights[0] == weights[1]
    assert run.cost.rounds == 15


@pytest.mark.long
def test_word_vectors_are_read_from_a_store(tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("one two three four five six seven eight.\n" * 400)
    run = chimera.embed(
        tmp_path / "text.txt", out=url, learners=2, rounds=3, dim=4, engine="simulated", data={"test_windows": 10}
    )
    assert run.location == url
    assert {"embeddings.csv", "vocabulary.txt", "weights.safetensors", "report.html"} <= set(names(url))
    assert app(["embed", "neighbours", url, "two", "--json"], standalone_mode=False) == 0
    assert '"similarity"' in capsys.readouterr().out
