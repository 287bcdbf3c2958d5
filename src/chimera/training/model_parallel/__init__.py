"""Models that are split over workers: stages of a pipeline, slices of layers, split learning."""
