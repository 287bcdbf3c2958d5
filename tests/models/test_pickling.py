import threading

import pytest
from torch import nn

from chimera.core.errors import ConfigurationError
from chimera.models.pickling import ensure_picklable
from chimera.models.torch_model import TorchModel


class Locked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.layer.options = {"lock": threading.Lock()}

    def forward(self, x):
        return self.layer(x)


def test_picklable_model_passes():
    ensure_picklable(TorchModel(lambda: nn.Linear(2, 2), loss=lambda outputs, targets: outputs.mean()))


def test_unpicklable_attribute_is_named_in_one_line():
    message = (
        r"Locked cannot be sent to workers: its attribute \"layer.options\['lock'\]\" cannot be pickled \(TypeError"
    )
    with pytest.raises(ConfigurationError, match=message) as caught:
        ensure_picklable(TorchModel(Locked))
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, TypeError)


def test_unpicklable_attribute_outside_the_module_is_named():
    lock = threading.Lock()

    class Loss:
        def __init__(self):
            self.lock = lock

        def __call__(self, outputs, targets):
            return outputs.mean()

    with pytest.raises(ConfigurationError, match=r"its attribute 'loss.function.lock' cannot be pickled"):
        ensure_picklable(TorchModel(lambda: nn.Linear(2, 2), loss=Loss()))


def test_unpicklable_model_itself():
    with pytest.raises(ConfigurationError, match="lock cannot be sent to workers: it cannot be pickled"):
        ensure_picklable(threading.Lock())
