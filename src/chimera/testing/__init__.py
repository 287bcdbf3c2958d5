"""The conformance kit for strategies: tests of the promises that every strategy makes, to run on yours.

::

    pytest -p chimera.testing --pyargs chimera.testing --strategy mine:MyStrategy [--engines simulated,local,ray]

``-p chimera.testing`` loads the pytest plug-in that adds these two options; without it pytest rejects them. Without
``--strategy``, the kit tests all registered strategies. It trains small networks on the digits of scikit-learn, for about a
second each. `chimera.testing.test_strategies` has one test for each promise.
"""

pytest_plugins = ["chimera.testing.options"]
