"""Logistic regression on the breast-cancer data of two workers: each runs a pass over its rows, and the master averages.

python make_data.py && python master.py       and in another terminal: python client.py
"""

import os

import chimera
from chimera.nodes import ParameterServerMaster

os.environ.setdefault("CHIMERA_WORKERS_NODES_NAMES", '["sgd1", "sgd2"]')
os.environ.setdefault("CHIMERA_WORKERS_CPU_SHARES", "[2, 2]")
os.environ.setdefault("CHIMERA_WORKERS_MAPPED_PORTS", "[5001, 5002]")
os.environ.setdefault("CHIMERA_WORKERS_HOST", "127.0.0.1")  # accept connections from this machine only

if __name__ == "__main__":
    master = ParameterServerMaster("classifier", loss="log_loss", max_iter=1000)  # this loss gives probabilities
    chimera.run(master, int(os.environ.get("MASTER_PORT", "8080")))
