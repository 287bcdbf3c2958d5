"""The plot of frequent words: input files may be huge or hostile, and labels are readable."""

import json
import re
import subprocess

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chimera.report.html import write_report
from chimera.report.run_files import read_run
from chimera.report.word_plot import labels, width_of
from chimera.report.word_vectors import MAX_WORDS, project_to_plane, read_words
from report.test_html import BROWSERS, HOSTILE, Page

LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))


def some_words(count, seed=0):
    rng = np.random.default_rng(seed)
    return [f"{''.join(rng.choice(LETTERS, rng.integers(2, 11)))}{i}" for i in range(count)]


def write(folder, words, vectors, stop_words=None):
    (folder / "vocabulary.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    lines = (" ".join(f"{value:.6g}" for value in row) for row in vectors)
    (folder / "embeddings.csv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if stop_words is not None:
        (folder / "stop_words.txt").write_text(" ".join(stop_words), encoding="utf-8")
    return folder


def vectors_of(count, dimensions=8, seed=1):
    return np.random.default_rng(seed).normal(size=(count, dimensions))


@pytest.mark.parametrize("count", [3, 60, 200])
def test_the_most_frequent_words_are_read_with_their_rows(tmp_path, count):
    words, vectors, notes = some_words(count), vectors_of(count), []
    found = read_words(write(tmp_path, words, vectors), notes)
    assert found.words == tuple(words[:MAX_WORDS])
    assert found.ranks == tuple(range(1, min(count, MAX_WORDS) + 1))
    np.testing.assert_allclose(found.vectors, vectors[:MAX_WORDS], rtol=1e-5)
    assert notes == []


def test_stop_words_and_their_rows_are_left_out(tmp_path):
    words, vectors = some_words(200), vectors_of(200)
    found = read_words(write(tmp_path, words, vectors, words[0:40:2]), [])
    assert found.words == tuple(word for word in words if word not in words[0:40:2])[:MAX_WORDS]
    np.testing.assert_allclose(found.vectors, vectors[[rank - 1 for rank in found.ranks]], rtol=1e-5)


def test_nothing_after_the_words_that_are_drawn_is_read(tmp_path):
    words, vectors, notes = some_words(MAX_WORDS), vectors_of(MAX_WORDS), []
    write(tmp_path, words, vectors)
    for name in ("vocabulary.txt", "embeddings.csv"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"\n\xff\xff not a row at all\n" + b"x" * (2 << 20))
    assert len(read_words(tmp_path, notes).words) == MAX_WORDS
    assert notes == []


@pytest.mark.parametrize(
    ("words", "rows", "said"),
    [
        ("a\nb\n", "1 2\n3 4\n", "vocabulary.txt has fewer than three words to draw"),
        ("a\n\nb\nc\n", "1\n2\n3\n4\n", "line 2 of vocabulary.txt is empty"),
        ("a\nb\nc\n", "1 2\n3 4\n", "embeddings.csv has fewer rows than vocabulary.txt has words"),
        ("a\nb\nc\n", "1 2\n3 x\n5 6\n", "line 2 of embeddings.csv is not a row of numbers"),
        ("a\nb\nc\n", "1 2\n3\n5 6\n", "line 2 of embeddings.csv does not have one finite number for each dimension"),
        (
            "a\nb\nc\n",
            "1 2\n3 nan\n5 6\n",
            "line 2 of embeddings.csv does not have one finite number for each dimension",
        ),
        ("a\nb\nc\n", "1 2\n\n5 6\n", "line 2 of embeddings.csv does not have one finite number for each dimension"),
        ("a\nb\nc\n", "1 " * (1 << 20), "a line of embeddings.csv is longer than"),
    ],
)
def test_invalid_files_give_a_note_instead_of_the_plot(runs, words, rows, said):
    folder = runs.make()
    (folder / "vocabulary.txt").write_text(words, encoding="utf-8")
    (folder / "embeddings.csv").write_text(rows, encoding="utf-8")
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert f"There is no plot of the words: {said}" in page.text
    assert "Words" not in page.words


def test_the_report_of_a_run_without_words_does_not_mention_them(runs):
    folder = runs.make()
    (folder / "vocabulary.txt").write_text("a\nb\nc\n", encoding="utf-8")
    assert read_run(folder).notes == ()
    assert "words" not in Page(write_report(folder).read_text(encoding="utf-8")).text


@given(st.integers(3, 30), st.integers(1, 12), st.integers(0, 1000))
def test_the_projection_has_the_reported_share_of_the_variance(count, dimensions, seed):
    vectors = vectors_of(count, dimensions, seed) * 10.0 ** np.random.default_rng(seed).integers(-150, 150, (count, 1))
    points, shares = project_to_plane(vectors)
    unit = vectors / np.abs(vectors).max(axis=1, keepdims=True)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    centred = unit - unit.mean(axis=0)
    assume((centred**2).sum() > 1e-9)
    variances = np.sort(np.linalg.eigvalsh(centred.T @ centred))[::-1][:2]
    np.testing.assert_allclose((points**2).sum(axis=0)[: len(variances)], variances, atol=1e-9)
    np.testing.assert_allclose(shares[: len(variances)], variances / (centred**2).sum(), atol=1e-9)
    np.testing.assert_allclose(points.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(project_to_plane(vectors * 3)[0], points, atol=1e-9)


def test_equal_vectors_have_no_projection_and_the_report_notes_it(runs):
    assert project_to_plane(np.ones((5, 4)))[1] == project_to_plane(np.zeros((5, 4)))[1] == (0.0, 0.0)
    folder = write(runs.make(), some_words(5), np.ones((5, 4)))
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "The vectors of the most frequent words are all equal." in page.text


SIZE = (560.0, 500.0)
PLACES = st.tuples(st.floats(30, 550, allow_nan=False), st.floats(5, 470, allow_nan=False))


@settings(deadline=None)
@given(st.lists(st.tuples(PLACES, st.floats(5, 150)), min_size=1, max_size=60))
def test_no_label_overlaps_another_label_or_its_point_or_the_edge(places):
    points = np.array([point for point, _ in places])
    boxes = labels(points, [width for _, width in places], SIZE)
    placed = [(i, box) for i, box in enumerate(boxes) if box is not None]
    for i, box in placed:
        assert 0 <= box.left < box.right <= SIZE[0]
        assert 0 <= box.top < box.bottom <= SIZE[1]
        for j, other in placed:
            x, y = points[j]
            assert i == j or not box.overlaps(other)
            assert i == j or not (box.left <= x <= box.right and box.top <= y <= box.bottom)


def test_an_isolated_point_has_a_label():
    points = np.array([(x, y) for x in (100.0, 300.0) for y in (50.0, 150.0, 250.0)])
    assert None not in labels(points, [80.0] * len(points), SIZE)


def test_the_report_shows_words_their_number_and_the_share_of_the_variance(runs):
    words = [HOSTILE.replace(" ", ""), "w\x00\x1b‮\u200b", "x" * 5000, *some_words(150)]
    folder = write(runs.make(), words, vectors_of(len(words)))
    text = write_report(folder).read_text(encoding="utf-8")
    page = Page(text)
    assert not {"script", "img"} & set(page.tags)
    assert page.text.count("of the variance") == 4
    for count in re.findall(r"Labelled: (\d+) of the 120 most frequent words", page.text):
        assert 20 < int(count) <= 120
    wide, narrow = text.split('<figure class="wide">')[1].split("</figure>")[:2]
    for figure in (wide, narrow):
        shown, said = figure.count('class="word"'), int(re.search(r"Labelled: (\d+)", figure)[1])
        assert shown == said
        assert figure.count("<circle") == 120
        assert f"{words[5]}, number 6 of the vocabulary" in figure
    assert "x" * 30 not in text
    assert "\x00" not in text
    assert "‮" not in text


MEASURE = """<script>
const inside = document.querySelectorAll('.words figure');
const figure = [...inside].find(each => each.getClientRects().length);
const boxes = [...figure.querySelectorAll('.word')].map(each => each.getBoundingClientRect());
const frame = figure.querySelector('svg').getBoundingClientRect();
let bad = 0;
boxes.forEach((a, i) => {
  if (a.left < frame.left || a.right > frame.right || a.top < frame.top - 2 || a.bottom > frame.bottom) bad += 1;
  boxes.slice(i + 1).forEach(b => {
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    if (across > 0.5 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 5) bad += 1;
  });
});
document.title = JSON.stringify({labels: boxes.length, bad, height: boxes[0].height, wide: figure.className});
</script>"""


@pytest.mark.parametrize("browser", BROWSERS)
@pytest.mark.parametrize(("width", "kind"), [(1280, "wide"), (600, "narrow")])
def test_labels_in_a_browser_do_not_overlap_and_are_large_enough(runs, tmp_path, browser, width, kind):
    """The test measures rendered text; letters need only the middle of a line's height."""
    folder = write(runs.make(), some_words(150), vectors_of(150, dimensions=3))
    path = tmp_path / "measured.html"
    path.write_text(write_report(folder).read_text(encoding="utf-8") + MEASURE, encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    options += ["--disable-background-networking", "--disable-component-update", f"--window-size={width},900"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]
    shown = subprocess.run([browser, *options], capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(re.search(r"<title>(.*?)</title>", shown.stdout)[1])
    assert found["wide"] == kind
    assert found["bad"] == 0
    assert found["labels"] > 50
    assert found["height"] > 12


def test_a_label_is_never_wider_than_estimated():
    """The test measures the widest of the fonts that browsers are likely to use."""
    font_manager = pytest.importorskip("matplotlib.font_manager")
    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    font.set_size(130, 72)  # ten times as large, where hinting says little
    words = "minimum whale queequeg illicit Mississippi WWW don't 2026 naïve mmmmww <number> слово Ωmega jfk trt"
    for word in words.split():
        font.set_text(word)
        assert font.get_width_height()[0] / 640 <= width_of(word)
