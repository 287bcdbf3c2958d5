"""The conformance kit for strategies: what any of them promises, as tests to be run on yours.

::

    pytest -p chimera.testing --pyargs chimera.testing --strategy mine:MyStrategy [--engines simulated,local,ray]

``-p chimera.testing`` loads the plugin of pytest that adds these two options; without it pytest says that it does not know
them. Without ``--strategy`` it tests all that are registered. It trains small networks on the digits of scikit-learn, for a
second each; what it holds a strategy to stands in `chimera.testing.test_strategies`, a promise a test.
"""

pytest_plugins = ["chimera.testing.options"]
