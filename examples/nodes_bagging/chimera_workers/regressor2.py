"""A regression tree on bootstrapped rows of this worker's data."""

from sklearn.tree import DecisionTreeRegressor

from chimera.nodes.workers import RegressionWorker

worker = RegressionWorker(DecisionTreeRegressor(max_depth=4, random_state=0), bootstrap=True)

if __name__ == "__main__":
    worker.serve()
