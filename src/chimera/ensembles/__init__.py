"""Ensembles of scikit-learn estimators that are fitted by many workers, each on its own part of the data."""

from chimera.ensembles.bagging import Bagging
from chimera.ensembles.forest import FederatedForest
from chimera.ensembles.stacking import Stacking
from chimera.ensembles.voting import Voting

__all__ = ["Bagging", "FederatedForest", "Stacking", "Voting"]
