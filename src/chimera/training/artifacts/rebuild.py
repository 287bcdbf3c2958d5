"""Models of runs, made again from the files in the folder of a run."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.core.registry import load_object, registered_names_only
from chimera.core.safe_path import MAX_SETTINGS_BYTES, read_regular, safe_path
from chimera.core.signatures import parameters_of
from chimera.core.toml import read_toml
from chimera.models.conversion import build_model
from chimera.models.huggingface.weights import OtherWeightsWarning
from chimera.models.instantiation import parameter_limit
from chimera.models.model import MODELS, Model
from chimera.training.artifacts.download import local_copy
from chimera.training.artifacts.result import load_weights
from chimera.training.artifacts.signature import FILE as SIGNATURE
from chimera.training.artifacts.signature import Signature
from chimera.training.plugin import named

WEIGHTS = "weights.safetensors"
_LOADED = "experiment.toml", SIGNATURE
_OF_SIGNATURE = frozenset({"input_shape", "outputs", "counts"})


def load(run_dir: str | Path, *, trust_code: bool = False, merge: bool = False) -> Any:
    """Return the trained model of a run, as `Run.model`: a torch module, in evaluation mode, or an estimator.

    Parameters
    ----------
    run_dir : the folder of a finished run, such as ``runs/mlp-digits``, or its URL in an object store.
    trust_code : whether to run the code that the folder's ``experiment.toml`` names by path (``file.py:factory``). A folder of
        another user may name any code.
    merge : whether to add the adapters of a model ``huggingface`` to its weights, which makes it a plain model of transformers.

    Raises
    ------
    ConfigurationError : the folder is not that of a finished run; its model was a Python object without a name; it names code
        by path and ``trust_code`` is not set; the weights do not fit; or there are no adapters to merge.
    StoreError : the object store cannot be read.
    """
    with local_copy(run_dir, (*_LOADED, WEIGHTS)) as folder:
        return _loaded(folder, trust_code=trust_code, merge=merge)


def _loaded(folder: Path, *, trust_code: bool, merge: bool) -> Any:
    if not safe_path(folder, WEIGHTS).is_file():
        raise ConfigurationError(f"{folder} is not the folder of a finished run: it has no {WEIGHTS}")
    hint = (
        "make the module again, and load its weights in plain torch: "
        f"module.load_state_dict(safetensors.torch.load_file({str(folder / WEIGHTS)!r}))"
    )
    source = RunSource(folder, trust_code, "if you trust the folder, set trust_code=True", hint)
    model: Any = source.load(Signature.read(folder) if safe_path(folder, SIGNATURE).is_file() else None)
    if merge:
        from chimera.models.huggingface.model import merged

        return merged(getattr(model, "module", model)).eval()
    if hasattr(model, "module"):
        return model.module.eval()
    return getattr(model, "estimator", model)


class RunSource:
    """The folder of a run as the source of its model.

    Parameters
    ----------
    folder : the folder.
    trusted : whether to run code that the folder names by path, and to make a model of any size.
    remedy, unnamed : what the user can do if the folder names code by path, and if the model has no name; for errors.
    """

    def __init__(self, folder: Path, trusted: bool, remedy: str, unnamed: str) -> None:
        self._folder, self._trusted, self._advice, self._unnamed = folder, trusted, remedy, unnamed

    def check(self) -> None:
        """Raise ConfigurationError if the model has no name, or one that is refused."""
        name = named(self._recorded())[0]
        if ":" in name and not self._trusted:
            with self._trusted_names():
                load_object(name)

    def load(self, signature: Signature | None) -> Model:
        """Make the model of the experiment, and load the run's weights.

        Parameters
        ----------
        signature : the signature in the folder; None if there is none, since the number of classes was not known.

        Raises
        ------
        ConfigurationError : the model cannot be made, the weights do not fit, or there is no signature and the model needs it.
        """
        weights, (name, options) = safe_path(self._folder, WEIGHTS), named(self._recorded())
        with self._trusted_names(), self._size_limit(name, weights, signature):
            if signature is None and not _OF_SIGNATURE.isdisjoint(parameters_of(MODELS.find(name).factory)):
                raise ConfigurationError(
                    f"{self._folder} has no {SIGNATURE}, since the number of classes of its data was not known: {self._unnamed}"
                )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", OtherWeightsWarning)  # the run's weights replace those that are new
                model = build_model(
                    name,
                    options,
                    input_shape=() if signature is None else signature.input_shape,
                    outputs=self._unknown if signature is None else signature.outputs,
                    task="classification" if signature is None else signature.task,
                    seed=0,
                    label_values=None if signature is None else signature.label_values,
                )
        load_weights(model, weights)
        return model

    def _trusted_names(self) -> AbstractContextManager[None]:
        """Refuse names by path in the folder's files, unless the folder is trusted."""
        return registered_names_only(None if self._trusted else str(self._folder / "experiment.toml"), self._advice)

    def _unknown(self) -> int:
        raise ConfigurationError(
            f"{self._folder} has no {SIGNATURE}, since the number of classes of its data was not known: add it to "
            "[model] in its experiment.toml, config = { num_labels = ... }"
        )

    def _size_limit(self, name: str, weights: Path, signature: Signature | None) -> AbstractContextManager[None]:
        """Refuse a model that is larger than its file of weights, unless the folder is trusted."""
        if self._trusted:
            return nullcontext()
        size, limit = weights.stat().st_size, f"{weights} has bytes"
        if signature is not None and signature.outputs > size:
            raise ConfigurationError(f"the model would have more outputs than {limit}")
        if (library := MODELS.find(name).requires) is not None:
            importlib.import_module(library)  # parameters are counted only once it is imported
        return parameter_limit(size, limit)

    def _recorded(self) -> Any:
        """Return the name or table of the model that the run trained."""
        path = safe_path(self._folder, "experiment.toml")
        try:
            model = read_toml(read_regular(path, MAX_SETTINGS_BYTES).decode()).get("model")
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{path} cannot be read: {error}") from error
        if model is None:
            raise ConfigurationError(
                f"the model of {self._folder} was a Python object, so the run's files cannot make it: {self._unnamed}"
            )
        if not isinstance(model, str | Mapping):
            raise ConfigurationError(f"{path}: model must be a name or a table, not {model!r}")
        return model
