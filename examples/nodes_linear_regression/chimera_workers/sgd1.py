"""Gradients of linear regression on this worker's rows."""

from chimera.nodes.workers import SGDWorker

worker = SGDWorker("regressor", penalty=None)

if __name__ == "__main__":
    worker.serve()
