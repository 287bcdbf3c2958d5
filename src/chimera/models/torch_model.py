"""Any torch module as a model: one flat vector of parameters, one of gradients, no copy between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chimera.core import call
from chimera.core.batch import Batch
from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat, Layout
from chimera.models.backward import BackwardPass
from chimera.models.batched_steps import BatchedSteps
from chimera.models.buffers import BUFFER_POLICIES
from chimera.models.compute import Compute, enable_checkpointing
from chimera.models.device_view import DeviceView
from chimera.models.flat_module import FlatModule, Memory
from chimera.models.forward import ForwardPass, check_forward
from chimera.models.frozen_parameters import frozen_digest
from chimera.models.instantiation import module_of
from chimera.models.lightning.hooks import is_lightning
from chimera.models.lightning.step import LightningStep
from chimera.models.loss import Loss, LossFunction
from chimera.models.losses import make_loss
from chimera.models.metrics import Metrics, metric_factories
from chimera.models.model import Task
from chimera.models.module_buffers import batch_norm_parameters, buffer_names, left_out, pack_buffers, unpack_buffers
from chimera.models.own_optimizer import OwnOptimizer, Position, RunLength
from chimera.models.step import Step
from chimera.models.torch_evaluation import TorchEvaluation
from chimera.models.torch_stage import TorchStage

if TYPE_CHECKING:
    from torch import Tensor, nn

_MAX_NAMES = 5  # of a notice


class TorchModel(TorchEvaluation):
    """A `Model` around a torch module.

    ``model.module`` is the module that is trained; its parameters are views of `parameters()`. Frozen parameters
    (``requires_grad=False``) are not part of the vector: they do not change and are not sent, except in a pickle.

    Parameters
    ----------
    module_or_factory : an ``nn.Module``, or a function without arguments (such as a class) that returns one. A
        ``LightningModule`` trains by its own steps, see `LightningStep`; ``loss`` then only decides how outputs become
        predictions.
    loss : ``cross-entropy``, ``nll``, ``bce``, ``bce-with-logits``, ``mse``, ``l1``, ``huber``, ``smooth-l1``, a loss module
        of torch, such as ``CrossEntropyLoss`` with class weights, or a function ``(outputs, targets) -> scalar tensor``, the
        mean over the batch.
    step : ``step(module, batch)`` returns the mean loss, ``(loss, outputs)``, or a mapping with ``loss``; tensors are on the
        module's device. Default: see `DefaultStep`.
    metrics : names (``accuracy``, ``top-5-accuracy``, ``f1``, ``auroc``, ``perplexity``, ``mse``, ``mae``, ``rmse``, ``r2``),
        functions ``(targets, predictions) -> number`` of arrays, as in scikit-learn, functions ``(outputs, batch) -> number``
        of a tensor and a batch, or objects of ``torchmetrics``; keys of a mapping rename them. The default depends on the loss.
    task : ``classification`` or ``regression``; decides how outputs become predictions. The default depends on the loss. With
        a function it is the task of the training data; outside of a run it is regression.
    target_transform : function of a tensor that returns a tensor, applied to targets before the loss but not before metrics.
    predict_transform : function of the outputs, a tensor, that returns predictions; by default the class with the largest
        output, or the value.
    integer_inputs : whether integer inputs become int64 (indices of an embedding) instead of float32; by default, whether the
        module has an embedding.
    buffers : policy that merges the buffers of workers: ``average`` (default), ``first`` or ``none``. Buffers with
        ``persistent=False`` stay with each worker: a run neither averages nor returns them, and names them at its start.
    evaluate_rows : rows in a batch of `evaluate` and `predict`; default 512.
    memory : allocates the two vectors; by default in memory that the engine's collectives access without a copy.
    share_frozen : whether the workers of a machine share the frozen parameters, which saves memory. The module must not write
        to them.
    seed : seed of the factory; torch's global generator is restored. Not set: the factory draws from torch's global generator,
        and the seed of a run does not determine the first weights. Set it, or pass the factory itself to the run.

    Raises
    ------
    ConfigurationError : an unknown name, a factory that raises, parameters that are not float32 on the CPU; or neither the
        module has a ``forward`` nor a ``step`` is given.
    """

    def __init__(
        self,
        module_or_factory: nn.Module | Callable[[], nn.Module],
        *,
        loss: str | LossFunction = "cross-entropy",
        step: Step | None = None,
        metrics: Metrics | None = None,
        task: Task | None = None,
        target_transform: Callable[[Tensor], Tensor] | None = None,
        predict_transform: Callable[[Tensor], Any] | None = None,
        integer_inputs: bool | None = None,
        buffers: str = "average",
        evaluate_rows: int = 512,
        memory: Memory = call.empty,
        share_frozen: bool = False,
        seed: int | None = None,
    ) -> None:
        module = module_of(module_or_factory, seed)
        BUFFER_POLICIES.find(buffers)
        self.buffer_policy = buffers
        made = make_loss(loss, task)
        self._metrics = metric_factories(made.metrics if metrics is None else metrics)
        self._by_default = metrics is None  # if so, metrics that do not fit the outputs are left out
        self._predict_transform = predict_transform
        self._evaluate_rows = evaluate_rows
        if step is None and is_lightning(module):
            step = LightningStep(module)
        self._flat = FlatModule(module, memory, share_frozen=share_frozen)
        if step is None:
            check_forward(module)
        self._pass = ForwardPass(self._flat, made, step, target_transform, integer_inputs=integer_inputs)
        self._backward = BackwardPass(self._flat, self._pass)
        self._buffer_names = buffer_names(module)
        pack_buffers(module, self._buffer_names)  # raises now if a buffer cannot be sent

    @property
    def module(self) -> nn.Module:
        """The trained module."""
        return self._flat.module

    @property
    def loss(self) -> Loss:
        """The loss, for modules and steps that return none."""
        return self._pass.loss

    @property
    def task(self) -> Task:
        """The task, which decides how outputs become predictions."""
        return self.loss.task

    def fit_task(self, task: Task) -> None:
        """Take over the task of the data, if neither the loss nor the user determines the task."""
        self._pass.loss = self.loss.for_task(task)
        if self._by_default:
            self._metrics = metric_factories(self.loss.metrics)

    def configure(self, compute: Compute) -> None:
        """Use the settings ``compute`` for all later gradients.

        Raises
        ------
        ConfigurationError : the module does not offer activation checkpointing, or its step cannot be compiled.
        """
        self._pass.compute = compute
        if compute.compile:
            self._check_whole("compile")
        if compute.activation_checkpointing:
            enable_checkpointing(self.module)

    @property
    def locate(self) -> Callable[[Position], None] | None:
        """A function that sets the position of the next steps in the run; None if the steps do not depend on it."""
        return getattr(self._pass.step, "locate", None)

    @property
    def notice(self) -> str | None:
        """A line that names the parts of the module that a run does not use; None if it uses all."""
        lines = [getattr(self._pass.step, "notice", None)]
        if names := left_out(self.module):
            more = [f"{len(names) - _MAX_NAMES} more"] if len(names) > _MAX_NAMES else []
            shown = ", ".join([*names[:_MAX_NAMES], *more])
            lines.append(f"persistent=False, so neither averaged over the workers nor returned: {shown}")
        return " · ".join(filter(None, lines)) or None

    def own_optimizer(self, length: RunLength) -> OwnOptimizer | None:
        """Return the optimizer that the module brings, for a run of this length; None if it brings none.

        Raises
        ------
        ConfigurationError : it brings several.
        """
        own = getattr(self._pass.step, "own_optimizer", None)
        return None if own is None else own(self.module, length)

    @property
    def layout(self) -> Layout:
        """Names and shapes of the trainable parameters, as in ``module.named_parameters()``."""
        return self._flat.layout

    @cached_property
    def frozen_digest(self) -> str | None:
        """The SHA-256 of the frozen parameters and the factors of adapters, in hexadecimal; None if none are frozen."""
        return frozen_digest(self.module)

    def parameters(self) -> Flat:
        """Return the live vector that the module's parameters are views of; for a moved model, the copy on the host."""
        self._flat.rebind()
        self._flat.download()
        return self._flat.weights

    def load(self, flat: Flat) -> None:
        """Set all parameters."""
        np.copyto(self.parameters(), flat)

    def to(self, device: str) -> None:
        """Compute on ``device``, such as ``cuda:0``, from now on. A moved model cannot be pickled.

        `parameters` and gradients remain NumPy arrays on the host: `gradient` copies the weights to the device and the gradient
        back. `device_view` gives access to both on the device.
        """
        self._flat.move(device)
        self._pass.loss = self.loss.to(device)

    def device_view(self) -> Any:
        """Return parameters and gradients on the module's device: a `DeviceView` of a moved model, else this model."""
        return DeviceView(self, self._flat) if self._flat.moved else self

    def part_of(self, layers: nn.Sequential) -> TorchModel:
        """Return a model of some of the layers, with the loss and transforms of this model."""
        self._check_whole("a strategy that cuts the model into parts")
        self._pass.compute.check_parts()
        part = copy(self)
        part._flat, part._buffer_names = FlatModule(layers, self._flat.memory), buffer_names(layers)
        part._pass = self._pass.over(part._flat)
        part._backward = BackwardPass(part._flat, part._pass)
        return part

    def stage(self, numbers: Sequence[int], first: int = 0, *, recompute: bool = False) -> TorchStage:
        """Return a pipeline stage of layers of this model, whose module is an ``nn.Sequential``.

        The stage has ``len(numbers)`` layers, from index ``first``; ``numbers`` are their numbers in the whole network.
        """
        return TorchStage(self, self._flat, numbers, first, recompute=recompute)

    def batched_steps(self, input_shape: tuple[int, ...]) -> BatchedSteps | None:
        """Return steps of many copies of this model at once; None if they would give other results, or would not be faster."""
        return BatchedSteps.of(self._flat, self._pass, len(input_shape))

    def flat_parameter(self) -> nn.Parameter:
        """Return one parameter for all, with the flat gradient as ``.grad``: a ``torch.optim`` optimizer can step the model."""
        self._flat.download()
        return self._flat.flat_parameter()

    def reseed(self, seed: int) -> None:
        """Seed torch's global generators, from which the next gradients draw (dropout)."""
        self._backward.reseed(seed)

    def gradient(self, batch: Batch) -> tuple[Flat, float]:
        """Return the mean gradient over the batch and the mean loss, in training mode.

        Raises
        ------
        DataError : an empty batch, or targets that do not fit the loss.
        """
        loss = self.backward(batch)
        return self._flat.collect_gradient(), loss

    def backward(self, batch: Batch) -> float:
        """Compute the gradient of a batch, leave it on the module's device, and return the mean loss."""
        return self._backward(batch)

    def loss_scale(self) -> NDArray[Any] | None:
        """Return the state of the loss scale of float16, shape (3,); None if there is none."""
        return self._backward.loss_scale()

    def restore_loss_scale(self, state: NDArray[Any]) -> None:
        """Restore what `loss_scale` returned."""
        self._backward.restore_loss_scale(state)

    def loss_of(self, outputs: Tensor, targets: NDArray[Any]) -> Tensor:
        """Return the mean loss of outputs, as a scalar tensor on their device."""
        return self._pass.loss_of(outputs, targets)

    def tensor_of(self, inputs: NDArray[Any]) -> Tensor:
        """Return inputs as a tensor of the type and on the device that the module needs."""
        return self._pass.tensor_of(inputs)

    def _check_whole(self, user: str) -> None:
        if getattr(self._pass.step, "whole", False):
            raise ConfigurationError(
                f"{user} calls the layers of a module, but {type(self.module).__name__} trains by its own training_step"
            )

    def batch_norms(self) -> list[str]:
        """Return the names of the parameters of batch normalisation."""
        return batch_norm_parameters(self.module)

    def buffers(self) -> Flat:
        """Return a copy of the module's persistent buffers (such as running means of batch normalisation) as one vector."""
        return pack_buffers(self.module, self._buffer_names)

    def load_buffers(self, flat: Flat) -> None:
        """Set the persistent buffers; integers are rounded."""
        unpack_buffers(self.module, self._buffer_names, flat)
