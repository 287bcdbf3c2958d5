import pickle
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

import chimera.strategies
from chimera.codecs.codec import CODECS
from chimera.core.errors import ConfigurationError, MissingExtraError, UnknownNameError
from chimera.core.registry import Registry, load_object
from chimera.core.signatures import parameters_of
from chimera.strategies.strategy import STRATEGIES
from chimera.strategies.topologies.topology import TOPOLOGIES
from chimera.training.aggregation.aggregation import AGGREGATIONS


@pytest.fixture
def registry() -> Registry[object]:
    registry: Registry[object] = Registry("codec", "chimera.codecs")

    @registry.register("bits")
    def bits(*, width: int = 8, mode: str = "fast", ratio: float | None = None) -> object:
        """Make bits."""
        return width, mode, ratio

    @registry.register("remote", requires="no_such_library", extra="ray")
    def remote() -> object:
        return None

    return registry


def test_options_are_converted_to_their_types(registry: Registry[object]) -> None:
    assert registry.create("bits", {"width": 4, "ratio": 1}) == (4, "fast", 1.0)


def test_an_option_may_be_a_keyword_of_python(registry: Registry[object]) -> None:
    @registry.register("source")
    def source(*, from_: Literal["file", "hub"], in_: int = 2) -> object:
        return from_, in_

    assert registry.create("source", {"from": "hub", "in": 3}) == registry.create("source", {"in": 3}, from_="hub")
    assert registry.create("source", {"from_": "hub"}) == ("hub", 2)  # as in Python, and in files of older versions
    assert list(parameters_of(source)) == ["from", "in"]
    for options, message in (
        ({}, "needs the option 'from'"),
        ({"from": "here"}, "option 'from': 'here' cannot be used"),
        ({"from__": "hub"}, "has no option 'from__'.* its options: from, in"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            registry.create("source", options)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("bits:width=4:mode=slow", '{ name = "bits", width=4, mode=slow }'),
        ("mine.py:Bits:width=4", '{ name = "mine.py:Bits", width=4 }'),
    ],
)
def test_options_after_a_name_are_answered_with_a_table(registry: Registry[object], name: str, table: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is no name of a codec: only the values of a comparison") as caught:
        registry.find(name)
    assert str(caught.value).endswith(f"give a table: {table}")


def test_an_unknown_name_error_lists_the_known_names(registry: Registry[object]) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown codec 'bit'; did you mean 'bits'\? known: bits, .*remote"):
        registry.find("bit")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({3: 4}, r"codec 'bits' has no option 3; its options: width, mode, ratio"),
        ({"wdth": 4}, r"codec 'bits' has no option 'wdth'.*width, mode, ratio"),
        ({"codec 'bits', option 'width'": 1}, "no option"),
        ({"width": "wide"}, r"codec 'bits', option 'width': 'wide' cannot be used.*int"),
        ({"width": 1.5}, "option 'width': 1.5 cannot be used"),
        ({"ratio": "x"}, "option 'ratio'"),
    ],
)
def test_an_invalid_option_is_named_in_one_line(
    registry: Registry[object], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        registry.create("bits", options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (Literal["fast", "slow"], "quick", r"option 'mode': 'quick' cannot be used.*; it may be 'fast', 'slow'$"),
        (Literal["fast", "slow"] | None, "quick", r"it may be 'fast', 'slow'$"),
        (dict[str, float], {"a": "b"}, r"cannot be used: Expected float, got str"),
    ],
)
def test_an_invalid_literal_error_lists_the_allowed_values(hint: object, value: object, message: str) -> None:
    def plug_in(*, mode: Any) -> Any:
        return mode

    plug_in.__annotations__["mode"] = hint
    registry: Registry[Any] = Registry("codec", "chimera.codecs")
    registry.register("own")(plug_in)
    with pytest.raises(ConfigurationError, match=message):
        registry.create("own", {"mode": value})


@pytest.mark.parametrize("registry", [STRATEGIES, CODECS, AGGREGATIONS, TOPOLOGIES], ids=lambda each: each.kind)
def test_a_plugin_must_be_derived_from_the_base_class(registry: Registry[Any]) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"is no {registry.kind}: it must be derived from chimera\."
    ) as caught:
        registry.create("collections:UserList")
    assert "\n" not in str(caught.value)


def test_self_may_have_another_name(registry: Registry[object]) -> None:
    class Own:
        def __init__(this, width: int = 1) -> None:  # noqa: N805 - that is what is tested
            this.width = width

    registry.register("own")(Own)
    assert registry.create("own", {"width": 2}).width == 2  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match="no option 'this'; its options: width"):
        registry.create("own", {"this": 2})


def test_a_missing_library_error_names_the_extra(registry: Registry[object]) -> None:
    with pytest.raises(MissingExtraError, match=r"no_such_library.*pip install 'chimera-dml\[ray\]'"):
        registry.find("remote")
    assert [entry.name for entry in registry.entries() if not entry.available] == ["remote"]


def test_a_missing_library_without_an_extra_is_installed_by_its_own_name(registry: Registry[object]) -> None:
    registry.register("alone", requires="no_such_library")(lambda: None)
    with pytest.raises(MissingExtraError, match=r"needs the package .* not installed: pip install no_such_library$"):
        registry.find("alone")


def test_a_duplicate_name_is_rejected(registry: Registry[object]) -> None:
    with pytest.raises(ConfigurationError, match="registered twice"):
        registry.register("bits")(lambda: None)


def test_a_custom_plugin_is_found_by_module_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_plugin.py").write_text("def make(*, size: int = 1):\n    return size\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    registry: Registry[int] = Registry("codec", "chimera.codecs")
    assert registry.create(f"{tmp_path}/my_own_plugin.py:make", {"size": 3}) == 3
    assert registry.create("my_own_plugin:make") == 1


def test_the_file_of_a_custom_plugin_without_its_class_gets_a_hint(registry: Registry[object]) -> None:
    with pytest.raises(ConfigurationError, match=r"'mine\.py'; to use one of a file, write mine\.py:NAME;"):
        registry.find("mine.py")


@pytest.mark.parametrize("path", ["no.such.module:x", "nowhere.py:x", "math:no_such_thing", ":x", "math:"])
def test_an_import_failure_raises_a_one_line_error(path: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_object(path)
    assert "\n" not in str(caught.value)


def test_errors_can_be_pickled() -> None:
    for error in (UnknownNameError("codec", "x", ["y"]), MissingExtraError("it", "ray", "ray")):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_files_of_the_same_name_are_separate_modules(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "twin_models.py").write_text(f"place = {folder!r}\n")
    found = [load_object(f"{tmp_path}/{folder}/twin_models.py:place") for folder in ("one", "two", "one")]
    assert found == ["one", "two", "one"]


def test_the_class_of_each_strategy_is_found_by_its_name() -> None:
    for entry in STRATEGIES.entries():
        assert getattr(chimera.strategies, entry.factory.__name__) is entry.factory
    with pytest.raises(ImportError, match="FedAvgg"):
        from chimera.strategies import FedAvgg  # noqa: F401


def test_a_folder_with_an_equals_sign_is_part_of_a_path(tmp_path):
    folder = tmp_path / "batch_size=16"
    folder.mkdir()
    (folder / "own.py").write_text("def build():\n    return 7\n")
    assert Registry("model", "chimera.models").create(f"{folder}/own.py:build") == 7
