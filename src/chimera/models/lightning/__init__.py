"""Lightning modules: any torch module with the methods ``training_step`` and ``configure_optimizers``, without the library."""
