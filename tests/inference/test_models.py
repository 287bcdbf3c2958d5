"""Models from their tables: tiny real models of every kind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.core.errors import ConfigurationError, DataError, MissingExtraError, UnknownNameError
from chimera.inference import models
from chimera.inference.inputs import queries
from chimera.inference.models.pipelines import task_of
from chimera.inference.models.spec import key_of
from chimera.inference.models.warm_up import warm_up
from inference_kit import LABELS, tiny_bert, tiny_gpt, tiny_vit


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vit(tmp_path_factory.mktemp("vit"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    from PIL import Image

    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for i, mode in enumerate(("RGB", "L", "RGBA", "RGB")):
        pixels = rng.integers(0, 256, (20 + i, 30, 4), np.uint8)
        Image.fromarray(pixels, "RGBA").convert(mode).save(folder / f"{i}.png")
    return sorted(str(path) for path in folder.iterdir())


def _table(task: str, model: Path | str, **more: Any) -> dict[str, Any]:
    return {"kind": "transformers", "task": task, "model": str(model), **more}


@pytest.mark.long
def test_a_vision_transformer_answers_the_top_labels_with_scores(vit: Path, pictures: list[str]) -> None:
    predictor = models.load(_table("image-classification", vit, options={"top_k": 3}))
    answers = models.answers(predictor, pictures)
    json.dumps(answers, allow_nan=False)
    for answer in answers:
        scores = [label["score"] for label in answer["result"]]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert {label["label"] for label in answer["result"]} <= set(LABELS)
    alone = [models.answers(predictor, [picture])[0] for picture in pictures]
    for together, single in zip(answers, alone, strict=True):
        assert [x["label"] for x in together["result"]] == [x["label"] for x in single["result"]]
        assert [x["score"] for x in together["result"]] == pytest.approx(
            [x["score"] for x in single["result"]], rel=1e-5
        )


def test_its_answers_are_those_of_the_model_itself(vit: Path, pictures: list[str]) -> None:
    import torch
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    model, processor = AutoModelForImageClassification.from_pretrained(vit), AutoImageProcessor.from_pretrained(vit)
    with torch.no_grad():
        logits = model(**processor(Image.open(pictures[0]).convert("RGB"), return_tensors="pt")).logits[0]
    expected = sorted(zip(logits.softmax(0).tolist(), LABELS, strict=True), reverse=True)
    predictor = models.load(_table("image-classification", vit, options={"top_k": len(LABELS)}))
    found = models.answers(predictor, [pictures[0]])[0]["result"]
    assert [label["label"] for label in found] == [label for _, label in expected]
    assert [label["score"] for label in found] == pytest.approx([score for score, _ in expected], rel=1e-5)


def test_a_broken_image_has_an_error_and_the_others_their_results(
    vit: Path, pictures: list[str], tmp_path: Path
) -> None:
    broken, cut = tmp_path / "broken.png", tmp_path / "cut.png"
    broken.write_text("no image")
    cut.write_bytes(Path(pictures[3]).read_bytes()[:200])
    predictor = models.load(_table("image-classification", vit))
    asked = [pictures[0], str(broken), str(tmp_path / "absent.png"), pictures[1], str(cut), 7, pictures[2]]
    answers = models.answers(predictor, asked)
    assert [sorted(answer) for answer in answers] == [
        *(["result"], ["error"], ["error"], ["result"], ["error"], ["error"], ["result"])
    ]
    assert "broken.png is no image" in answers[1]["error"]
    assert "there is no image" in answers[2]["error"]
    assert "cut.png is no image, or a broken one" in answers[4]["error"]
    assert all("\n" not in answer.get("error", "") for answer in answers)
    assert answers[3] == models.answers(predictor, [pictures[0], pictures[1], pictures[2]])[1]


@pytest.mark.long
def test_images_come_from_urls_from_data_and_as_pixels(vit: Path, pictures: list[str]) -> None:
    import base64

    import fsspec
    from PIL import Image

    content = Path(pictures[0]).read_bytes()
    with fsspec.open("memory://vit/0.png", "wb") as file:
        file.write(content)
    pixels = np.asarray(Image.open(pictures[0]))
    same = [
        *(pictures[0], f"file://{pictures[0]}", "memory://vit/0.png"),
        *(f"data:image/png;base64,{base64.b64encode(content).decode()}", pixels, pixels.tolist()),
    ]
    answers = models.answers(models.load(_table("image-classification", vit)), same)
    for answer in answers:
        assert [x["label"] for x in answer["result"]] == [x["label"] for x in answers[0]["result"]]


def test_bert_answers_the_whole_sentence_with_its_masks_filled(bert: Path) -> None:
    predictor = models.load(_table("fill-mask", bert))
    asked = ["The cat [MASK] on the mat.", "the dog", "a [MASK] sat under the [MASK] .", "the [MASK]"]
    found = models.answers(predictor, asked)
    from transformers import pipeline

    assert found[0] == {"result": pipeline("fill-mask", model=str(bert))(asked[0], top_k=1)[0]["sequence"]}
    assert found[0]["result"].startswith("the cat ")
    assert "No mask_token" in found[1]["error"]
    assert found[2]["result"].startswith("a ")
    assert " sat under the " in found[2]["result"]
    assert all("[" not in answer["result"] for answer in (found[0], found[2], found[3]))
    assert found == [models.answers(predictor, [query])[0] for query in asked]


def test_bert_answers_proposals_where_the_table_says_how_many(bert: Path) -> None:
    predictor = models.load(_table("fill-mask", bert, options={"top_k": 2}))
    (answer,) = models.answers(predictor, ["the cat [MASK] ."])
    assert [sorted(proposal) for proposal in answer["result"]] == [["score", "sequence", "token", "token_str"]] * 2


def test_a_sentence_that_is_too_long_fails_alone(bert: Path) -> None:
    found = models.answers(models.load(_table("fill-mask", bert)), ["a [MASK]", "the [MASK] " * 40, "the [MASK]"])
    assert [sorted(answer) for answer in found] == [["result"], ["error"], ["result"]]


def test_a_long_sentence_is_cut_where_the_table_says_so(bert: Path) -> None:
    options = {"tokenizer_kwargs": {"truncation": True, "max_length": 8}}
    predictor = models.load(_table("fill-mask", bert, options=options))
    for masks in ("[MASK] " * 3, "[MASK] "):
        (answer,) = models.answers(predictor, [f"{masks}cat sat on the mat under the tree"])
        assert len(answer["result"].split()) == 6  # and the two tokens around a sentence


def test_texts_are_continued_in_a_batch_as_they_are_alone(tmp_path: Path) -> None:
    predictor = models.load(
        _table("text-generation", tiny_gpt(tmp_path), options={"max_new_tokens": 3, "do_sample": False})
    )
    asked = ["the cat", "a dog sat on the mat under the", "a"]
    together = models.answers(predictor, asked)
    assert together == [models.answers(predictor, [query])[0] for query in asked]
    assert all(a["result"][0]["generated_text"].startswith(q) for a, q in zip(together, asked, strict=True))


def test_text_classification_and_features(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path, classifier=True)
    answers = models.answers(models.load(_table("text-classification", folder)), ["the cat", "a dog sat"])
    assert all(answer["result"]["label"] in ("LABEL_0", "LABEL_1") for answer in answers)
    (features,) = models.answers(models.load(_table("feature-extraction", folder)), ["the cat"])
    assert np.shape(features["result"]) == (1, 4, 16)  # [CLS] the cat [SEP]


_SCORES = """
import sys
from chimera.inference import models
table = {"kind": "transformers", "task": "text-classification", "model": sys.argv[1]}
print(models.answers(models.load(table | {"allow_missing": ["classifier.*", "*.pooler.*"]}), ["the cat sat"]))
"""


def test_weights_that_the_files_lack_are_an_error_with_their_names(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"not hold the weights .*classifier\.bias, classifier\.weight"
    ) as caught:
        models.load(_table("text-classification", bert))
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"not hold the weights classifier\.bias: use a model"):
        models.load(_table("text-classification", bert, allow_missing=["classifier.weight", "bert.pooler.*"]))
    assert models.load(_table("feature-extraction", bert))  # it does not use the pooler
    folder = tiny_bert(tmp_path, classifier=True)
    settings = json.loads((folder / "config.json").read_text())
    labels = {str(index): name for index, name in enumerate("abc")}
    settings |= {"id2label": labels, "label2id": {name: int(index) for index, name in labels.items()}}
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigurationError, match=r"classifier\.weight \(shape \(2, 16\), not \(3, 16\)\)"):
        models.load(_table("text-classification", folder))
    assert models.load(_table("text-classification", folder, allow_missing=["classifier.*"]))


def test_weights_that_may_be_missing_are_the_same_each_time(bert: Path) -> None:
    import torch

    table = _table("text-classification", bert, allow_missing=["classifier.*", "bert.pooler.*"])
    answers = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        predictor = models.load(table)
        drawn = torch.rand(1).item()
        torch.manual_seed(seed)
        assert torch.rand(1).item() == drawn  # the seed of the caller is kept
        answers.append(models.answers(predictor, ["the cat sat"]))
    assert answers[0] == answers[1]


@pytest.mark.long  # two processes import transformers
def test_weights_that_may_be_missing_are_the_same_on_all_workers(bert: Path) -> None:
    answers = [
        subprocess.run(
            [sys.executable, "-c", _SCORES, str(bert)], capture_output=True, text=True, check=True, timeout=100,
            env={**os.environ, "OMP_NUM_THREADS": threads},
        ).stdout
        for threads in ("1", "2")
    ]  # fmt: skip
    assert answers[0].startswith("[{'result'")
    assert answers[0] == answers[1]


def test_a_text_that_is_too_long_is_cut_by_default_for_classes_and_features(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path, classifier=True)  # of 16 positions, two of which are tokens around the text
    long, begin = "the cat sat on a mat . " * 9, "the cat sat on a mat . the cat sat on a mat ."
    whole, cut = models.answers(models.load(_table("text-classification", folder)), [long, begin])
    assert whole["result"] == cut["result"]
    (features,) = models.answers(models.load(_table("feature-extraction", folder)), [long])
    assert np.shape(features["result"]) == (1, 16, 16)
    for task, options in (
        ("text-classification", {"truncation": False}),
        ("feature-extraction", {"tokenize_kwargs": {"truncation": False}}),
    ):
        found = models.answers(models.load(_table(task, folder, options=options)), [long, begin])
        assert [sorted(answer) for answer in found] == [["error"], ["result"]]


def test_an_id_is_found_in_the_cache_at_its_revision_without_a_network(
    vit: Path, pictures: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    commit = "3f49326eb077187dfe1c2a2bb15fbd74e6ab91e3"
    cached = tmp_path / "models--google--vit-base-patch16-224" / "snapshots" / commit
    shutil.copytree(vit, cached)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    table = models.check(_table("image-classification", "google/vit-base-patch16-224", revision=commit))
    assert models.answers(models.load(table), pictures[:1])[0]["result"]
    with pytest.raises(ConfigurationError, match="cannot be downloaded and is not in the cache"):
        models.load(table | {"revision": "0" * 40})


def test_weights_that_are_no_safetensors_are_loaded_only_where_the_table_says_so(
    tmp_path: Path, pictures: list[str]
) -> None:
    folder = tiny_vit(tmp_path, safetensors=False)
    with pytest.raises(ConfigurationError, match="has no safetensors; set pickled_weights"):
        models.load(_table("image-classification", folder))
    predictor = models.load(_table("image-classification", folder, pickled_weights=True))
    assert models.answers(predictor, pictures[:1])[0]["result"]


@pytest.mark.long  # a second process imports transformers
def test_a_folder_loads_with_every_way_to_the_network_closed(bert: Path) -> None:
    code = (
        "import socket, sys\n"
        "def refuse(*args, **kwargs): raise AssertionError('a connection')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        "from chimera.inference import models\n"
        "predictor = models.load({'kind': 'transformers', 'task': 'fill-mask', 'model': sys.argv[1]})\n"
        "print(models.answers(predictor, ['the [MASK] sat']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(bert)], capture_output=True, text=True, check=True, timeout=100
    )
    assert "result" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"kind": "magic"},
            "kind of model 'magic'; known: chimera, factory, sklearn, text-embeddings, text-generation, transformers, vllm",
        ),
        ({"kind": None}, "needs kind ="),
        ({"tusk": "x"}, "has no option 'tusk'"),
        ({"task": 3}, "option 'task': 3 cannot be used"),
        ({"task": ""}, "task is empty"),
        ({"model": "./nowhere"}, "there is no folder"),
        ({"model": "google/vit-base-patch16-224"}, "is an id: set revision"),
        ({"options": [1]}, "option 'options'"),
        ({"task": "mind-reading"}, "unknown task of transformers 'mind-reading'; known: .*audio-classification, "),
        ({"task": "fill-masks"}, "unknown task of transformers 'fill-masks'; did you mean 'fill-mask'"),
        ({"options": {"top_q": 3}}, r"options\.top_q is not an option of the task 'fill-mask'; did you mean 'top_k'"),
        ({}, r"the task 'fill-mask' needs a tokenizer, but the folder .* has none of tokenizer\.json, "),
        ({"task": "image-classification"}, r"needs an image processor, but .* has none of preprocessor_config\.json"),
    ],
)
def test_a_bad_table_is_refused_in_one_line_before_anything_is_loaded(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=message) as caught:
        models.check(_table("fill-mask", tmp_path) | change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": "moon"}, "cannot be loaded: "),
        ({"task": "text-generation", "options": {"trust_remote_code": True}}, "is not an option of a pipeline's call"),
    ],
)
def test_what_only_transformers_knows_is_one_line_too(change: dict[str, Any], message: str, bert: Path) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        models.load(_table("fill-mask", bert) | change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("task", ["audio-classification", "text-classification", "object-detection", "text-generation"])
def test_tasks_and_options_are_those_of_transformers(task: str) -> None:
    import transformers.pipelines as library

    for name in (*library.SUPPORTED_TASKS, *library.TASK_ALIASES):
        assert task_of(name)
    found = task_of(task)
    assert found is not None
    made_by = library._resolve_impl(library.SUPPORTED_TASKS[task]["impl"])
    assert ("tokenizer" in found.needs) == (made_by._load_tokenizer is True)
    assert ("image processor" in found.needs) == (made_by._load_image_processor is True)
    expected = {
        "audio-classification": {"top_k", "function_to_apply"},
        "text-classification": {"top_k", "function_to_apply", "truncation", "max_length"},
        "object-detection": {"threshold", "timeout"},
    }
    if task == "text-generation":
        assert found.options is None  # options of generate
    else:
        assert found.options is not None
        assert expected[task] <= found.options
        found.check_options(dict.fromkeys(expected[task]))


def test_tasks_are_known_without_an_import_of_transformers(bert: Path) -> None:
    code = (
        "import sys; from chimera.inference import models\n"
        "models.check({'kind': 'transformers', 'task': 'fill-mask', 'model': sys.argv[1]})\n"
        "assert not {'transformers', 'torch'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code, str(bert)], check=True, timeout=100)


def test_a_checked_table_is_complete_and_the_same_however_it_was_written(bert: Path) -> None:
    short = models.check({"kind": "transformers", "task": "fill-mask", "model": bert.name}, folder=bert.parent)
    long = models.check(_table("fill-mask", bert, dtype="auto", options={}))
    assert short == long
    assert models.check(short) == short
    assert key_of(short) == key_of(json.loads(json.dumps(long)))


@pytest.mark.long
def test_a_model_that_is_written_again_is_another_model(tmp_path: Path) -> None:
    import skops.io

    keys = []
    for value in (1, 2):
        skops.io.dump({"value": value}, tmp_path / "m.skops")
        os.utime(tmp_path / "m.skops", ns=(value, value))  # as if time had passed
        keys.append(key_of(models.read(tmp_path / "m.skops")))
        assert key_of(models.check(models.read(tmp_path / "m.skops"))) == keys[-1]
    assert keys[0] != keys[1]


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    with pytest.raises(MissingExtraError, match=r"'transformers', which is not installed: pip install .*\[inference\]"):
        models.check(_table("fill-mask", tmp_path))


def test_a_model_that_chimera_trained_answers_labels_from_raw_rows(tmp_path: Path) -> None:
    from sklearn.datasets import load_iris

    run = chimera.train(
        {"name": "mlp", "hidden": [8]}, "iris", engine="simulated", optimizer={"name": "adam", "lr": 0.01}, epochs=20,
        out=tmp_path / "run",
    )  # fmt: skip
    predictor = models.load(models.read(run.run_dir))
    iris = load_iris()
    named = dict(zip(iris.feature_names, iris.data[0], strict=True))
    gaps = [[1, 2, None, 4], [1, float("nan"), 3, 4], [1e300, 2, 3, 4]]
    answers = models.answers(predictor, [*iris.data, [1, 2], named, *gaps])
    labels = [answer.get("result") for answer in answers]
    right = np.mean([label == iris.target_names[target] for label, target in zip(labels, iris.target, strict=False)])
    assert right == pytest.approx(run.metrics["accuracy"], abs=0.1)
    assert right > 0.8  # raw rows are standardized as the training data were
    assert "the query has shape (2,), the model expects (4,)" in answers[150]["error"]
    assert labels[151] == labels[0]
    for answer, place in zip(answers[152:], (2, 1, 0), strict=True):
        assert f"column {iris.feature_names[place]!r} of the query is missing, NaN, or infinite" in answer["error"]


def test_a_regression_answers_in_the_units_of_its_targets(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    heights = rng.uniform(0, 10, 200)
    lines = [f"{h},{'red' if i % 2 else 'blue'},{100 * h + (7 if i % 2 else 0):.4f}" for i, h in enumerate(heights)]
    (tmp_path / "prices.csv").write_text("height,colour,price\n" + "\n".join(lines))
    data = {"name": "csv", "path": str(tmp_path / "prices.csv"), "scale_target": True}
    run = chimera.train(
        "sklearn-sgd-regressor", data, engine="simulated", optimizer={"name": "sgd", "lr": 0.1}, epochs=40,
        out=tmp_path / "run",
    )  # fmt: skip
    predictor = models.load({"kind": "chimera", "run": str(run.run_dir)})
    asked = [{"height": 5, "colour": "red"}, {"height": 5, "colour": "blue"}, {"height": 5}]
    asked += [{"height": None, "colour": "red"}, {"height": 5, "colour": None}, [float("nan"), 1, 0]]
    red, blue, lacking, *missing = models.answers(predictor, asked)
    assert red["result"] == pytest.approx(507, abs=3)
    assert blue["result"] == pytest.approx(500, abs=3)
    assert "has no column 'colour'" in lacking["error"]
    for answer, column in zip(missing, ("height", "colour", "height"), strict=True):
        assert f"column {column!r} of the query is missing" in answer["error"]


def test_a_column_of_booleans_is_read_as_in_training(tmp_path: Path) -> None:
    lines = [f"{place % 7},{place % 2 == 0},{place % 7 + 9 * (place % 2)}.5" for place in range(40)]
    (tmp_path / "a.csv").write_text("height,wide,price\n" + "\n".join(lines) + "\n")
    run = chimera.train(
        "sklearn-sgd-regressor",
        {"name": "csv", "path": str(tmp_path / "a.csv")},
        engine="simulated",
        epochs=2,
        out=tmp_path / "run",
    )
    predictor = models.load(models.read(run.run_dir))
    rows = list(queries(tmp_path / "a.csv"))[:2]
    assert [row["wide"] for row in rows] == ["True", "False"]
    texts, numbers = models.answers(predictor, rows), models.answers(predictor, [[0, 1], [1, 0]])
    assert [each["result"] for each in texts] == [each["result"] for each in numbers]


def test_inputs_without_a_column_of_the_model_are_refused_before_they_are_submitted(tmp_path: Path) -> None:
    import pandas
    from sklearn.datasets import load_iris

    run = chimera.train({"name": "mlp", "hidden": [4]}, "iris", engine="simulated", rounds=1, out=tmp_path / "run")
    table, names = models.read(run.run_dir), list(load_iris().feature_names)
    models.check_query(table, dict.fromkeys(["index", *reversed(names)], 1.0))  # in any order, with further columns
    models.check_query(table, [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(DataError, match=r"the inputs have no column 'petal width \(cm\)', .*; their columns: sepal"):
        models.check_query(table, dict.fromkeys(names[:3], 1.0))
    pandas.DataFrame([[1.0] * 4], columns=[*names[:3], "width"]).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(DataError, match="the inputs have no column 'petal width"):
        chimera.infer(run.run_dir, tmp_path / "a.csv")


def test_a_run_whose_files_cannot_make_its_model_again_says_so(tmp_path: Path) -> None:
    from torch import nn

    chimera.train(nn.Linear(4, 3), "iris", engine="simulated", rounds=1, out=tmp_path / "run")
    with pytest.raises(ConfigurationError, match="was a Python object, so the run's files cannot make it"):
        models.load(models.read(tmp_path / "run"))
    (tmp_path / "run" / "weights.safetensors").unlink()
    with pytest.raises(ConfigurationError, match=r"it has no weights\.safetensors"):
        models.read(tmp_path / "run")


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    for name, hidden in (("one", 4), ("two", 5)):
        chimera.train({"name": "mlp", "hidden": [hidden]}, "iris", engine="simulated", rounds=1, out=tmp_path / name)
    shutil.copy(tmp_path / "one" / "weights.safetensors", tmp_path / "two")
    with pytest.raises(ConfigurationError, match="does not hold the weights of this model"):
        models.load({"kind": "chimera", "run": str(tmp_path / "two")})


def test_an_estimator_answers_rows_texts_and_rows_by_name(tmp_path: Path) -> None:
    import pandas
    import skops.io
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    inputs, targets = np.eye(4).repeat(5, 0), np.repeat(["w", "x", "y", "z"], 5)
    frame = pandas.DataFrame(inputs, columns=list("abcd"))
    texts = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["good day", "bad day"] * 5, [1, 0] * 5)
    for name, estimator in {
        "rows": LogisticRegression().fit(inputs, targets),
        "frame": LogisticRegression().fit(frame, targets),
        "texts": texts,
    }.items():
        skops.io.dump(estimator, tmp_path / f"{name}.skops")

    def answers(name: str, queries: list[Any], **more: Any) -> list[Any]:
        found = models.answers(
            models.load({"kind": "sklearn", "file": f"{name}.skops", **more}, folder=tmp_path), queries
        )
        json.dumps(found)
        return [answer.get("result", answer.get("error")) for answer in found]

    assert answers("rows", [inputs[0], [0, 0, 0, 1]]) == ["w", "z"]
    assert answers("rows", [[0, 0, 0, 1], [1, 2], [0, 1, 0, float("nan")]])[0] == "z"
    assert "features" in answers("rows", [[0, 0, 0, 1], [1, 2]])[1]
    assert "NaN" in answers("rows", [[0, 1, 0, float("nan")]])[0]
    assert answers("frame", [{"d": 0, "c": 1, "b": 0, "a": 0}, {"a": 1}]) == ["y", "the row has no column 'b'"]
    assert answers("texts", ["a good one", "bad"]) == [1, 0]
    (probabilities,) = answers("rows", [[0, 0, 0, 1]], method="predict_proba")
    assert np.argmax(probabilities) == 3
    assert sum(probabilities) == pytest.approx(1)


def test_a_file_with_types_that_are_not_trusted_is_refused_in_one_line(tmp_path: Path) -> None:
    import skops.io
    from sklearn.preprocessing import FunctionTransformer

    skops.io.dump(FunctionTransformer(shutil.rmtree), tmp_path / "evil.skops")
    with pytest.raises(ConfigurationError, match=r"types that are not trusted: .*rmtree") as caught:
        models.load(models.read(tmp_path / "evil.skops"))
    assert "\n" not in str(caught.value)
    (tmp_path / "broken.skops").write_text("no zip")
    with pytest.raises(ConfigurationError, match="cannot be read as a skops file"):
        models.load(models.read(tmp_path / "broken.skops"))


_FACTORY = """
class Model:
    def __init__(self, factor=2):
        self.factor, self.calls = factor, []

    def predict(self, queries):
        self.calls.append(len(queries))
        return [self.factor * query for query in queries]

class Useless:
    pass

def fails():
    raise RuntimeError("no weights")
"""


def test_a_factory_in_a_file_makes_a_model(tmp_path: Path) -> None:
    (tmp_path / "doubler.py").write_text(_FACTORY)
    table = {"kind": "factory", "factory": "doubler.py:Model", "options": {"factor": 3}}
    predictor = models.load(table, folder=tmp_path)
    assert models.answers(predictor, [1, 2]) == [{"result": 3}, {"result": 6}]
    for change, message in [
        ({"factory": "doubler.py:Absent"}, "has no 'Absent'"),
        ({"factory": "absent.py:Model"}, "there is no file"),
        ({"factory": "doubler.py:Useless", "options": {}}, "which has no method predict"),
        ({"factory": "doubler.py:fails", "options": {}}, "raised RuntimeError: no weights"),
        ({"options": {"power": 3}}, "has no option 'power'"),
        ({"factory": "no.such.module:Model"}, "cannot import 'no.such.module'"),
        ({"factory": "doubler"}, "must have the form"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            models.load(table | change, folder=tmp_path)


def test_two_factories_in_files_of_one_name_are_two_models(tmp_path: Path) -> None:
    for folder, factor in (("one", 10), ("two", 100)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "namesake.py").write_text(_FACTORY.replace("factor=2", f"factor={factor}"))
    loaded = [models.load(models.read(f"{tmp_path}/{folder}/namesake.py:Model")) for folder in ("one", "two")]
    assert [models.answers(model, [1]) for model in loaded] == [[{"result": 10}], [{"result": 100}]]


def test_a_toml_file_holds_a_table_and_its_paths_start_at_its_folder(tmp_path: Path) -> None:
    (tmp_path / "doubler2.py").write_text(_FACTORY)
    (tmp_path / "m.toml").write_text('kind = "factory"\nfactory = "doubler2.py:Model"\n[options]\nfactor = 5\n')
    table = models.read(tmp_path / "m.toml")
    assert table["factory"] == f"{tmp_path}/doubler2.py:Model"
    assert models.answers(models.load(table), [2]) == [{"result": 10}]
    code = tmp_path / "doubler2.py"
    os.utime(code, ns=(0, code.stat().st_mtime_ns + 1))  # the file is written again
    assert key_of(models.read(tmp_path / "m.toml")) != key_of(table)
    assert models.check(table) == table
    (tmp_path / "bad.toml").write_text("kind = ")
    for source, message in [
        ("bad.toml", "is not valid TOML"),
        ("absent.toml", "there is no model file"),
        ("absent", "names no model"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            models.read(tmp_path / source)


def test_a_warm_up_changes_no_random_numbers_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = torch.get_rng_state()
    warm_up()
    assert torch.equal(torch.get_rng_state(), before)
    assert not list(tmp_path.glob("chimera-*"))  # torch has a folder of its own
    assert "transformers.models.bert.modeling_bert" in sys.modules


def test_an_unknown_kind_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownNameError, match="known: chimera, factory, sklearn, text-embeddings, text-generation, transformers, vllm"
    ):
        models.check({"kind": "pickle"})
