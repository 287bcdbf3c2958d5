"""Bagging of classification trees over three workers, each with a third of the breast-cancer data.

python make_data.py && python master.py       and in another terminal: python client.py
"""

import os

import chimera
from chimera.nodes import AggregationMaster

os.environ.setdefault("CHIMERA_WORKERS_NODES_NAMES", '["tree1", "tree2", "tree3"]')
os.environ.setdefault("CHIMERA_WORKERS_CPU_SHARES", "[2, 2, 2]")
os.environ.setdefault("CHIMERA_WORKERS_MAPPED_PORTS", "[5001, 5002, 5003]")
os.environ.setdefault("CHIMERA_WORKERS_HOST", "127.0.0.1")  # accept connections from this machine only

if __name__ == "__main__":
    chimera.run(AggregationMaster(), int(os.environ.get("MASTER_PORT", "8080")))
