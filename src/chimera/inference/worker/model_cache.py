"""Models in memory, and what they answer; in the process that computes."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from chimera.core.errors import ChimeraError
from chimera.inference.models.spec import key_of
from chimera.models.construction import first_line

if TYPE_CHECKING:
    from chimera.inference.models.table import Predictor


Load: TypeAlias = Callable[[Mapping[str, Any]], "Predictor"]
Answers: TypeAlias = Callable[["Predictor", list[Any]], list[dict[str, Any]]]
Notify: TypeAlias = Callable[[str, Any], None]


class ModelCache:
    """Answers batches, and keeps the models that were used last.

    Parameters
    ----------
    load : makes a predictor of a table.
    answers : returns ``{"result": value}`` or ``{"error": text}`` for each query, and raises for none of them.
    keep_models : how many models stay in memory.
    notify : told ``loading`` with the key of a model, and ``loaded`` with the keys of all in memory.
    """

    def __init__(self, load: Load, answers: Answers, *, keep_models: int, notify: Notify) -> None:
        self._load, self._answers, self._keep_models, self._notify = load, answers, keep_models, notify
        self._models: OrderedDict[str, Predictor] = OrderedDict()

    def answer(self, model: Mapping[str, Any], queries: Sequence[Any]) -> tuple[list[dict[str, Any]], float]:
        """Return the answers, and how many seconds they took without loading the model.

        If it cannot be loaded, that is the error of every query.
        """
        try:
            predictor = self._model(model)
        except Exception as error:  # it may be of the user's own code
            why = str(error).partition("\n")[0] if isinstance(error, ChimeraError) else first_line(error)
            return [{"error": f"the model cannot be loaded: {why}"}] * len(queries), 0.0
        began_s = time.perf_counter()
        found = self._answers(predictor, list(queries))
        return found, time.perf_counter() - began_s

    def _model(self, model: Mapping[str, Any]) -> Predictor:
        key = key_of(model)
        if key in self._models:
            self._models.move_to_end(key)
            return self._models[key]
        while len(self._models) >= self._keep_models:  # before the new one takes its room
            self._models.popitem(last=False)
        self._notify("loading", key)
        try:
            self._models[key] = self._load(model)
        finally:
            self._notify("loaded", list(self._models))
        return self._models[key]
