"""Bundles of jobs, the content store, and requirements."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError, DataError
from chimera.jobs.files.bundle import EXPERIMENT, Bundle, bundle_experiment, bundle_function, load_function
from chimera.jobs.files.content_store import ContentStore, check_manifest, hash_file, hash_text, verify
from chimera.jobs.files.imports import ImportScan, collect_imports
from chimera.jobs.scheduling.messages import Requirements
from chimera.jobs.scheduling.requirements import unmet, versions
from chimera.jobs.store.records import File, Function
from chimera.training.experiment.experiment import Experiment

PLAIN = """
[data]
name = "csv"
path = "{path}"
[model]
name = "linear-regression"
[train]
epochs = 1
workers = 2
[engine]
name = "simulated"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an experiment with its data; the working folder is another one."""
    home = tmp_path / "home"
    (home / "data").mkdir(parents=True)
    (home / "data" / "rows.csv").write_text("x,y\n" + "\n".join(f"{i},{2 * i}.5" for i in range(40)))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return home


def _write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))


def _experiment(home: Path, text: str = PLAIN, path: str = "data/rows.csv") -> Path:
    file = home / "own.toml"
    file.write_text(text.format(path=path))
    return file


def _delivered(bundle: Bundle, to: Path) -> Path:
    """Upload the missing files, and return the job's folder."""
    contents = ContentStore(to / "files")
    by_content = {file.sha256: bundle.sources[path] for path, file in bundle.manifest.items()}
    for file in contents.missing(bundle.manifest):
        contents.add(file, [by_content[file.sha256].read_bytes()])
    contents.create_folder(bundle.manifest, to / "code", {EXPERIMENT: bundle.experiment} if bundle.experiment else {})
    return to / "code"


def _there(bundle: Bundle, code: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the tables of the experiment as a driver in the job's folder reads them."""
    monkeypatch.chdir(code)
    return Experiment.load(Path(EXPERIMENT)).with_settings(bundle.settings).tables


def test_files_beside_the_experiment_keep_their_paths_and_nothing_is_rewritten(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundle_experiment(_experiment(home))
    assert bundle.manifest == {"data/rows.csv": hash_file(home / "data" / "rows.csv")}
    assert (bundle.settings, bundle.requires) == ((), ())
    code = _delivered(bundle, tmp_path / "there")
    assert (code / EXPERIMENT).read_text() == (home / "own.toml").read_text()
    assert _there(bundle, code, monkeypatch)["data"]["path"] == str(code / "data" / "rows.csv")


@pytest.mark.parametrize(
    "spelt", ["{home}/data/rows.csv", "../away/rows.csv", "{home}/../away/rows.csv", "data/../data/rows.csv"]
)
def test_a_path_that_differs_in_the_jobs_folder_becomes_a_setting(
    home: Path, tmp_path: Path, spelt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, **{"away/rows.csv": "x,y\n7,7\n"})
    spelt = spelt.format(home=home)
    bundle = bundle_experiment(_experiment(home, path=spelt))
    code = _delivered(bundle, tmp_path / "there")
    found = Path(_there(bundle, code, monkeypatch)["data"]["path"])
    assert found.is_relative_to(code)
    assert found.read_text() == (home / spelt).read_text()
    assert found.name == "rows.csv"
    assert str(tmp_path) not in "".join([*bundle.manifest, *bundle.settings])


def test_settings_of_the_user_are_bundled_with_their_files(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.csv").write_text("x,y\n1,1\n")
    for path in ("mine.csv", str(Path("mine.csv").absolute()), str(home / "data" / "rows.csv")):
        here = Experiment.load(_experiment(home)).with_settings([f"data.path={path}"]).tables["data"]["path"]
        bundle = bundle_experiment(_experiment(home), ["train.epochs=3", f"data.path={path}"])
        code = _delivered(bundle, tmp_path / hashlib.sha256(path.encode()).hexdigest())
        with monkeypatch.context() as there:
            tables = _there(bundle, code, there)
        assert tables["train"]["epochs"] == 3
        assert Path(tables["data"]["path"]).is_relative_to(code)
        assert Path(tables["data"]["path"]).read_text() == Path(here).read_text()


def test_a_name_of_the_hub_is_no_file(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PLAIN.replace('name = "linear-regression"', 'name = "huggingface"\ntask = "causal-lm"\npath = "org/model"')
    bundle = bundle_experiment(_experiment(home, text))
    assert sorted(bundle.manifest) == ["data/rows.csv"]
    assert _there(bundle, _delivered(bundle, tmp_path / "there"), monkeypatch)["model"]["path"] == "org/model"


def test_lists_of_files_and_whole_folders_are_bundled(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(home, **{"text/a.txt": "a b", "text/deep/b.txt": "c d", "text/.hidden": "no", "more.txt": "e"})
    text = '[data]\nname = "text"\npath = {path}\n[model]\nname = "x"\n'
    away = tmp_path / "away.txt"
    away.write_text("f")
    bundle = bundle_experiment(_experiment(home, text, f'["text", "more.txt", "{away}"]'))
    assert sorted(bundle.manifest)[0] == "more.txt"
    assert sorted(bundle.manifest)[2:] == ["text/a.txt", "text/deep/b.txt"]
    found = _there(bundle, _delivered(bundle, tmp_path / "there"), monkeypatch)["data"]["path"]
    assert [Path(one).name for one in found] == ["text", "more.txt", "away.txt"]
    assert all(Path(one).exists() and Path(one).is_relative_to(tmp_path / "there") for one in found)


def test_code_is_bundled_with_the_users_modules_that_it_imports(home: Path, tmp_path: Path) -> None:
    _write(
        home,
        **{
            "plans.py": """
                import numpy as np
                import os.path
                from typing import TYPE_CHECKING
                if TYPE_CHECKING:
                    import only_for_checkers
                from parts.first import thing
                try:
                    import quick
                except ImportError:
                    quick = None
                def late():
                    import sub.module as m
                    return m
                """,
            "parts/__init__.py": "from . import second",
            "parts/first.py": "from .second import other as thing; from .. import plans",
            "parts/second.py": "import sklearn.linear_model\nother = 1",
            "parts/unused.py": "import never",
            "sub/module.py": "import snafu",
            "unused.py": "import never",
        },
    )
    text = PLAIN + '[strategy]\nname = "plans.py:Mine"\n'
    bundle = bundle_experiment(_experiment(home, text))
    code = {path for path in bundle.manifest if path.endswith(".py")}
    assert code == {"plans.py", "parts/__init__.py", "parts/first.py", "parts/second.py", "sub/module.py"}
    assert bundle.requires == ("numpy", "sklearn", "snafu")
    assert bundle.settings == ()


def test_code_from_other_folders_finds_the_modules_beside_it(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / "lib", **{"codecs_of_mine.py": "import helper_of_mine", "helper_of_mine.py": ""})
    _write(
        tmp_path / "path",
        **{
            "package_of_mine/__init__.py": "",
            "package_of_mine/models.py": "from . import net",
            "package_of_mine/net.py": "",
        },
    )
    monkeypatch.syspath_prepend(tmp_path / "path")
    text = (
        PLAIN.replace("linear-regression", "package_of_mine.models:Net")
        + '[codec]\nname = "../lib/codecs_of_mine.py:Mine"\n'
    )
    bundle = bundle_experiment(_experiment(home, text))
    places = set(bundle.manifest) - {"data/rows.csv"}
    assert {place for place in places if not place.startswith("outside/")} == {
        f"package_of_mine/{name}.py" for name in ("__init__", "models", "net")
    }
    outside = sorted(place for place in places if place.startswith("outside/"))
    assert [Path(place).name for place in outside] == ["codecs_of_mine.py", "helper_of_mine.py"]
    assert len({Path(place).parent for place in outside}) == 1
    assert bundle.settings == (f'codec.name="{outside[0]}:Mine"',)


_STRATEGY = """
from chimera.strategies.parameter_server import ParameterServer
from parts import SHARDS
class Mine(ParameterServer):
    def __init__(self):
        super().__init__(shards=SHARDS)
"""


@pytest.mark.long
def test_an_experiment_with_own_code_runs_from_its_bundle_alone(home: Path, tmp_path: Path) -> None:
    _write(home, **{"own.py": _STRATEGY, "parts.py": "SHARDS = 2"})
    bundle = bundle_experiment(_experiment(home, PLAIN + '[strategy]\nname = "own.py:Mine"\n'))
    code = _delivered(bundle, tmp_path / "there")
    for file in home.rglob("*.*"):
        file.unlink()
    program = (
        "from chimera.training.experiment.experiment import Experiment; import parts;"
        f"run = Experiment.load('{EXPERIMENT}').trainer().fit(); print(parts.__file__)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2] / "src"), str(code)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=code,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(code / "parts.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PLAIN.replace("{path}", "none.csv"), r"data\.path: there is no file .*none\.csv"),
        (PLAIN + '[strategy]\nname = "none.py:S"\n', r"no file '.*none\.py'"),
        (PLAIN + '[strategy]\nname = "broken.py:S"\n', r"broken\.py:1 cannot be read as Python"),
    ],
)
def test_a_missing_file_is_an_error_before_any_upload(home: Path, text: str, message: str) -> None:
    _write(home, **{"broken.py": "def"})
    with pytest.raises(ConfigurationError, match=message) as caught:
        bundle_experiment(_experiment(home, text))
    assert "\n" not in str(caught.value)


def test_included_files_are_bundled_but_the_experiment_file_only_once(home: Path) -> None:
    text = PLAIN.format(path="data/rows.csv")
    (home / EXPERIMENT).write_text(text)
    (home / "notes.txt").write_text("x")
    bundle = bundle_experiment(home / EXPERIMENT, include=[home / "notes.txt", home / EXPERIMENT])
    assert sorted(bundle.manifest) == ["data/rows.csv", "notes.txt"]
    (home / "own.toml").write_text(text + "\n")
    with pytest.raises(ConfigurationError, match=r"would both be 'experiment\.toml'"):
        bundle_experiment(home / "own.toml", include=[home / EXPERIMENT])


# --- functions


def _module(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Unload the modules that a test imports."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]


@pytest.mark.usefixtures("unloaded")
def test_a_function_is_loaded_with_its_arguments(home: Path, tmp_path: Path) -> None:
    _write(
        home,
        **{
            "kit_of_mine/tools/greet.py": "from .words import hello\ndef greet(name, *, loud=False): return hello, name, loud"
        },
    )
    _write(
        home,
        **{
            "kit_of_mine/__init__.py": "",
            "kit_of_mine/tools/__init__.py": "",
            "kit_of_mine/tools/words.py": "hello = 'hi'",
        },
    )
    sys.path.insert(0, str(home))
    greet = importlib.import_module("kit_of_mine.tools.greet").greet
    function, bundle = bundle_function(greet, "ada", loud=True)
    assert function == Function(
        "kit_of_mine/tools/greet.py", "greet", msgspec.msgpack.encode([["ada"], {"loud": True}])
    )
    assert sorted(bundle.manifest) == [
        f"kit_of_mine/{name}.py" for name in ("__init__", "tools/__init__", "tools/greet", "tools/words")
    ]
    code = _delivered(bundle, tmp_path / "there")
    for name in [name for name in sys.modules if name.partition(".")[0] == "kit_of_mine"]:
        del sys.modules[name]
    sys.path.remove(str(home))
    found, args, kwargs = load_function(function, code)
    assert found(*args, **kwargs) == ("hi", "ada", True)
    assert Path(found.__code__.co_filename).is_relative_to(code)


@pytest.mark.usefixtures("unloaded")
def test_only_named_functions_of_the_users_files_can_be_sent(home: Path) -> None:
    _write(
        home,
        **{
            "mine.py": "def outer():\n    def inner(): pass\n    return inner\ndef plain(x): pass\nanonymous = lambda: 0"
        },
    )
    module = _module(home / "mine.py", "mine")
    for wrong in (module.outer(), module.anonymous, len, msgspec.json.Encoder().encode):
        with pytest.raises(ConfigurationError, match="cannot be sent"):
            bundle_function(wrong)
    with pytest.raises(ConfigurationError, match="belongs to an installed package"):
        bundle_function(given)
    with pytest.raises(ConfigurationError, match="arguments of plain cannot be sent"):
        bundle_function(module.plain, object())
    for function in (Function("none.py", "f"), Function("mine.py", "f"), Function("mine.py", "plain", b"\xff")):
        with pytest.raises(ConfigurationError, match="cannot be loaded"):
            load_function(function, home)


# --- content store


def _file(body: bytes) -> File:
    return File(hashlib.sha256(body).hexdigest(), len(body))


def test_an_uploaded_file_is_not_missing_any_more(tmp_path: Path) -> None:
    contents, one, two = ContentStore(tmp_path / "files"), _file(b"one"), _file(b"two")
    manifest = {"a": one, "b": two, "c/d": one}
    assert contents.missing(manifest) == [one, two]
    contents.add(one, [b"o", b"", b"ne"])
    assert contents.missing(manifest) == [two]
    with pytest.raises(DataError, match="'b' of the job was not uploaded"):
        contents.create_folder(manifest, tmp_path / "code")
    assert [entry.name for entry in tmp_path.iterdir()] == ["files"]
    contents.add(two, [b"two"])
    contents.create_folder(manifest, tmp_path / "code")
    assert {path: (tmp_path / "code" / path).read_bytes() for path in manifest} == {
        "a": b"one",
        "b": b"two",
        "c/d": b"one",
    }
    assert verify(manifest, tmp_path / "code") == ""
    (tmp_path / "code" / "a").write_bytes(b"ONE")  # a copy: the stored file is unchanged
    assert verify(manifest, tmp_path / "code") == "its file 'a' is not the one that was submitted"
    assert contents.missing(manifest) == []
    contents.create_folder(manifest, tmp_path / "code")
    assert (tmp_path / "code" / "a").read_bytes() == b"ONE"
    (tmp_path / "code" / "b").unlink()
    assert "'b'" in verify({"b": two}, tmp_path / "code")


@pytest.mark.parametrize("chunks", [[b"onf"], [b"on"], [b"one", b"more"], []])
def test_content_that_does_not_match_its_hash_is_not_kept(tmp_path: Path, chunks: list[bytes]) -> None:
    contents = ContentStore(tmp_path / "files")
    taken = []

    def sent() -> Iterator[bytes]:
        for chunk in [*chunks, *([b"x"] * 1000 if len(chunks) == 2 else [])]:
            taken.append(chunk)
            yield chunk

    with pytest.raises(DataError):
        contents.add(_file(b"one"), sent())
    assert list((tmp_path / "files").iterdir()) == []
    assert len(taken) <= 2  # no more is read than was announced


def test_a_job_has_its_own_copy_of_a_large_file(tmp_path: Path) -> None:
    contents, body = ContentStore(tmp_path / "files"), bytes(2 << 20)
    contents.add(_file(body), [body[: 1 << 20], body[1 << 20 :]])
    contents.create_folder({"large": _file(body)}, tmp_path / "code")
    assert (tmp_path / "code" / "large").read_bytes() == body
    assert not (tmp_path / "code" / "large").samefile(tmp_path / "files" / _file(body).sha256)
    assert (tmp_path / "code" / "large").stat().st_mode & 0o777 == 0o600


def test_more_than_fits_on_the_disk_is_refused_before_the_upload(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has \d+ left"):
        ContentStore(tmp_path / "files").missing({"a": File("0" * 64, 1 << 60)})
    with pytest.raises(ConfigurationError, match="is not a SHA-256"):
        ContentStore(tmp_path / "files").add(File("../../x", 0), [])


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../a",
        "a/../../b",
        "a//b",
        "",
        ".",
        "a/.",
        "a\\b",
        "a\nb",
        "a\0",
        "x" * 300,
        "a/" * 999 + "a" * 10,
        "é" * 200,
    ],
)
def test_no_path_leaves_the_folder(tmp_path: Path, path: str) -> None:
    contents, file = ContentStore(tmp_path / "files"), _file(b"one")
    contents.add(file, [b"one"])
    for refused in (
        lambda: contents.create_folder({path: file}, tmp_path / "code"),
        lambda: contents.missing({path: file}),
    ):
        with pytest.raises(ConfigurationError, match="the path"):
            refused()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["files"]


def test_two_files_cannot_have_conflicting_paths(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot both be there"):
        check_manifest(["a/b", "a"])
    with pytest.raises(ConfigurationError, match="the same path"):
        ContentStore(tmp_path).create_folder({EXPERIMENT: hash_text("x")}, tmp_path / "code", {EXPERIMENT: "x"})


@given(st.lists(st.text(st.sampled_from("ab./\\ \0ü"), max_size=6), max_size=4))
def test_every_accepted_path_stays_below_its_folder(paths: list[str]) -> None:
    try:
        check_manifest(paths)
    except ConfigurationError:
        return
    for path in paths:
        assert os.path.normpath(f"/home/{path}") == f"/home/{path}"
        assert not any(other.startswith(f"{path}/") for other in paths)


# --- requirements


def test_unmet_requirements_are_reported() -> None:
    here = {"chimera": "0.3.1", "python": "3.12.1", "torch": "2.6.0+cpu"}
    assert unmet(Requirements(here, ("json", "numpy")), here) == ""
    assert unmet(Requirements({"chimera": "0.3.9", "python": "3.12.9", "torch": "2.6.1"}), here) == ""
    assert unmet(Requirements({"python": "3.11.2"}), here) == "its python is 3.12.1, and the job's is 3.11.2"
    assert unmet(Requirements({"torch": "2.6"}), {"chimera": "0.3"}) == "its torch is none, and the job's is 2.6"
    assert unmet(Requirements({}, ("numpy",)), here) == ""
    lacks = unmet(Requirements({}, ("snafu", "numpy", "fubar.deep")), here)
    assert lacks.startswith("it cannot import 'fubar.deep' and 'snafu', which the job's code imports")
    assert unmet(Requirements(versions())) == ""


def test_circular_imports_are_collected_once(tmp_path: Path) -> None:
    _write(tmp_path, **{"a.py": "import b", "b.py": "import a, c", "c.py": "from b import *"})
    found = ImportScan()
    collect_imports(tmp_path / "a.py", tmp_path, [], found)
    assert sorted(file.name for file in found.files) == ["a.py", "b.py", "c.py"]
    assert found.requires == set()
