"""A text as a training set: its vocabulary, windows and orders, and errors for invalid texts."""

from __future__ import annotations

import gzip
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.core.errors import ActorLost, ChimeraError, ConfigurationError, DataError
from chimera.data.split import DATASETS, Split
from chimera.data.text.reading.source import Reader
from chimera.data.text.reading.tokens import Part
from chimera.data.text.stop_words import ENGLISH
from chimera.data.text.stream import LocalBlocks, ShuffledBlocks, WindowStream
from chimera.data.text.text import Text
from chimera.data.text.vocabulary import Vocabulary
from data.text.texts import naive_words, random_text, words_of, written


def windows(text: Text, begin: int, count: int, *, parts: int = 1, index: int = 0, seed: int = 0) -> list[list[str]]:
    """Return training windows of a part, as words."""
    found = text.stream(index, parts, seed).take(begin, count)
    return [[text.classes[place] for place in row] for row in found]


def held_out(text: Text) -> set[tuple[int, ...]]:
    half = text.windowing.width // 2
    rows = np.insert(text.test.inputs, half, text.test.targets, axis=1)
    return {tuple(row) for row in rows.tolist()}


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a text of several blocks."""
    return written(tmp_path_factory.mktemp("book") / "book.txt", random_text(130_000))


@given(
    st.lists(st.sampled_from(["a", "b", "c", "d", ".", "\n"]), min_size=20, max_size=80),
    st.sampled_from([None, "lines", "sentences"]),
    st.sampled_from(["sliding", "disjoint"]),
    st.sampled_from([3, 5]),
)
def test_a_pass_gives_every_window_once_in_order_except_test_windows(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], bounds: Any, stride: Any, width: int
) -> None:
    path = written(tmp_path_factory.mktemp("text") / "t.txt", " ".join(words))
    try:
        text = Text.of(path, vocabulary=Vocabulary("abc"), width=width, stride=stride, bounds=bounds, test_windows=1)
    except DataError as error:
        assert "too few words" in str(error) or "set a smaller number" in str(error) or "no word of" in str(error)  # noqa: PT017
        return
    expected, run = [], list[str]()
    for word in naive_words(path.read_bytes() + b"\n", text.rules):
        if word == ".":
            run = []
        elif word in "abc":
            run = [*run, word][-width:]
            if len(run) == width:
                expected.append(run)
                run = run if stride == "sliding" else []
    (held,) = ([text.classes[i] for i in row] for row in held_out(text))
    assert held in expected
    assert text.windows == len(expected) - 1
    expected = [window for window in expected if window != held]
    if expected:
        assert windows(text, 0, 2 * len(expected)) == expected * 2  # the next pass has the same windows
    else:
        with pytest.raises(DataError, match="has too few words for a window"):
            windows(text, 0, 1)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 90)), min_size=1, max_size=12),
    st.sampled_from([30, 300]),
    st.sampled_from([0.0, 0.2]),
)
def test_windows_at_any_position_are_those_of_the_stream(
    tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[int, int]], block_bytes: int, sample: float
) -> None:
    path = written(tmp_path_factory.mktemp("text") / "t.txt", random_text(120, vocabulary=20))
    text = Text.of(path, sample=sample, test_windows=5)
    part = Part.of(text.source, text.rules, 0, 1, block_bytes)

    def stream() -> WindowStream:
        return WindowStream(LocalBlocks(part, text.assembler(0, 1, 0)), max_empty_blocks=1000, name=text.name)

    whole, entered = stream().take(0, 600), stream()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chimera.data.text.stream._MAX_MARKS", 5)
        for begin, count in asked:
            np.testing.assert_array_equal(entered.take(begin, count), whole[begin : begin + count])


@pytest.mark.parametrize("sample", [0.0, 0.01])
def test_a_batch_depends_only_on_part_and_step(book: Path, sample: float) -> None:
    text = Text.of(book, sample=sample)
    order = text.orders(2, 500, 3)[1]
    steps = [*range(300), 299, 0, 150, 20, 700, 299]
    read = {step: text.take(order.batch(step)) for step in range(701)}
    passes = 701 / order.steps_per_epoch
    assert passes > 2, "the test must read the text several times"
    copy = pickle.loads(pickle.dumps(text))
    for step in steps:
        inputs, targets = copy.take(order.batch(step))
        np.testing.assert_array_equal(inputs, read[step][0])
        np.testing.assert_array_equal(targets, read[step][1])
        assert inputs.shape == (500, 4)
        assert targets.shape == (500,)
        assert inputs.dtype == targets.dtype == np.int64


def test_a_part_has_the_windows_of_its_words(book: Path) -> None:
    text = Text.of(book, test_windows=1)
    (held,) = held_out(text)
    for index in range(3):
        words = [text.vocabulary.index[word] for word in words_of(text.part(index, 3))]
        rows = [tuple(words[at : at + 5]) for at in range(len(words) - 4)]
        rows = [row for row in rows if row != held]
        assert len(rows) > 40_000
        np.testing.assert_array_equal(text.stream(index, 3, 0).take(0, len(rows) + 1), [*rows, rows[0]])


def test_test_windows_never_occur_in_training(book: Path) -> None:
    text = Text.of(book, test_windows=2000, sample=0.02)
    held = held_out(text)
    assert len(held) > 1500
    order = text.orders(1, 4096, 0)[0]
    for step in range(int(3 * order.steps_per_epoch)):
        inputs, targets = text.take(order.batch(step))
        rows = np.insert(inputs, 2, targets, axis=1)
        assert held.isdisjoint(map(tuple, rows.tolist()))


def test_sampled_test_windows_are_seeded_and_spread_over_the_text(book: Path) -> None:
    text, same, other = (Text.of(book, test_windows=500, seed=seed) for seed in (0, 0, 1))
    assert held_out(text) == held_out(same) != held_out(other)
    assert text.fingerprint() == same.fingerprint() != other.fingerprint()
    words = naive_words(book.read_bytes(), text.rules)
    half = {tuple(text.vocabulary.index[w] for w in words[i : i + 5]) for i in range(len(words) // 2)}
    share = np.mean([row in half for row in held_out(text)])
    assert 0.4 < share < 0.6


def test_frequent_words_are_sampled_with_the_probability_of_word2vec(book: Path) -> None:
    text = Text.of(book, sample=0.01, test_windows=1)
    kept = text.windowing.keep_probabilities(text.counts)
    assert kept is not None
    f = text.counts / text.counts.sum()
    np.testing.assert_allclose(kept[:-1], np.minimum(1, (np.sqrt(f / 0.01) + 1) * 0.01 / f), rtol=1e-6)
    passes = 20
    taken = text.stream(0, 1, 0).take(0, passes * len(text))[:, 2]
    share = np.bincount(taken, minlength=text.outputs) / passes
    expected = text.counts * kept[:-1]
    frequent = expected > 200
    assert frequent.sum() > 20
    np.testing.assert_allclose(share[frequent], expected[frequent], rtol=0.08)
    part, assembler, reader = text.part(0, 1), text.assembler(0, 1, 0), Reader(text.source)
    clean = part.clean(reader, 0)
    assert clean == part.clean(reader, part.blocks)
    first, second = assembler.tokens(clean, 0), assembler.tokens(clean, part.blocks)
    assert not np.array_equal(first, second), "each pass has its own draws"


def test_options_select_the_words(tmp_path: Path) -> None:
    path = written(tmp_path / "t.txt", "b b b a a a c c d The the THE the 12 3,5 x9y " * 3)

    def words(**options: Any) -> tuple[str, ...]:
        return Text.of(path, width=3, test_windows=1, **options).classes

    assert words() == ("the", "a", "b", "c", "d", "x", "y")
    assert words(vocabulary_size=3) == ("the", "a", "b")
    assert words(min_count=6) == ("the", "a", "b", "c")
    assert words(stop_words="english") == ("b", "c", "x", "y")  # a, d and the are stop words
    assert words(stop_words=written(tmp_path / "stop.txt", "The\nc b")) == ("a", "d", "x", "y")
    assert words(longest=2) == ("a", "b", "c", "d", "x", "y")
    assert words(number_token="<num>")[:2] == ("<num>", "the")
    given = Text.of(path, width=3, test_windows=1, vocabulary=written(tmp_path / "v.txt", "c zebra\n  a"))
    assert given.classes == ("c", "zebra", "a")
    assert given.counts.tolist() == [6, 0, 9]
    assert {"the", "of", "don", "t"} <= ENGLISH


def test_a_vocabulary_is_read_back_from_its_file(tmp_path: Path) -> None:
    text = Text.of(
        written(tmp_path / "t.txt", "one two two 3 three three three " * 9), number_token="<num>", test_windows=1
    )
    text.vocabulary.write(tmp_path / "words.txt")
    again = Text.of(tmp_path / "t.txt", vocabulary=tmp_path / "words.txt", number_token="<num>", test_windows=1)
    assert again.classes == text.classes
    assert again.fingerprint() == text.fingerprint()


def test_folders_and_gzip_give_the_same_text(tmp_path: Path) -> None:
    lines = random_text(20_000).encode()
    (tmp_path / "folder" / "below").mkdir(parents=True)
    written(tmp_path / "folder" / "a.gz", gzip.compress(lines[:50_000]) + gzip.compress(lines[50_000:]))  # two members
    written(tmp_path / "folder" / "below" / "b.txt", lines)
    written(tmp_path / "folder" / "c.csv", b"not, read")
    plain = [written(tmp_path / name, lines) for name in ("1.txt", "2.txt")]
    packed, unpacked = Text.of(tmp_path / "folder"), Text.of(plain)
    assert packed.fingerprint() == unpacked.fingerprint()
    for ours, theirs in zip(packed.orders(3, 64, 0), unpacked.orders(3, 64, 0), strict=True):
        for step in (0, 200, 3):
            np.testing.assert_array_equal(packed.take(ours.batch(step))[0], unpacked.take(theirs.batch(step))[0])


def test_test_windows_of_a_file_are_not_excluded_from_training(tmp_path: Path) -> None:
    path = written(tmp_path / "t.txt", "a b c d e " * 20)
    test = written(tmp_path / "test.txt", "a B c d e\n\nc d e a b\n")
    text = Text.of(path, test=test)
    index = text.vocabulary.index
    assert text.test.targets.tolist() == [index["c"], index["e"]]
    assert text.test.inputs[0].tolist() == [index[word] for word in "abde"]
    assert text.windows == 96
    seen = {"".join(window) for window in windows(text, 0, 200)}
    assert seen == {"abcde", "bcdea", "cdeab", "deabc", "eabcd"}
    with pytest.warns(RuntimeWarning, match=r"1 windows are skipped.* lacks a word; the first is 'zoo' in line 2"):
        assert len(Text.of(path, test=written(test, "a b c d e\na b zoo d e\n")).test) == 1


def test_a_text_has_the_interface_of_a_data_set(book: Path) -> None:
    split = DATASETS.create("text", {"path": [str(book)], "stride": "disjoint", "test_windows": 50})
    text: Any = split.train
    assert isinstance(text, Text)
    assert Split(text, text.test).test is text.test
    assert (text.input_shape, text.outputs, text.task) == ((4,), len(text.classes), "classification")
    assert len(text.test) == 50
    assert 0 <= 130_000 / 5 - 50 - len(text) <= 1
    assert len(pickle.dumps(text)) < 20_000


def test_learners_that_join_continue_at_the_position_of_the_others(book: Path) -> None:
    text = Text.of(book)
    before, after = text.orders(2, 100, 0)[1], text.orders(2, 100, 0, since=30, begin=30 * 2 * 100)[1]
    np.testing.assert_array_equal(text.take(before.batch(40))[0], text.take(after.batch(40))[0])
    assert text.orders(4, 100, 0, since=30, begin=30 * 2 * 100)[3].batch(30).begin == 1500


CUT_SHORT = gzip.compress(bytes(97 + i * i % 26 for i in range(9999)), mtime=0)[:-20]


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("missing.txt", None, {}, "there is no text file '.*missing.txt'"),
        ("empty.txt", b"", {}, "empty.txt is empty"),
        ("blank.txt", b" \n 12 \n", {}, "blank.txt has no words"),
        ("short.txt", b"only three words", {}, "too few words for a training window: 3 are known"),
        (
            "few.txt",
            b"a few words more than one window",
            {},
            "has 3 windows, too few to exclude test_windows = 1000 from training: set a smaller number",
        ),
        ("binary.txt", bytes(range(256)) * 9, {}, "binary.txt is not text: 2.. of its first 2304 bytes are control"),
        ("utf16.txt", "hello world".encode("utf-16"), {}, "utf16.txt is not text"),
        ("plain.gz", b"not packed", {}, "plain.gz is not a complete gzip file"),
        ("cut.gz", CUT_SHORT, {}, "cut.gz is not a complete gzip file"),
        ("strange.txt", b"no known word", {"vocabulary": Vocabulary(["zebra"])}, "has no word of the vocabulary, .* zebra"),
        ("t.txt", b"a b c", {"stop_words": "no such file"}, "stop words 'no such file' cannot be read"),
        ("t.txt", b"a b c", {"stop_words": "english", "min_count": 9}, "t.txt has no words: none of its 3"),
        ("t.txt", b"a b c", {"vocabulary": "no such file"}, "the vocabulary 'no such file' cannot be read: No such file"),
    ],
)  # fmt: skip
def test_an_invalid_text_gives_a_one_line_error(
    tmp_path: Path, name: str, content: bytes | None, options: dict[str, Any], said: str
) -> None:
    path = tmp_path / name if content is None else written(tmp_path / name, content)
    with pytest.raises(DataError, match=said) as caught:
        Text.of(path, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a b a", "has the word 'a' twice"),
        (" \n", "has no words"),
        (b"\xff\xfe", "is not text in UTF-8"),
    ],
)
def test_an_invalid_vocabulary_is_rejected(tmp_path: Path, content: str | bytes, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Text.of(written(tmp_path / "t.txt", "a b c"), vocabulary=written(tmp_path / "v.txt", content))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a b c d e\na b c d\n", "has 4 words in line 2: a window has 5"),
        ("a b zoo d e", "has no window of known words; unknown: 'zoo' in line 1"),
        ("", "has no window of known words"),
        (b"\xff\xfe", "is not text in UTF-8"),
    ],
)
def test_an_invalid_file_of_test_windows_is_rejected(tmp_path: Path, content: str | bytes, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Text.of(written(tmp_path / "t.txt", "a b c d e " * 9), test=written(tmp_path / "test.txt", content))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"width": 4}, "a window has 3, 5, 7"),
        ({"stride": "leaping"}, "the stride 'leaping' is unknown"),
        ({"sample": 1.0}, "sample is 1.0"),
        ({"test_windows": 0}, "test_windows is 0"),
        ({"vocabulary_size": 0}, "vocabulary_size is 0"),
        ({"min_count": 0}, "min_count is 0"),
        ({"seed": -1}, "the seed is -1"),
        ({"vocabulary": Vocabulary(["a"]), "stop_words": "english"}, "stop_words has no effect"),
        ({"vocabulary": Vocabulary(["a"]), "min_count": 2}, "min_count has no effect"),
    ],
)
def test_invalid_options_are_rejected(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Text.of(written(tmp_path / "t.txt", "a b c d e " * 9), **options)


def test_unusual_but_valid_input_gives_one_warning(tmp_path: Path) -> None:
    full, empty = written(tmp_path / "t.txt", "a b c d e " * 9), written(tmp_path / "empty.txt", "")
    with pytest.warns(RuntimeWarning, match=r"empty.txt is empty") as caught:
        Text.of([full, empty], test_windows=1)
    assert len(caught) == 1
    with pytest.warns(RuntimeWarning, match="2 words of the vocabulary cannot occur in a text, such as 'Whale'"):
        text = Text.of(full, test_windows=1, vocabulary=Vocabulary(["a", "Whale", "b", "don't"]))
    assert text.counts.tolist() == [9, 0, 9, 0]
    with pytest.raises(DataError, match="has no text"):
        Text.of(written(_folder(tmp_path) / "table.csv", "1, 2").parent)


def _folder(path: Path) -> Path:
    folder = path / "folder"
    folder.mkdir()
    return folder


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "t.txt", random_text(1000))
    text = Text.of(path, test_windows=10)
    written(path, "gone")
    with pytest.raises(ChimeraError, match="became shorter while it was read"):
        text.take(text.orders(1, 8, 0)[0].batch(0))


def test_a_part_without_words_is_an_error(tmp_path: Path) -> None:
    text = Text.of(written(tmp_path / "t.txt", "a b c d e " * 50 + " " * 500), test_windows=1)
    with pytest.raises(DataError, match=r"part 2 of 2 of t.txt has too few words for a window"):
        text.take(text.orders(2, 8, 0)[1].batch(0))


def test_a_valid_text_gives_no_warning(book: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Text.of(book, stop_words="english", sample=1e-3)


@pytest.mark.parametrize("stride", ["sliding", "disjoint"])
def test_shuffled_windows_are_a_permutation_with_random_access(tmp_path: Path, stride: Any) -> None:
    path = written(tmp_path / "t.txt", random_text(3000))
    test = written(tmp_path / "test.txt", " ".join(random_text(3000).split()[:5]))
    plain, mixed, fresh = (Text.of(path, stride=stride, test=test, shuffle=each) for each in (False, True, True))
    group = 16 * plain.windows  # a pass is one block here
    ours, theirs = (text.stream(0, 1, 0).take(0, group) for text in (mixed, plain))
    assert not np.array_equal(ours, theirs)
    assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, theirs.tolist()))
    again = fresh.stream(0, 1, 0).take(group + 50, 20)
    np.testing.assert_array_equal(fresh.stream(0, 1, 0).take(100, 7), ours[100:107])
    np.testing.assert_array_equal(mixed.stream(0, 1, 0).take(group + 50, 20), again)


class BreakingBlocks:
    """Blocks of one window each, the number of the block. The actor that makes them dies once, before a block is made."""

    def __init__(self, dies_at: int | None) -> None:
        self._number, self._dies_at = 0, dies_at

    def seek(self, number: int, carry: Any) -> None:
        self._number = number

    def next(self) -> tuple[Any, Any]:
        if self._number == self._dies_at:
            self._dies_at = None
            raise ActorLost("batcher 0 is lost")
        self._number += 1
        return np.full((1, 3), self._number - 1), np.zeros(0)


@pytest.mark.parametrize("seeks", [False, True])
def test_shuffled_windows_are_the_same_if_an_actor_died_within_a_group(seeks: bool) -> None:
    unbroken, broken = (
        WindowStream(ShuffledBlocks(BreakingBlocks(dies_at), (0, 1)), max_empty_blocks=1, name="t")
        for dies_at in (None, 20)
    )
    expected = unbroken.take(0, 48)
    np.testing.assert_array_equal(broken.take(0, 16), expected[:16])
    with pytest.raises(ActorLost):
        broken.take(16, 16)
    if seeks:
        np.testing.assert_array_equal(broken.take(0, 16), expected[:16])
    np.testing.assert_array_equal(broken.take(16, 32), expected[16:])
