"""Runs in the peers' environment: `in_tune.py ORDER` trains the configurations of benchmarks.mop_study under
Ray Tune.

As Tune is fastest: actors are used again from trial to trial, and the data lie once, in Ray's shared memory,
for all of them. ORDER: as of in_study.py's ddp, with workers (how many trials at a time) and folder (for all
that Ray writes). This folder must be on $PYTHONPATH, for Ray's workers.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import tune


class Trial(tune.Trainable):  # type: ignore[misc]
    def setup(self, config: dict[str, Any], data: Any = None, order: dict[str, Any] | None = None) -> None:
        import torch
        from plain_training import Data, load_networks

        assert order is not None
        torch.set_num_threads(1)
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        self.order, self.networks = order, load_networks(order["networks"])
        self.data = Data(*data)
        self.reset_config(config)

    def reset_config(self, config: dict[str, Any]) -> bool:
        from plain_training import start

        self.params = self.order["configs"][config["number"]]
        self.model, self.optimizer = start(
            self.networks, self.order["model"], self.params, self.order["seed"]
        )
        self.rng, self.began_at = np.random.default_rng(self.order["seed"]), time.time()
        return True

    def step(self) -> dict[str, Any]:
        from plain_training import counts, train_epoch

        train_epoch(self.networks, self.model, self.optimizer, self.data, self.params["batch_size"], self.rng)
        right, _, rows = counts(self.networks, self.model, self.data).tolist()
        return {"accuracy": right / rows, "began_at": self.began_at, "ended_at": time.time()}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Tune requests a checkpoint at the end: nothing to store."""


def main(order: dict[str, Any]) -> None:
    from plain_training import Data

    ray.init(
        num_cpus=order["workers"],
        include_dashboard=False,
        _temp_dir=order["folder"],
        log_to_driver=False,
        configure_logging=False,
    )
    loaded = Data.load(order["data"])
    trainable = tune.with_parameters(
        Trial, data=(loaded.x, loaded.y, loaded.test_x, loaded.test_y), order=order
    )
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={"number": tune.grid_search(list(range(len(order["configs"]))))},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", reuse_actors=True),
        run_config=tune.RunConfig(
            stop={"training_iteration": order["epochs"]}, storage_path=order["folder"] + "/results", verbose=0
        ),
    )
    results = tuner.fit()
    if results.errors:
        raise results.errors[0]
    metrics = sorted((result.metrics for result in results), key=lambda one: one["config"]["number"])
    said = {
        "began_at": min(one["began_at"] for one in metrics),
        "ended_at": max(one["ended_at"] for one in metrics),
        "accuracies": [one["accuracy"] for one in metrics],
        "data_bytes": loaded.nbytes,
    }
    Path(order["out"]).write_text(json.dumps(said))
    ray.shutdown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
