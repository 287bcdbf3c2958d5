"""The models in memory of a worker's computing process."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from chimera.core.errors import ChimeraError
from chimera.inference.models.spec import key_of
from chimera.models.instantiation import first_line

if TYPE_CHECKING:
    from chimera.inference.models.table import Emit, Predictor


Load: TypeAlias = Callable[[Mapping[str, Any]], "Predictor"]
Answers: TypeAlias = Callable[["Predictor", list[Any], "Emit"], list[dict[str, Any]]]
Notify: TypeAlias = Callable[[str, Any], None]


class ModelCache:
    """Answers batches, and keeps the most recently used models in memory.

    Parameters
    ----------
    load : makes a predictor from a table.
    answers : returns ``{"result": value}`` or ``{"error": text}`` for each query; it does not raise.
    keep_models : maximum number of models in memory.
    notify : called with ``loading`` and the key of a model, with ``loaded`` and the keys of all models in memory, and with
        ``piece`` and the arguments of `chimera.inference.models.table.Emit`.
    """

    def __init__(self, load: Load, answers: Answers, *, keep_models: int, notify: Notify) -> None:
        self._load, self._answers, self._keep_models, self._notify = load, answers, keep_models, notify
        self._models: OrderedDict[str, Predictor] = OrderedDict()

    def answer(self, model: Mapping[str, Any], queries: Sequence[Any]) -> tuple[list[dict[str, Any]], float]:
        """Return the answers, and the seconds of computing them, without loading the model.

        If the model cannot be loaded, each query gets that error.
        """
        try:
            predictor = self._model(model)
        except Exception as error:  # user code may raise anything
            why = str(error).partition("\n")[0] if isinstance(error, ChimeraError) else first_line(error)
            return [{"error": f"the model cannot be loaded: {why}"}] * len(queries), 0.0
        began_s = time.perf_counter()
        found = self._answers(predictor, list(queries), lambda *piece: self._notify("piece", list(piece)))
        return found, time.perf_counter() - began_s

    def _model(self, model: Mapping[str, Any]) -> Predictor:
        key = key_of(model)
        if key in self._models:
            self._models.move_to_end(key)
            return self._models[key]
        while len(self._models) >= self._keep_models:  # first, so that both never fill the memory
            self._models.popitem(last=False)
        self._notify("loading", key)
        try:
            self._models[key] = self._load(model)
        finally:
            self._notify("loaded", list(self._models))
        return self._models[key]
