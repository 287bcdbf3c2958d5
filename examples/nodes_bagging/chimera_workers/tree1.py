"""A classification tree on bootstrapped rows of this worker's data."""

from sklearn.tree import DecisionTreeClassifier

from chimera.nodes.workers import ClassificationWorker

worker = ClassificationWorker(DecisionTreeClassifier(max_depth=5, random_state=0), bootstrap=True)

if __name__ == "__main__":
    worker.serve()
