"""Ensembles of scikit-learn estimators, fitted by several workers on their own parts of the data."""

from chimera.ensembles.bagging import Bagging
from chimera.ensembles.forest import FederatedForest
from chimera.ensembles.stacking import Stacking
from chimera.ensembles.voting import Voting

__all__ = ["Bagging", "FederatedForest", "Stacking", "Voting"]
