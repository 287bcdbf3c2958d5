"""The modules that the processes of every run need and that are slow to import."""

PRELOADED = (
    "torch",
    "chimera.training.worker.learner",
    "chimera.training.server.parameter_shard",
    "chimera.models.torch_model",
)
