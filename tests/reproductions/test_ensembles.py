"""Reproduction of bagging, compared with scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.ensemble import BaggingClassifier
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier

from chimera.engines.local import Local
from chimera.ensembles import Bagging
from reproductions.conftest import Claim

pytestmark = pytest.mark.long


def test_bagging_lowers_the_error_like_scikit_learn(claim: Claim) -> None:
    """Breiman 1996, table 1: bagging lowers the misclassification rate of trees by 6 to 77 %."""
    train, test, labels, answers = train_test_split(*load_digits(return_X_y=True), random_state=0)
    tree = 1 - DecisionTreeClassifier(random_state=0).fit(train, labels).score(test, answers)
    ours, theirs = [], []
    with Local(preload=["sklearn.tree"]) as engine:
        for seed in range(3):
            bag = Bagging(DecisionTreeClassifier(), 30, workers=3, engine=engine, seed=seed)
            ours.append(1 - bag.fit(train, labels).score(test, answers))
            same = BaggingClassifier(DecisionTreeClassifier(), 30, random_state=seed)
            theirs.append(1 - same.fit(train, labels).score(test, answers))
    assert np.mean(ours) < 0.6 * tree
    sampling_error = np.sqrt(np.mean(theirs) * (1 - np.mean(theirs)) / len(test))
    assert abs(np.mean(ours) - np.mean(theirs)) < 2 * sampling_error
    claim(
        source="Breiman 1996, table 1",
        claim="Bagging halves the error of a decision tree, and over three workers it is scikit-learn's to sampling error",
        figure=f"error {np.mean(ours):.1%}, scikit-learn's {np.mean(theirs):.1%}, one tree {tree:.1%} "
        "(digits, 30 trees, mean of 3 seeds)",
    )
