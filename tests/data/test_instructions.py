"""Conversations as tokens: only answers count, whatever the form of a line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.core.errors import ConfigurationError, DataError
from chimera.data.instructions import IGNORED
from chimera.data.split import DATASETS
from language_kit import MARKS

tokenizers: Any = pytest.importorskip("tokenizers")
pytestmark = MARKS

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }} [end] {% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
WORDS = ["[pad]", "[end]", "[user]", "[assistant]", "[system]", *"abcdefgh"]


def say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    """Folders of a tokenizer of words, with and without a chat template."""
    from transformers import PreTrainedTokenizerFast

    made = {}
    for templated in (True, False):
        folder = tmp_path_factory.mktemp("tokenizer")
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(WORDS)}, "[pad]"))
        words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[pad]", eos_token="[end]")
        tokenizer.chat_template = TEMPLATE if templated else None
        tokenizer.save_pretrained(folder)
        made[templated] = str(folder)
    return made


@pytest.fixture
def read(folders: dict[bool, str], tmp_path: Path) -> Any:
    def read(*lines: Any, templated: bool = True, **options: Any) -> Any:
        path = tmp_path / "lines.jsonl"
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        given = {"path": str(path), "tokenizer": folders[templated], "test_path": str(path)}
        return DATASETS.create("instructions", {**given, **options}).train

    return read


def words(tokens: Any) -> str:
    return " ".join(WORDS[token] for token in tokens if token != IGNORED)


@pytest.mark.parametrize(
    ("line", "whole", "answers"),
    [
        ({"messages": [say("user", "a b"), say("assistant", "c")]}, "[user] a b [end] [assistant] c [end]", "c [end]"),
        (
            {"messages": [say("system", "h"), *[say("user", "a"), say("assistant", "b")] * 2]},
            "[system] h [end] [user] a [end] [assistant] b [end] [user] a [end] [assistant] b [end]",
            "b [end] b [end]",
        ),
        (
            {
                "prompt": [say("user", "a"), say("assistant", "b"), say("user", "c")],
                "completion": [say("assistant", "d")],
            },
            "[user] a [end] [assistant] b [end] [user] c [end] [assistant] d [end]",
            "d [end]",
        ),
        ({"prompt": "a b", "completion": "c d"}, "a b c d [end]", "c d [end]"),
    ],
    ids=["one turn", "two turns", "lists", "texts"],
)
def test_only_answers_count(read: Any, line: Any, whole: str, answers: str) -> None:
    batch = read(line).take(np.array([0]))
    assert words(batch["input_ids"][0]) == whole
    assert words(batch["labels"][0]) == answers
    counted = batch["labels"] != IGNORED
    assert np.array_equal(batch["labels"][counted], batch["input_ids"][counted])


def test_batches_are_padded_to_their_longest_sample(read: Any) -> None:
    data = read({"prompt": "a", "completion": "b"}, "", {"prompt": "a b c", "completion": "d e"}, templated=False)
    batch = data.take(np.array([0, 1]))
    assert [words(row) for row in batch["input_ids"]] == ["a b [end] [pad] [pad] [pad]", "a b c d e [end]"]
    assert batch["attention_mask"].tolist() == [[1] * 3 + [0] * 3, [1] * 6]
    assert batch["labels"][0].tolist()[3:] == [IGNORED] * 3


def test_samples_of_similar_length_are_read_together(read: Any) -> None:
    lines = [{"prompt": "a", "completion": text} for text in ("b", "b c d e f") * 8]
    data = read(*lines, length_group=4)
    groups = data.grouping.batch((0,), 0, 16).reshape(4, 4)
    assert sorted(groups.ravel().tolist()) == list(range(16))
    assert all(len(set(group % 2)) == 1 for group in groups)


def test_packed_blocks_hold_all_samples_in_their_order(read: Any) -> None:
    lines = [{"prompt": "a", "completion": letter} for letter in "bcdef"]
    data = read(*lines, packing=True, max_tokens=4)
    batch = data.take(np.arange(len(data)))
    assert words(batch["input_ids"].ravel()) == "a b [end] a c [end] a d [end] a e [end]"
    assert batch["attention_mask"].all()
    assert words(batch["labels"].ravel()) == "b [end] c [end] d [end] e [end]"


def test_a_key_of_the_lines_groups_them(read: Any) -> None:
    lines = [{"prompt": "a", "completion": "b", "client": name} for name in ("x", "y", "x", "z")]
    groups = read(*lines, groups="client").partition_groups
    assert [groups.names[index] for index in groups.indices] == ["x", "y", "x", "z"]


@pytest.mark.parametrize(
    ("line", "options", "message"),
    [
        ("{", {}, "line 2 is not a JSON object"),
        ([1], {}, "line 2 is not a JSON object"),
        ({"text": "a"}, {}, "line 2: it has the keys 'text': give 'messages'"),
        ({"messages": []}, {}, "line 2: messages must be a list of at least one message"),
        ({"messages": [{"role": "user", "content": 3}]}, {}, "line 2: a message must be"),
        ({"messages": [say("user", "a")]}, {}, "line 2: no message has the role 'assistant', so there is no answer"),
        (
            {"messages": [say("user", "a"), say("Assistant", "b")]},
            {},
            "line 2: no message has the role 'assistant', .* the roles: user, Assistant",
        ),
        (
            {"prompt": "a b c d", "completion": "e"},
            {"max_tokens": 4},
            "line 2: no token of an answer .* first 4 tokens",
        ),
        ({"prompt": "a", "completion": ""}, {}, "line 2: an answer is empty, .*: write the answer, or remove the line"),
        ({"prompt": "a", "completion": " \n"}, {}, "line 2: an answer is empty"),
        ({"messages": [say("user", "a"), say("assistant", "")]}, {}, "line 2: an answer is empty"),
        ({"messages": [say("user", "a")]}, {"templated": False}, "line 2: the tokenizer .* has no chat template"),
    ],
)
def test_a_mistake_is_named_with_its_line(read: Any, line: Any, options: Any, message: str) -> None:
    data = read({"prompt": "a", "completion": "b"}, line, **options)
    with pytest.raises(DataError, match=message):
        data.take(np.array([1]))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}{{ m.role }", "line 1: the chat template of .* cannot be applied: unexpected '}'"),
        ("{{ raise_exception('no system') }}", "line 1: the chat template of .* cannot be applied: no system"),
        ("{{ messages[0].name.first }}", "line 1: the chat template of .* cannot be applied: "),
    ],
)
def test_a_template_that_fails_is_named_with_the_line(
    read: Any, folders: dict[bool, str], tmp_path: Path, template: str, message: str
) -> None:
    folder = Path(shutil.copytree(folders[True], tmp_path / "tokenizer"))
    (folder / "chat_template.jinja").write_text(template)
    data = read({"messages": [say("user", "a"), say("assistant", "b")]}, tokenizer=str(folder))
    with pytest.raises(DataError, match=message) as caught:
        data.take(np.array([0]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "./no-such-folder"}, "the tokenizer './no-such-folder' cannot be read"),
        ({"max_tokens": 1}, "max_tokens must be at least 2, not 1"),
        ({"packing": True, "groups": "client"}, "leave out labels and groups"),
        ({"packing": True, "length_group": 4}, "leave out length_group"),
    ],
)
def test_options_that_cannot_be_used_are_refused(read: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read({"prompt": "a", "completion": "b"}, **options)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_a_model_learns_the_answers(folders: dict[bool, str], tmp_path: Path, engine: str) -> None:
    path = tmp_path / "lines.jsonl"
    lines = [{"messages": [say("user", letter), say("assistant", f"{letter} h")]} for letter in "abcdef"] * 8
    path.write_text("\n".join(map(json.dumps, lines)))
    config = {
        "model_type": "gpt2",
        "vocab_size": len(WORDS),
        "n_layer": 1,
        "n_head": 2,
        "n_embd": 16,
        "n_positions": 32,
    }
    run = chimera.train(
        {"name": "huggingface", "task": "causal-lm", "from": "config", "config": config},
        {"name": "instructions", "path": str(path), "tokenizer": folders[True]},
        engine=engine,
        workers=2,
        batch_size=8,
        epochs=25,
        optimizer={"name": "adam", "lr": 0.01},
        out=tmp_path / "run",
    )
    assert run.metrics["perplexity"] < 2  # of the tokens of answers; all 13 words alike would give 13
