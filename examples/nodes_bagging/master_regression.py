"""Bagging of regression trees over three workers, each with a third of the diabetes data.

python make_data.py && python master_regression.py       and in another terminal: python client.py regression
"""

import os

import chimera
from chimera.nodes import AggregationMaster

os.environ.setdefault("CHIMERA_WORKERS_NODES_NAMES", '["regressor1", "regressor2", "regressor3"]')
os.environ.setdefault("CHIMERA_WORKERS_CPU_SHARES", "[2, 2, 2]")
os.environ.setdefault("CHIMERA_WORKERS_MAPPED_PORTS", "[5001, 5002, 5003]")
os.environ.setdefault("CHIMERA_WORKERS_HOST", "127.0.0.1")  # accept connections from this machine only

if __name__ == "__main__":
    chimera.run(AggregationMaster(), int(os.environ.get("MASTER_PORT", "8080")))
