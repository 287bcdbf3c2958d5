"""The conformance kit for strategies and codecs: tests of the promises of every strategy and codec.

::

    pytest -p chimera.testing --pyargs chimera.testing --strategy mine:MyStrategy [--engines simulated,local,ray]
    pytest -p chimera.testing --pyargs chimera.testing --codec mine.py:MyCodec

``-p chimera.testing`` loads the pytest plug-in that adds these options; without it pytest rejects them. Without ``--strategy``
and ``--codec``, the kit tests all registered strategies. It trains small networks on the digits of scikit-learn, for about a
second each. `chimera.testing.test_strategies` and `chimera.testing.test_codecs` have one test for each promise.
"""

pytest_plugins = ["chimera.testing.options"]
