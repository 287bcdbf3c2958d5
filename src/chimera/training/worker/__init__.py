"""Workers: the actor that holds a model and data, its gradients, local steps and messages."""
