from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError, DataError
from chimera.data.dataset import Dataset
from chimera.data.split import Split, split_indices

X = np.arange(12, dtype=np.float64).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


class Pairs:
    """A map-style data set without a library."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


SAME = {
    "arrays": lambda: (X, Y),
    "lists": lambda: [X.tolist(), Y.tolist()],
    "tensors": lambda: (torch.tensor(X), torch.tensor(Y)),
    "tensors that require gradients": lambda: (torch.tensor(X, requires_grad=True), torch.tensor(Y)),
    "lists of tensors": lambda: (list(torch.tensor(X)), list(Y)),
    "half precision": lambda: (torch.tensor(X, dtype=torch.bfloat16), torch.tensor(Y, dtype=torch.int32)),
    "a TensorDataset": lambda: torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y)),
    "a Subset": lambda: torch.utils.data.Subset(
        torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y)), list(range(6))
    ),
    "pairs": lambda: Pairs([(row, int(label)) for row, label in zip(X, Y, strict=True)]),
    "a column of labels": lambda: (X, Y[:, np.newaxis]),
    "not contiguous": lambda: (np.asfortranarray(X), np.repeat(Y, 2)[::2]),
    "a frame and a series": lambda: (pd.DataFrame(X, columns=["a", "b"]), pd.Series(Y)),
    "a data set": lambda: Dataset(X.astype(np.float32), Y),
}


@pytest.mark.parametrize("kind", SAME)
def test_equal_data_in_any_form_gives_equal_data_sets(kind):
    data = Dataset.of(SAME[kind]())
    assert np.array_equal(data.inputs, X)
    assert np.array_equal(data.targets, Y)
    assert (data.inputs.dtype, data.targets.dtype) == (np.float32, np.int64)
    assert data.inputs.flags.c_contiguous
    assert (len(data), data.input_shape, data.outputs, data.classes) == (6, (2,), 3, ("0", "1", "2"))
    assert data.task == "classification"


@pytest.mark.parametrize(
    ("labels", "classes", "indices"),
    [
        (["b", "a", "b"], ("a", "b"), [1, 0, 1]),
        ([True, False, True], ("False", "True"), [1, 0, 1]),
        ([-1, 1, 1], ("-1", "1"), [0, 1, 1]),
        ([3, 8, 3], ("3", "8"), [0, 1, 0]),
        ([0, 2, 2], ("0", "1", "2"), [0, 2, 2]),
        ([0, 1000, 0], ("0", "1000"), [0, 1, 0]),
    ],
)
def test_labels_get_sorted_indices_and_indices_from_0_are_kept(labels, classes, indices):
    data = Dataset.of((np.zeros((3, 1)), np.array(labels)))
    assert data.classes == classes
    assert data.targets.tolist() == indices


def test_classes_are_given_by_name_or_number():
    assert Dataset.of((X, Y), classes=10).outputs == 10
    assert Dataset.of((X, Y), classes=["red", "green", "blue", "grey"]).outputs == 4
    assert Dataset.of((X, ["b", "a", "b", "a", "b", "a"]), classes=["b", "a"]).targets.tolist() == [0, 1] * 3
    assert Dataset.of((X, Y + 0.0), task="classification").targets.tolist() == Y.tolist()
    with pytest.raises(DataError, match="target '2' in row 2 is none of the classes 0, 1"):
        Dataset.of((X, Y), classes=2)


@pytest.mark.parametrize(
    ("targets", "task", "outputs"),
    [(Y + 0.5, None, 1), (Y, "regression", 1), (X, None, 2), (X.astype(int), None, 2), (Y[:, None] + 0.5, None, 1)],
)
def test_values_are_float32_targets(targets, task, outputs):
    data = Dataset.of((X, targets), task=task)
    assert data.targets.dtype == np.float32
    assert data.targets.shape == targets.shape
    assert (data.classes, data.outputs, data.task) == (None, outputs, "regression")


def test_many_different_integers_need_an_explicit_task():
    many = (np.zeros((100, 1)), np.arange(100) // 3)
    with pytest.raises(DataError, match=r"34 different integers in 100 samples.*task='regression'"):
        Dataset.of(many)
    assert Dataset.of(many, task="classification").outputs == 34
    assert Dataset.of(many, classes=34).outputs == 34
    assert Dataset.of(many, task="regression").outputs == 1


def test_one_number_per_sample_becomes_a_column_and_indices_can_stay_integers():
    assert Dataset.of(([1, 2, 3], [0, 1, 0])).inputs.tolist() == [[1.0], [2.0], [3.0]]
    words = Dataset.of((np.array([[7, 2**30 + 1]]), [0]), keep_integers=True)
    assert words.inputs.dtype == np.int64
    assert words.inputs.tolist() == [[7, 2**30 + 1]]


INVALID = {
    "empty": (lambda: ([], []), "inputs are empty"),
    "empty arrays": (lambda: (np.zeros((0, 3)), np.zeros(0)), "inputs are empty"),
    "no columns": (lambda: (np.zeros((3, 0)), np.zeros(3)), "inputs are empty"),
    "no targets": (lambda: (X, []), "targets are empty"),
    "ragged": (lambda: ([[1, 2], [3]], [0, 1]), "inputs are ragged"),
    "ragged tensors": (lambda: ([torch.zeros(2), torch.zeros(3)], [0, 1]), "inputs are ragged"),
    "unequal lengths": (lambda: (X, Y[:4]), "6 inputs but 4 targets"),
    "NaN": (lambda: (np.where(X > 8, np.nan, X), Y), "inputs .* 3 of 12 values are NaN .* first in row 4, column 1"),
    "infinite": (lambda: (X, np.where(Y == 1, np.inf, 0.5)), "targets .* 2 of 6 values .* first in row 1"),
    "NaN labels": (lambda: (X, np.array([0, np.nan, 1, 0, 1, 0])), "targets .* 1 of 6 values"),
    "too large": (lambda: (X * 1e300, Y), r"infinite \(as float32\)"),
    "objects": (lambda: (np.array([[{}, 1]] * 6, object), Y), "inputs are objects"),
    "missing targets": (lambda: (X, [0, None, 1, 0, 1, 0]), "targets are objects"),
    "complex": (lambda: (X + 1j, Y), "complex128"),
    "dates": (lambda: (X.astype("datetime64[s]"), Y), "datetime64"),
    "text inputs": (lambda: ([["a"], ["b"]], [0, 1]), "inputs are strings"),
    "three axes of targets": (lambda: (X, np.zeros((6, 1, 1))), "targets have shape"),
    "an array alone": (lambda: X, "has no targets"),
    "a tensor alone": (lambda: torch.zeros(3, 2), "has no targets"),
    "train_test_split": (lambda: [X, X, Y, Y], r"list of length 4 is not a data set: give \(\(X_train, y_train\), "),
    "three things": (lambda: (X, Y, X), "a tuple of length 3 is not a data set"),
    "a number": (lambda: 3, "a int is not a data set"),
    "a single value": (lambda: (X, 3), "targets are a single value"),
    "not pairs": (lambda: Pairs([1, 2]), r"item 0 of the Pairs is not a pair"),
    "inputs only": (lambda: torch.utils.data.TensorDataset(torch.zeros(3, 2)), "holds 1 tensors"),
    "no such file": (lambda: "nowhere/data.csv", "no data file 'nowhere/data.csv'"),
}


@pytest.mark.parametrize("kind", INVALID)
def test_invalid_data_gives_a_one_line_error(kind):
    make, message = INVALID[kind]
    with pytest.raises(DataError, match=message) as caught:
        Dataset.of(make())
    assert "\n" not in str(caught.value)


def test_text_targets_reject_regression_and_row_targets_reject_classification():
    with pytest.raises(DataError, match=r"strings \('a'"):
        Dataset.of(([1, 2], ["a", "b"]), task="regression")
    with pytest.raises(DataError, match="give one label per sample"):
        Dataset.of((X, X), task="classification")


@pytest.mark.parametrize(
    ("inputs", "targets", "classes", "message"),
    [
        (X, Y, None, "float32"),
        (X.astype(np.float32), Y.astype(np.int8), None, "int64"),
        (X.astype(np.float32), Y, ("a", "b"), "from 0 to 2"),
        (X.astype(np.float32), Y - 1, None, "from -1"),
        (X.astype(np.float32), X.astype(np.float32), ("a", "b"), "needs class indices"),
        (X[:0].astype(np.float32), Y[:0], None, "empty"),
    ],
)
def test_the_constructor_accepts_only_converted_arrays(inputs, targets, classes, message):
    with pytest.raises(DataError, match=message):
        Dataset(inputs, targets, classes)


rows = st.lists(st.integers(0, 5), max_size=20).map(lambda found: np.array(found, np.int64))


@given(indices=rows)
def test_take_copies_the_requested_rows(indices):
    data = Dataset.of((X, Y))
    inputs, targets = data.take(indices)
    assert np.array_equal(inputs, X[indices])
    assert np.array_equal(targets, Y[indices])
    inputs[:] = targets[:] = 9
    assert np.array_equal(data.inputs, X)
    if len(indices):
        assert np.array_equal(data.subset(indices).targets, Y[indices])


def test_arrays_are_read_only_and_the_users_arrays_stay_writable():
    mine = X.astype(np.float32)
    data = Dataset.of((mine, Y))
    assert np.shares_memory(data.inputs, mine)
    with pytest.raises(ValueError, match="read-only"):
        data.inputs[0] = 1
    mine[0] = 7


def test_out_of_band_pickles_are_small_and_are_loaded_without_a_copy():
    data = Dataset.of((np.ones((1000, 100)), np.arange(1000) % 4), name="ones")
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    assert len(stream) < 1000
    shared = [memoryview(bytes(buffer.raw())) for buffer in buffers]
    back = pickle.loads(stream, buffers=shared)
    assert np.shares_memory(back.inputs, np.frombuffer(shared[0], np.uint8))
    assert (back.name, back.classes, back.fingerprint()) == ("ones", data.classes, data.fingerprint())


def test_the_fingerprint_changes_with_every_change_of_the_data():
    base = Dataset.of((X, Y))
    others = [
        Dataset.of((X, Y), classes=4),
        Dataset.of((X, Y), classes=["a", "b", "c"]),
        Dataset.of((X[::-1], Y)),
        Dataset.of((X, Y[::-1])),
        Dataset.of((X.reshape(6, 1, 2), Y)),
        Dataset.of((X, Y), task="regression"),
    ]
    assert len({data.fingerprint() for data in [base, *others]}) == 7
    assert Dataset.of((X.copy(), Y.copy()), name="other").fingerprint() == base.fingerprint()


labelled = st.integers(2, 80).flatmap(lambda n: st.lists(st.integers(0, 4), min_size=n, max_size=n)).map(np.array)


@given(labels=labelled, fraction=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_a_split_is_a_stratified_partition(labels, fraction, seed):
    train, test = split_indices(len(labels), fraction, seed, labels)
    assert sorted([*train, *test]) == list(range(len(labels)))
    assert len(train) >= 1
    assert len(test) == min(max(round(fraction * len(labels)), 1), len(labels) - 1)
    for label in set(labels.tolist()):
        exact = np.sum(labels == label) * len(test) / len(labels)
        assert abs(np.sum(labels[test] == label) - exact) < 1 + 1e-9


def test_rows_with_several_labels_are_split_at_random():
    labels = np.tile([0, 1, 1], (100, 1))
    train, test = split_indices(100, 0.2, 0, labels)
    plain = split_indices(100, 0.2, 0)
    assert [train.tolist(), test.tolist()] == [part.tolist() for part in plain]


def test_a_split_is_seeded():
    data = (np.random.default_rng(0).normal(size=(50, 2)), np.arange(50) % 2)
    one, same, other = (Split.of(data, seed=seed).test.fingerprint() for seed in (1, 1, 2))
    assert one == same != other


PARTS = {
    "data sets": lambda: (Dataset.of((X, Y)), Dataset.of((X[:3], Y[:3]))),
    "pairs": lambda: ((X, Y), (X[:3], Y[:3])),
    "torch data sets": lambda: [Pairs(list(zip(X, Y, strict=True))), Pairs(list(zip(X[:3], Y[:3], strict=True)))],
    "a split": lambda: Split(Dataset.of((X, Y)), Dataset.of((X[:3], Y[:3]))),
}


@pytest.mark.parametrize("kind", PARTS)
def test_given_train_and_test_parts_are_kept(kind):
    split = Split.of(PARTS[kind](), test_fraction=0.5)
    for part, inputs in ((split.train, X), (split.test, X[:3])):
        assert np.array_equal(part.take(np.arange(len(part)))[0], inputs)


def test_two_frames_are_a_train_and_a_test_part_if_the_target_column_is_given():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "kind": ["x", "y", "x"], "label": ["p", "q", "r"]})
    split = Split.of((frame, frame[1:2]), target="label")
    assert split.test.inputs.tolist() == [[2.0, 0.0, 1.0]]
    assert split.test.targets.tolist() == [1]
    assert split.test.features == ("a", "kind=x", "kind=y")
    assert len(Split.of((frame[["a"]], frame["label"]), test_fraction=0.4).test) == 1


def test_two_frames_with_a_column_in_common_are_a_train_and_a_test_part():
    """Before, the columns of the second frame were targets of the first, if both had other columns or another order."""
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0], "target": ["p", "q", "r"]})
    assert Split.of((frame, frame[1:2])).test.targets.tolist() == [1]
    for columns, odd in ((["b", "a", "target"], "their order"), (["a", "target"], "b")):
        with pytest.raises(DataError, match=f"differ from those of the train part: {odd}"):
            Split.of((frame, frame[columns]))


def test_a_frame_of_one_column_has_the_targets_of_another_frame():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0], "c": [7.0, 8.0, 9.5]})
    for inputs in (["a", "b", "c"], ["a"]):
        split = Split.of((frame[inputs], frame[["a"]]), test_fraction=0.4)
        assert split.train.features == tuple(inputs)
        assert split.train.task == "regression"


def test_targets_of_several_columns_of_the_inputs_are_given_as_an_array():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0], "c": [7.0, 8.0, 9.5]})
    assert Split.of((frame, frame[["a", "b"]].to_numpy()), test_fraction=0.4).train.outputs == 2


def test_two_frames_without_names_are_inputs_and_targets():
    split = Split.of((pd.DataFrame(X), pd.DataFrame(X[:, :1])), test_fraction=0.5)
    assert split.train.features == ("0", "1")
    assert split.train.task == "regression"


def test_the_test_part_has_the_classes_of_the_train_part():
    train = (X, np.array(list("abcabc")))
    for test in [(X[:2], np.array(["c", "a"])), Dataset.of((X[:2], ["c", "a"]))]:
        split = Split.of((Dataset.of(train), test) if isinstance(test, Dataset) else (train, test))
        assert split.test.targets.tolist() == [2, 0]
    with pytest.raises(DataError, match="'z' in row 1 is none of the classes a, b, c"):
        Split.of((train, (X[:2], np.array(["a", "z"]))))


def test_parts_that_do_not_match_are_an_error():
    with pytest.raises(DataError, match=r"differ in input shape: \(2,\) and \(1,\)"):
        Split.of(((X, Y), (X[:, :1], Y)))
    with pytest.raises(DataError, match="differ in classes"):
        Split(Dataset.of((X, Y)), Dataset.of((X, Y), task="regression"))


@given(seed=st.integers(0, 99), shift=st.floats(-1e3, 1e3), scale=st.floats(0.01, 1e3))
def test_standardized_features_have_mean_0_and_deviation_1_in_the_train_part_only(seed, shift, scale):
    values = np.random.default_rng(seed).normal(shift, scale, (200, 3))
    values[:, 2] = shift
    split = Split.of((values, values[:, 0]), standardize=True, scale_target=True, seed=seed)
    train = split.train.inputs
    assert np.allclose(train.mean(axis=0), 0, atol=1e-3)
    assert np.allclose(train.std(axis=0), [1, 1, 0], atol=1e-3)
    assert abs(split.train.targets.std() - 1) < 1e-3
    assert np.allclose(split.test.inputs[:, 0], split.test.targets, atol=1e-5)
    assert abs(split.test.targets.mean()) > 0


@given(limit=st.integers(1, 60), seed=st.integers(0, 20))
def test_a_limit_keeps_some_train_samples_and_all_test_samples(limit, seed):
    data = (np.arange(50.0), np.arange(50) % 2)
    whole, limited = (Split.of(data, seed=seed, limit=kept, standardize=False) for kept in (None, limit))
    assert len(limited.train) == min(limit, 40)
    assert set(limited.train.inputs[:, 0]) <= set(whole.train.inputs[:, 0])
    assert limited.test.fingerprint() == whole.test.fingerprint()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_fraction": 0}, "test_fraction is 0"),
        ({"test_fraction": 1.5}, "test_fraction is 1.5"),
        ({"limit": 0}, "limit of train samples is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"scale_target": True}, "targets of 'data' are indices"),
    ],
)
def test_invalid_options_of_a_split_are_errors(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Split.of((X, Y), **options)


def test_one_sample_cannot_be_split():
    with pytest.raises(DataError, match="one sample alone"):
        Split.of(([1.0], [0]))
