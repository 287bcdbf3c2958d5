"""Gradients of logistic regression on this worker's rows."""

from chimera.nodes.workers import SGDWorker

worker = SGDWorker("classifier", loss="log_loss", alpha=0.01)

if __name__ == "__main__":
    worker.serve()
