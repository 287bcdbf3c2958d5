"""Gradients of parameters as views of one vector."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_grad = attrgetter("grad")
_LARGE = 1 << 16  # elements of a parameter


class FlatGradient:
    """A vector that backward passes fill.

    A small gradient is added to zeros, as torch does. A large one is copied as soon as it is computed, while it is in
    the cache. The hook for that takes a few microseconds, less than zeroing the gradient's place and adding to it.

    Parameters
    ----------
    vector : the vector, on the device of the parameters.
    views : a view of it for each parameter, in the order of the vector.
    parameters : see `watch`.
    """

    def __init__(self, vector: Tensor, views: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        self.vector, self._views = vector, views
        self._small_pieces: list[Tensor] = []  # pieces of the vector, between large gradients
        begin = end = 0
        for view in views:
            if view.numel() >= _LARGE:
                self._small_pieces += [vector[begin:end]] if begin < end else []
                begin = end + view.numel()
            end += view.numel()
        self._small_pieces += [vector[begin:end]] if begin < end else []
        self._hooks: list[Any] = []
        self.watch(parameters)

    def watch(self, parameters: Sequence[Tensor]) -> None:
        """Receive the gradients of these parameters from now on, one for each view."""
        self.release()
        pairs = list(zip(parameters, self._views, strict=True))
        self._parameters = list(parameters)
        self._large = [parameter for parameter, view in pairs if view.numel() >= _LARGE]
        self._small = [(parameter, view) for parameter, view in pairs if view.numel() < _LARGE]
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(_place, view))  # type: ignore[no-untyped-call]
            for parameter, view in pairs
            if view.numel() >= _LARGE
        ]

    def release(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()

    def clear(self) -> None:
        """Discard all gradients. The next backward pass writes new ones, and later ones add to them."""
        for parameter in self._large:
            parameter.grad = None
        for piece in self._small_pieces:
            piece.zero_()
        for parameter, view in self._small:
            if parameter.grad is not view:
                parameter.grad = view

    def collect(self) -> None:
        """Make every ``.grad`` a view of the vector. Gradients that the module cleared or never computed are zero."""
        if not all(map(is_, map(_grad, self._parameters), self._views)):
            for parameter, view in zip(self._parameters, self._views, strict=True):
                _place(view, parameter)


def _place(view: Tensor, parameter: Tensor) -> None:
    """Copy the gradient of a parameter into its view, which becomes ``.grad``."""
    gradient = parameter.grad
    if gradient is view:  # torch has added to it
        return
    if gradient is None:
        view.zero_()
    else:
        view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
    parameter.grad = view
