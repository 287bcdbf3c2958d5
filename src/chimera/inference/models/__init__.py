"""Models that answer queries: of Hugging Face, Chimera, scikit-learn, or the user's own code."""

from chimera.inference.models.answers import answers
from chimera.inference.models.table import KINDS, Predictor, check, check_query, is_shared, load, modules_of, read

__all__ = ["KINDS", "Predictor", "answers", "check", "check_query", "is_shared", "load", "modules_of", "read"]
