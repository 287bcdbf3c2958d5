"""Passes of logistic regression over this worker's rows; the options of the steps are set here."""

from chimera.nodes.workers import SGDWorker

worker = SGDWorker("classifier", loss="log_loss", alpha=0.01)

if __name__ == "__main__":
    worker.serve()
