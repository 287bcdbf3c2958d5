"""The words of a text do not depend on its division into files, parts and blocks."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError, DataError
from chimera.data.text.reading.source import Reader, Source, TextFile
from chimera.data.text.reading.tokens import Part, Rules
from chimera.data.text.vocabulary import Vocabulary
from data.text.texts import naive_words, words_of, written

RULES = st.builds(
    Rules,
    number_token=st.sampled_from([None, "<num>"]),
    longest=st.sampled_from([None, 1, 3]),
    bounds=st.sampled_from([None, "lines", "sentences"]),
)
TEXTS = st.lists(st.sampled_from([*"aZb09 .!\n'", "\xe4", "\0"]), max_size=60).map(
    lambda found: "".join(found).encode()
)


def sources(folder: Path, *texts: bytes, packed: bool = False) -> Source:
    files = []
    for place, text in enumerate(texts):
        path = folder / f"{place}.{'gz' if packed else 'txt'}"
        written(path, gzip.compress(text) if packed else text)
        files.append(TextFile(str(path), len(text), packed))
    return Source(tuple(files))


def words_in(source: Source, rules: Rules, parts: int, block_bytes: int) -> list[str]:
    return [word for index in range(parts) for word in words_of(Part.of(source, rules, index, parts, block_bytes))]


@given(st.binary(max_size=80) | TEXTS, RULES, st.integers(1, 4), st.integers(1, 90))
def test_any_bytes_in_any_parts_and_blocks_give_the_words_of_the_reference(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, rules: Rules, parts: int, block_bytes: int
) -> None:
    source = sources(tmp_path_factory.mktemp("text"), text)
    assert words_in(source, rules, parts, block_bytes) == naive_words(text + b"\n", rules)


@given(st.lists(TEXTS.filter(bool), min_size=1, max_size=4), st.booleans(), st.integers(1, 3), st.integers(1, 50))
def test_several_files_are_one_text_with_line_ends_between(
    tmp_path_factory: pytest.TempPathFactory, texts: list[bytes], packed: bool, parts: int, block_bytes: int
) -> None:
    source = sources(tmp_path_factory.mktemp("text"), *texts, packed=packed)
    rules = Rules(number_token="<num>", bounds="lines")
    assert words_in(source, rules, parts, block_bytes) == naive_words(b"".join(text + b"\n" for text in texts), rules)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=12), st.booleans())
def test_reads_can_go_back_and_ahead(
    tmp_path_factory: pytest.TempPathFactory, places: list[tuple[int, int]], packed: bool
) -> None:
    texts = [bytes(range(65, 65 + size)) * 3 for size in (26, 1, 40)]
    source = sources(tmp_path_factory.mktemp("text"), *texts, packed=packed)
    whole, reader = b"".join(text + b"\n" for text in texts), Reader(source)
    for begin, size in places:
        assert reader.read(begin, begin + size) == whole[begin : begin + size]
    reader.close()


@given(st.binary(max_size=200) | TEXTS, RULES)
def test_a_table_finds_and_counts_the_words_of_a_text(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, rules: Rules
) -> None:
    words = [word for word in naive_words(text, rules) if word != "."]
    source = sources(tmp_path_factory.mktemp("text"), text + b"\nzz")
    vocabulary = Vocabulary.build(source, Rules(rules.number_token, None, rules.bounds))
    every = naive_words(text + b"\nzz", Rules(rules.number_token))
    counted = {word: every.count(word) for word in set(every)}
    assert vocabulary.words == tuple(sorted(counted, key=lambda word: (-counted[word], word)))
    assert vocabulary.counts is not None
    assert dict(zip(vocabulary.words, vocabulary.counts.tolist(), strict=True)) == counted

    found = vocabulary.table(rules).find(np.frombuffer(text.translate(rules.table), np.uint8))
    assert [vocabulary.words[index] for index in found if index >= 0] == words


def test_a_table_distinguishes_many_words() -> None:
    words = ["".join(chr(97 + (place // 26**k) % 26) for k in range(5)) for place in range(200_000)]
    table = Vocabulary(words).table(Rules())
    some = np.random.default_rng(0).permutation(len(words))[:50_000]
    clean = " ".join(words[place] for place in some).encode()
    np.testing.assert_array_equal(table.find(np.frombuffer(clean, np.uint8)), some)


def test_a_large_file_is_read_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.txt"
    line = b"the white whale swims before him as the monomaniac incarnation " * 1000
    with path.open("wb") as file:
        for _ in range(500):
            file.write(line)
    source, words = Source.of(path), 0
    part, reader = Part.of(source, Rules(), 0, 1), Reader(source)
    tracemalloc.start()
    for number in range(part.blocks):
        words += part.clean(reader, number).count(b"monomaniac")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert words == 500_000
    assert peak_bytes < 4 << 20 < source.size / 7


def test_an_endless_word_is_rejected_before_it_fills_memory(tmp_path: Path) -> None:
    source = Source.of(written(tmp_path / "endless.txt", b"a" * (64 << 20)))
    with pytest.raises(DataError, match="is not text: it has 1048576 letters without a space"):
        Part.of(source, Rules(), 0, 1).clean(Reader(source), 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bounds": "words"}, "the bounds 'words' are unknown"),
        ({"number_token": "num"}, "could be a normal word"),
        ({"number_token": "a b>"}, "could be a normal word"),
        ({"longest": 0}, "a word has 1 letter or more"),
    ],
)
def test_invalid_rules_are_rejected(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Rules(**options)  # type: ignore[arg-type]
