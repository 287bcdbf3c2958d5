import subprocess
import sys

import pytest


def loaded(code):
    """Return the heavy packages that a new interpreter has imported after ``code``."""
    code += (
        "\nimport sys; print([m for m in ('torch', 'torch._dynamo', 'sklearn', 'ray', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_listing_models_imports_nothing_heavy():
    assert loaded("from chimera.models.model import MODELS; [entry.summary for entry in MODELS.entries()]") == "[]"


@pytest.mark.long
def test_training_a_torch_model_does_not_import_the_compiler():
    code = """
import numpy as np, pickle
from chimera.models.conversion import build_model
model = build_model("cnn", {"batch_norm": True}, input_shape=(64,), outputs=3, task="classification", seed=0)
batch = np.zeros((4, 64), np.float32), np.zeros(4, int)
model.flat_parameter()
model.gradient(batch); model.evaluate(batch); model.load_buffers(model.buffers())
pickle.loads(pickle.dumps(model)).gradient(batch)
"""
    assert loaded(code) == "['torch']"
