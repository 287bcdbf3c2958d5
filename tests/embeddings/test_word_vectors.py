"""Word vectors: round trips of all file formats, equality with gensim, and errors for invalid files."""

from __future__ import annotations

import json
import struct
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from chimera.core.errors import ChimeraError, ConfigurationError, DataError, MissingExtraError
from chimera.embeddings import Analogies, Similarities, WordVectors, evaluate, unigram_cross_entropy
from chimera.embeddings.files import FORMATS

RNG = np.random.default_rng(0)
WORDS = ["king", "queen", "man", "woman", "child", "whale", "sea", "ship", "sailor", "harpoon"]
SOME = WordVectors(WORDS, RNG.normal(size=(10, 4)))

words = st.text(st.characters(exclude_categories=("Cs",), exclude_characters=" \t\n\r\v\f"), min_size=1, max_size=8)
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def vectors(draw: Any) -> WordVectors:
    found = draw(st.lists(words, min_size=1, max_size=6, unique=True))
    dim = draw(st.integers(1, 5))
    row = st.lists(numbers, min_size=dim, max_size=dim)
    return WordVectors(found, draw(st.lists(row, min_size=len(found), max_size=len(found))))


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(vectors())
@pytest.mark.parametrize("ending", sorted(FORMATS))
def test_every_format_restores_the_same_words_and_bits(ending: str, tmp_path: Path, given: WordVectors) -> None:
    path = tmp_path / f"some{ending}"
    given.save(path)
    back = WordVectors.load(path, given.words if ending == ".csv" else None)
    assert back.words == given.words
    assert back.vectors.tobytes() == given.vectors.tobytes()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("ending", [".txt", ".bin"])
def test_gensim_and_chimera_read_the_files_of_each_other(ending: str, tmp_path: Path) -> None:
    models = pytest.importorskip("gensim.models")
    odd = WordVectors(
        ["a", "ß", "#1", "日本", "e\u0301", "-"],
        np.float32([[1e-38, 3.4e38], [1 / 3, -0.0], [1, 2], [0, 0], [5, 6], [7, 8]]),
    )
    for some in (SOME, odd):
        path = tmp_path / f"ours{ending}"
        some.save(path)
        theirs = models.KeyedVectors.load_word2vec_format(path, binary=ending == ".bin")
        assert tuple(theirs.index_to_key) == some.words
        assert np.array_equal(theirs.vectors, some.vectors)
        path = tmp_path / f"theirs{ending}"
        theirs.save_word2vec_format(path, binary=ending == ".bin")
        back = WordVectors.load(path)
        assert back.words == some.words
        np.testing.assert_allclose(back.vectors, some.vectors, rtol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("ending", [".csv", ".txt", ".bin"])
def test_a_file_is_written_without_a_second_copy_of_all_vectors(ending: str, tmp_path: Path) -> None:
    vectors = WordVectors([str(i) for i in range(800)], np.ones((800, 500)))
    tracemalloc.start()
    try:
        vectors.save(tmp_path / f"vectors{ending}")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < vectors.vectors.nbytes / 4


def test_embeddings_csv_has_a_row_of_numbers_per_word(tmp_path: Path) -> None:
    SOME.save(tmp_path / "embeddings.csv")
    assert np.array_equal(np.loadtxt(tmp_path / "embeddings.csv", dtype=np.float32), SOME.vectors)
    with pytest.raises(DataError, match="give the vocabulary"):
        WordVectors.load(tmp_path / "embeddings.csv")
    with pytest.raises(DataError, match="9 words need as many vectors"):
        WordVectors.load(tmp_path / "embeddings.csv", WORDS[1:])


def test_queries_have_the_answers_of_gensim() -> None:
    models = pytest.importorskip("gensim.models")
    big = WordVectors([f"w{i}" for i in range(200)], RNG.normal(size=(200, 8)))
    theirs = models.KeyedVectors(8)
    theirs.add_vectors(list(big.words), big.vectors)
    for ours, expected in (
        (big.neighbours("w3", 12), theirs.most_similar("w3", topn=12)),
        (big.analogy("w1", "w2", "w3", 5), theirs.most_similar(positive=["w2", "w3"], negative=["w1"], topn=5)),
    ):
        assert [word for word, _ in ours] == [word for word, _ in expected]
        np.testing.assert_allclose([cosine for _, cosine in ours], [cosine for _, cosine in expected], atol=1e-6)
    assert big.similarity("w5", "w9") == pytest.approx(float(theirs.similarity("w5", "w9")), abs=1e-6)


def test_evaluations_are_equal_to_those_of_gensim(tmp_path: Path) -> None:
    models = pytest.importorskip("gensim.models")
    names = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(300)]
    grid = RNG.normal(size=(2, 12))
    table = RNG.normal(0, 0.35, size=(300, 12)) + grid[np.arange(300) % 2]
    some = WordVectors(names, table)
    theirs = models.KeyedVectors(12)
    theirs.add_vectors(names, some.vectors)
    pairs = [(names[i], names[j], f"{RNG.random():.3f}") for i, j in RNG.integers(0, 300, (80, 2))]
    lines = ["# a comment", "first\tsecond\tscore", *("\t".join(pair) for pair in pairs), "unknown\twaa\t3.0"]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines))
    found = evaluate(some, tmp_path / "pairs.tsv")
    assert isinstance(found, Similarities)
    assert (found.name, found.pairs, found.unknown) == ("pairs", 81, 1)
    (tmp_path / "bare.tsv").write_text("\n".join(lines[2:-1]))
    assert found.spearman == pytest.approx(
        float(theirs.evaluate_word_pairs(tmp_path / "bare.tsv")[1].statistic), abs=1e-6
    )
    (tmp_path / "blanks.txt").write_text("\n".join(" ".join(pair) for pair in pairs) + "\n")
    assert evaluate(some, tmp_path / "blanks.txt").spearman == found.spearman  # type: ignore[union-attr]

    questions = [": one"]
    for i in range(0, 240, 2):
        a, c = names[i], names[(i + 10) % 300]
        best = some.analogy(a, names[i + 1], c)[0][0]
        questions.append(f"{a.title()} {names[i + 1]} {c} {best if i % 3 else names[(i + 11) % 300]}")
        if i == 100:
            questions.append(": two parts")
    (tmp_path / "questions.txt").write_text("\n".join([*questions, "waa unknown wab wac", ""]))
    asked = evaluate(some, tmp_path / "questions.txt")
    assert isinstance(asked, Analogies)
    score, sections = theirs.evaluate_word_analogies(tmp_path / "questions.txt")
    assert 0.5 < asked.accuracy < 1
    assert asked.accuracy == score
    assert (asked.questions, asked.unknown) == (121, 1)
    assert asked.sections == {
        each["section"]: (len(each["correct"]), len(each["correct"]) + len(each["incorrect"])) for each in sections[:-1]
    }


def test_ties_get_the_mean_rank(tmp_path: Path) -> None:
    pairs = list(zip(WORDS, WORDS[1:], [1, 1, 2, 2, 2, 5, 5, 0, 0], strict=False))
    (tmp_path / "ties.txt").write_text("\n".join(f"{a} {b} {value}" for a, b, value in pairs))
    cosines = [SOME.similarity(a, b) for a, b, _ in pairs]
    expected = spearmanr([value for *_, value in pairs], cosines).statistic
    assert evaluate(SOME, tmp_path / "ties.txt").spearman == pytest.approx(expected)  # type: ignore[union-attr]


def test_the_error_for_an_unknown_word_names_similar_ones() -> None:
    for ask in (
        SOME.neighbours,
        lambda word: SOME.similarity("king", word),
        lambda word: SOME.analogy("man", "king", word),
    ):
        with pytest.raises(
            ConfigurationError, match="'wale' is not in the vocabulary of 10 words; similar: whale"
        ) as caught:
            ask("wale")
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"10 words$"):
        SOME.index("zzzz")
    assert SOME.neighbours("King") == SOME.neighbours("king")
    assert len(SOME.neighbours("king", 99)) == 9
    assert len(SOME.analogy("king", "king", "man", 99)) == 8
    assert "whale" in SOME
    assert "wale" not in SOME
    with pytest.raises(ConfigurationError, match="at least 1"):
        SOME.neighbours("king", 0)


def test_cosines_are_right_for_vectors_of_any_length() -> None:
    some = WordVectors(["a", "b", "none"], [[1e-30, 1e-30], [2e30, 2e30], [0, 0]])
    assert some.similarity("a", "b") == pytest.approx(1)
    assert some.similarity("a", "none") == 0


def test_invalid_vectors_are_rejected() -> None:
    for bad, said in [
        ((["a", "a"], np.ones((2, 2))), "'a' occurs twice"),
        ((["a"], np.ones((2, 2))), "1 words need as many vectors"),
        (([], np.ones((0, 2))), "0 words"),
        ((["a", "b"], [[1, 2], [3, np.nan]]), "vector of 'b'"),
    ]:
        with pytest.raises(DataError, match=said):
            WordVectors(*bad)
    with pytest.raises(ValueError, match="read-only"):
        SOME.vectors[0] = 1


def test_words_that_a_format_cannot_hold_are_rejected_without_a_file(tmp_path: Path) -> None:
    for word in ("two words", "", "line\n", "\ud800"):
        for ending in sorted(set(FORMATS) - {".csv"}):
            with pytest.raises(ConfigurationError, match=r"empty or has white space|UTF-8"):
                WordVectors([word], [[1.0]]).save(tmp_path / f"x{ending}")
    with pytest.raises(ConfigurationError, match=r"ends in \.bin, \.csv"):
        SOME.save(tmp_path / "x.doc")
    with pytest.raises(ConfigurationError, match="cannot write"):
        SOME.save(tmp_path / "nowhere" / "x.bin")
    assert not list(tmp_path.iterdir())


def safetensors_header(header: dict[str, Any]) -> bytes:
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw


INVALID_FILES: list[tuple[str, bytes, str]] = [
    ("x.csv", b"", "is empty"),
    ("x.csv", b"1 2\n3\n", "line 2: it has 1 numbers"),
    ("x.csv", b"1 2\nx 3\n", "line 2: 'x'|line 2: b'x' is not a number"),
    ("x.csv", b"1 2\n\n3 4\n", "line 2: there are no numbers"),
    ("x.csv", b"1 nan\n", "line 1: there is a number that is not finite"),
    ("x.csv", b"1 1e39\n", "line 1: there is a number that is not finite"),
    ("x.txt", b"", "line 1: expected the number of words"),
    ("x.txt", b"words dim\n", "line 1: expected the number of words"),
    ("x.txt", b"999999999999 999999\na 1\n", "do not fit"),
    ("x.txt", b"0 3\n", "do not fit"),
    ("x.txt", b"2 2\na 1 2\nb 1\n", "line 3: expected a word and 2 numbers"),
    ("x.txt", b"2 2\na 1 2\nb 1 y\n", "line 3: .*'y' is not a number"),
    ("x.txt", b"2 2\na 1 2\n\xff 1 2\n", "line 3: the word .* UTF-8"),
    ("x.txt", b"1 2\na 1 2\nb 1 2\n", "has data after"),
    ("x.txt", b"2 2\na 1 2\n             ", "line 3: expected a word and 2 numbers"),
    ("x.bin", b"\x80\x02}q\x00.", "line 1: expected the number of words"),
    ("x.bin", b"99999999 9999\nab", "do not fit"),
    ("x.bin", b"2 1\nab \0\0\0\0ab12345", "word 2: the file ends"),
    ("x.bin", b"1 1\nab \0\0\0\0more", "has data after"),
    ("x.bin", b"1 1\n\xff \0\0\0\0", "word 1: the word .* UTF-8"),
    ("x.bin", b"1 1\nab \0\0\xc0\x7f", "not a finite number"),
    ("x.h5", b"", "not an HDF5 file"),
    ("x.h5", b"nothing at all", "not an HDF5 file"),
    ("x.safetensors", b"", "not a readable safetensors file"),
    ("x.safetensors", b"\xff" * 30, "not a readable safetensors file"),
    (
        "x.safetensors",
        safetensors_header({"vectors": {"dtype": "F32", "shape": [1 << 40, 9], "data_offsets": [0, 9]}}),
        "not a readable safetensors file",
    ),
    ("x.safetensors", safetensors_header({}), "has nothing"),
    ("x.pkl", b"", "ends in"),
]


@pytest.mark.parametrize(("name", "content", "said"), INVALID_FILES)
def test_an_invalid_file_gives_a_one_line_error(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=said) as caught:
        WordVectors.load(tmp_path / name, ["a"] if name == "x.csv" else None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", sorted(FORMATS))
def test_a_missing_file_is_an_error(ending: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        WordVectors.load(tmp_path / f"x{ending}", ["a"])


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
@pytest.mark.parametrize("ending", sorted(set(FORMATS) - {".csv", ".vec", ".hdf5"}))
def test_damaged_files_raise_only_chimera_errors(ending: str, tmp_path: Path, data: Any) -> None:
    path = tmp_path / f"x{ending}"
    SOME.save(path)
    raw = bytearray(path.read_bytes())
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    for place in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=4)) if raw else []:
        raw[place] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    with suppress(ChimeraError):
        WordVectors.load(path)


@pytest.mark.long
def test_any_wrong_byte_of_an_hdf5_file_raises_only_chimera_errors(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    SOME.save(path)
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + b"\xff" + good[place + 1 :])
        with suppress(ChimeraError):
            WordVectors.load(path)


def test_hdf5_reads_no_external_data(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    (tmp_path / "secret").write_bytes(b"a" * 400)
    path = tmp_path / "x.h5"
    good = np.frombuffer(b"a", np.uint8)
    for fill in (
        lambda f: f.create_dataset("vectors", (1, 4), "f4", external=[(str(tmp_path / "secret"), 0, 400)]),
        lambda f: f.__setitem__("vectors", h5py.ExternalLink(str(tmp_path / "other.h5"), "vectors")),
        lambda f: f.create_dataset("vectors", (1, 1 << 30), "f4", chunks=(1, 1024)),
        lambda f: f.create_dataset("vectors", (1, 4), "f8"),
        lambda f: f.create_group("vectors"),
        lambda f: None,
    ):
        with h5py.File(path, "w") as file:
            file["words"] = good
            fill(file)
        with pytest.raises(DataError, match=r"x\.h5"):
            WordVectors.load(path)


def test_without_h5py_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"chimera-dml\[hdf5\]"):
        SOME.save(tmp_path / "x.h5")


INVALID_EVALUATIONS = [
    ("", "is empty"),
    ("# only this\n", "is empty"),
    ("king queen 1\nking queen\n", "line 2: 'king queen' is not two words"),
    ("king queen 1\nking queen x\n", "line 2"),
    ("king\tqueen\n", "line 1"),
    (": s\nking queen man woman\nking queen man\n", "line 3: 'king queen man' is neither four words"),
    (": s\nno such words here\n", "none of 1 questions"),
    ("a b 1\nc d 2\n", "too few of 2 pairs"),
    ("king queen nan\nking man nan\n", "line 2"),
]


@pytest.mark.parametrize(("text", "said"), INVALID_EVALUATIONS)
def test_the_error_for_an_invalid_evaluation_file_names_the_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(text)
    with pytest.raises(DataError, match=said):
        evaluate(SOME, tmp_path / "x.txt")


def test_unreadable_evaluation_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="UTF-8"):
        evaluate(SOME, tmp_path / "x.txt")
    with pytest.raises(DataError, match="No such file"):
        evaluate(SOME, tmp_path / "none.txt")
    (tmp_path / "same.txt").write_text("a b 1\na c 2\nb c 3\n")
    with pytest.raises(DataError, match="carry no information"):
        evaluate(WordVectors("abc", np.zeros((3, 2))), tmp_path / "same.txt")


def test_the_unigram_cross_entropy() -> None:
    counts, targets = np.array([9, 4, 0]), np.array([0, 0, 1, 2])
    expected = -np.mean(np.log(np.array([10, 10, 5, 1]) / 16))
    assert unigram_cross_entropy(counts, targets) == pytest.approx(expected)
    for strange in (np.array([3]), np.array([-1]), np.array([], int), np.array([0.5])):
        with pytest.raises(DataError):
            unigram_cross_entropy(counts, strange)
