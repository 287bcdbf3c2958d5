"""Passes of linear regression over this worker's rows; the options of the steps are set here."""

from chimera.nodes.workers import SGDWorker

worker = SGDWorker("regressor", penalty=None)

if __name__ == "__main__":
    worker.serve()
