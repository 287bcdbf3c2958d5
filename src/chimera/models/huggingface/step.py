"""The step of a model of the library transformers, on mappings of its arguments and on pairs of arrays."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from chimera.core.batch import Batch, inputs_of, target_key, targets_of
from chimera.core.errors import DataError
from chimera.models.loss import IGNORED

_MANY = 12
"""Least number of compared targets: fewer may equal inputs by chance. Some collators leave a tenth of the tokens unmasked."""


@contextmanager
def known_tokens(module: Any) -> Iterator[None]:
    """Raise DataError in place of an error of the module: a token that it does not know, or no token of padding."""
    try:
        yield
    except IndexError as error:
        raise DataError(
            f"a token or class of the batch is not below those of {type(module).__name__}: set vocab_size (or num_labels) "
            "of its configuration to that of the data, or use the tokenizer of the model"
        ) from error
    except ValueError as error:
        if "no padding token" not in str(error):
            raise
        raise DataError(
            f"{type(module).__name__} classifies the last token before the padding, and its configuration has no padding "
            "token: set config = { pad_token_id = ... } in [model]"
        ) from error


class LibraryStep:
    """The step of a model of the library.

    - A mapping: ``module(**batch)``, which returns the loss. Targets may be under any of `TARGET_KEYS`. Without targets,
      ``causal-lm`` predicts each token of ``input_ids`` from those before it; padding has no loss.
    - A pair ``(inputs, targets)``: the same with ``labels``; for ``causal-lm``, the targets are the next tokens, as of the data
      set ``text-blocks``.

    Parameters
    ----------
    task : the name of the task, see `chimera.models.huggingface.tasks`.
    module : the module, whose arguments it needs.
    """

    def __init__(self, task: str, module: Any) -> None:
        self._single = task in ("sequence-classification", "image-classification")
        self._causal, self._images = task == "causal-lm", task == "image-classification"
        self._input: str = module.main_input_name
        # Without it, a model keeps the keys and values of each token for a generation that does not follow.
        base = module.get_base_model() if hasattr(module, "get_base_model") else module
        cached = "use_cache" in inspect.signature(base.forward).parameters
        self._fixed = {"use_cache": False} if cached else {}
        self._reads, self._masked, self._checked = task in ("masked-lm", "seq2seq"), task == "masked-lm", False
        self._positions: int | None = getattr(module.config, "max_position_embeddings", None)

    def __call__(self, module: Any, batch: Batch) -> Any:
        """Return the result of the module, or loss and outputs.

        Raises
        ------
        DataError : a token that the model does not know.
        """
        with known_tokens(module):
            return self._of(module, batch)

    def _of(self, module: Any, batch: Batch) -> Any:
        arguments, targets = self._arguments(module, batch)
        self._check_length(arguments.get("input_ids"))
        if self._single and targets is not None and targets.ndim != 1 and not targets.is_floating_point():
            raise DataError(
                f"{type(module).__name__} predicts one class of each sample, but the targets of a batch have shape "
                f"{tuple(targets.shape)}: choose another task of model 'huggingface', or other data"
            )
        if self._reads and not self._checked:
            self._check_targets(module, arguments.get(self._input), targets)
        if not self._causal:
            return module(**arguments, labels=targets)
        if isinstance(batch, Mapping):
            return module(**arguments, labels=self._own_tokens(arguments) if targets is None else targets)
        from torch.nn.functional import cross_entropy

        logits = module(**arguments).logits[:, -targets.shape[1] :]  # a learned prompt comes first
        return cross_entropy(logits.flatten(0, 1).float(), targets.flatten().long()), logits

    def predict(self, module: Any, inputs: Any) -> Any:
        """Return the most probable classes or tokens: integers of shape (n,) or (n, t)."""
        return self.logits(module, inputs).argmax(-1)

    def logits(self, module: Any, inputs: Any) -> Any:
        """Return the scores of classes or tokens, shape (n, classes) or (n, t, tokens)."""
        return module(**self._arguments(module, inputs)[0]).logits

    def _arguments(self, module: Any, batch: Batch) -> tuple[dict[str, Any], Any]:
        inputs, targets = inputs_of(batch), targets_of(batch)
        given = dict(inputs) if isinstance(inputs, Mapping) else {self._input: inputs}
        if isinstance(batch, Mapping) and (key := target_key(batch)) is not None:
            del given[key]
        if self._images:
            given[self._input] = given[self._input].to(module.dtype)
        return {**given, **self._fixed}, targets

    def _check_length(self, tokens: Any) -> None:
        """Refuse more tokens than the model has positions: some models fail, others compute without an error."""
        if (
            self._positions is not None
            and tokens is not None
            and tokens.ndim == 2
            and tokens.shape[1] > self._positions
        ):
            raise DataError(
                f"a sample has {tokens.shape[1]} tokens, and the model has {self._positions} positions: use shorter samples "
                "(block or max_tokens of the data), or set config = { max_position_embeddings = ... } in [model]"
            )

    def _check_targets(self, module: Any, tokens: Any, targets: Any) -> None:
        """Refuse targets of the first batch that the model reads: the loss would be meaningless."""
        self._checked, name = True, type(module).__name__
        if targets is None:
            raise DataError(
                "a batch has no targets: the task needs "
                + (
                    "the original tokens of masked positions, and -100 elsewhere"
                    if self._masked
                    else "the tokens to generate, as labels"
                )
            )
        if tokens is None or tokens.shape != targets.shape:
            return
        following = tokens[:, 1:] == targets[:, :-1]
        if following.numel() >= _MANY and following.all() and (tokens != tokens[0, 0]).any():
            raise DataError(
                f"the targets of a batch are the next tokens of its inputs, which {name} reads: set task = 'causal-lm', or use "
                "other data"
            )
        same = (tokens == targets)[targets != IGNORED]
        if self._masked and same.numel() >= _MANY and same.all():
            raise DataError(
                f"the targets of a batch are those of its inputs at the same positions, which {name} reads: replace "
                "inputs that have a target by the mask token"
            )

    def _own_tokens(self, arguments: Mapping[str, Any]) -> Any:
        tokens, mask = arguments[self._input], arguments.get("attention_mask")
        return tokens if mask is None else tokens.masked_fill(mask == 0, IGNORED)
