"""Reading orders of learners, and input pipelines of actors that prepare their windows."""
