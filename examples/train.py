"""The Python API: train a network on handwritten digits with two workers, and print the results.

Takes about 11 s on two cores.
"""

import chimera

if __name__ == "__main__":
    run = chimera.train(
        {"name": "mlp", "hidden": [64]},
        "digits",
        strategy={"name": "parameter-server", "shards": 2},
        engine="local",
        workers=2,
        batch_size=32,
        optimizer={"name": "adam", "lr": 3e-3},
        epochs=20,
        target={"accuracy": 0.97},
    )
    print(run.metrics, "stopped by", run.stopped_by)
    print(run.history.tail())
    print("plot:", run.plot(), " files:", run.run_dir)
