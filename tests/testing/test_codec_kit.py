"""The conformance kit for codecs, run as by the author of a codec: a correct codec passes, and each kind of fault is found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from chimera.cli.main import app
from chimera.testing.options import check

MINE = '''
"""Codecs: a correct one, and others with one fault each."""

import numpy as np

from chimera.codecs.codec import Codec
from chimera.codecs.fields import array, check_finite, count_arrays, output_for
from chimera.core.message import Encoded


class Whole(Codec):
    """Send every element as float32, and check all of the message."""

    def encode(self, vector, layout):
        check_finite(vector)
        return Encoded(f"mine.py:{type(self).__name__}", vector.size, (vector.copy(),))

    def decode(self, encoded, out=None):
        count_arrays(encoded, 1)
        out = output_for(encoded, out)
        out[:] = array(encoded, 0, np.float32, encoded.size)
        return out


class Careless(Whole):
    """Takes the arrays of a message as they come."""

    def decode(self, encoded, out=None):
        return np.resize(encoded.arrays[0], encoded.size).astype(np.float32)


class Hiding(Whole):
    """Replaces values that are not finite by zero."""

    def encode(self, vector, layout):
        return super().encode(np.nan_to_num(vector), layout)


class Halving(Whole):
    """Sends floats of 16 bits, which overflow."""

    def encode(self, vector, layout):
        check_finite(vector)
        with np.errstate(over="ignore"):
            return super().encode(vector, layout) if not vector.size else Encoded(
                "mine.py:Halving", vector.size, (vector.astype(np.float16).astype(np.float32),)
            )


class Unseeded(Whole):
    """Rounds at random, without a seed."""

    def encode(self, vector, layout):
        return super().encode(vector * np.random.default_rng().uniform(0.9, 1, vector.size).astype(np.float32), layout)


class Changing(Whole):
    """Rounds its argument in place."""

    def encode(self, vector, layout):
        vector *= np.float32(0.5)
        return super().encode(vector, layout)


class Forgetful(Whole):
    """Scales by the number of messages so far, and the count is not part of its state."""

    messages = 0

    def encode(self, vector, layout):
        self.messages += 1
        return super().encode(vector / np.float32(self.messages), layout)


class Remembering(Whole):
    """Decodes by the number of messages before."""

    decoded = 0

    def decode(self, encoded, out=None):
        self.decoded += 1
        return super().decode(encoded, out) / np.float32(self.decoded)


class Allocating(Whole):
    """Ignores the memory that the receiver gives."""

    def decode(self, encoded, out=None):
        return super().decode(encoded)


class Zero(Whole):
    """Sends zeros, whatever the vector is."""

    def encode(self, vector, layout):
        check_finite(vector)
        return super().encode(np.zeros_like(vector), layout)


class Mute(Whole):
    """Short."""
'''

FOUND_BY = {
    "Careless": "test_a_shortened_message_is_rejected",
    "Hiding": "test_a_value_that_is_not_finite_is_not_hidden",
    "Halving": "test_hard_vectors_are_encoded_and_decoded",
    "Unseeded": "test_equal_seeds_give_equal_messages",
    "Changing": "test_hard_vectors_are_encoded_and_decoded",
    "Forgetful": "test_a_restored_codec_sends_the_same_messages",
    "Remembering": "test_decoding_is_stateless",
    "Allocating": "test_decoding_is_stateless",
    "Zero": "test_a_run_with_error_feedback_learns",
    "Mute": "test_its_docstring_describes_it",
}


def outcomes(folder: Path, codec: str, *options: str) -> dict[str, str]:
    """Run the kit on a codec, and return the outcome of each test: FAILED if it has failed with one of its parameters."""
    (folder / "mine.py").write_text(MINE, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "chimera.testing", "--pyargs", "chimera.testing", "--codec", codec]
    command += ["-rA", "--tb=no", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=200)
    found = re.findall(r"^(PASSED|FAILED|SKIPPED|ERROR) \S+::(\w+)", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    assert all(outcome != "ERROR" for outcome, _ in found), done.stdout
    result: dict[str, str] = {}
    for outcome, test in found:
        result[test] = "FAILED" if "FAILED" in (outcome, result.get(test)) else outcome
    return result


@pytest.mark.long
def test_a_correct_codec_passes_and_strategies_are_not_tested(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "mine.py:Whole")
    assert set(found.values()) == {"PASSED"}
    assert len(found) == 12


@pytest.mark.sampled(1)
@pytest.mark.parametrize("codec", FOUND_BY)
def test_a_fault_is_found_by_the_test_of_that_promise(tmp_path: Path, codec: str) -> None:
    test = FOUND_BY[codec]
    assert outcomes(tmp_path, f"mine.py:{codec}", "-k", test)[test] == "FAILED"


@pytest.mark.long
def test_the_codec_of_the_template_passes(tmp_path: Path) -> None:
    app(["new", "plug-in", str(tmp_path / "mine")], standalone_mode=False)
    (file,) = (tmp_path / "mine").rglob("codec.py")
    found = outcomes(tmp_path, f"{file}:HalfPrecision", "-m", "not long")
    assert set(found.values()) == {"PASSED"}


def test_an_unknown_codec_is_rejected() -> None:
    with pytest.raises(pytest.UsageError, match="unknown codec 'top-q'; did you mean 'top-k'"):
        check((), (), ["top-q"])
