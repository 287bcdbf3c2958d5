"""What answers queries: models of Hugging Face, of Chimera, of scikit-learn, and of the user's own code."""

from chimera.inference.models.answers import answers
from chimera.inference.models.table import KINDS, Predictor, check, load, read

__all__ = ["KINDS", "Predictor", "answers", "check", "load", "read"]
