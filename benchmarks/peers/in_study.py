"""Trains the configurations of benchmarks.mop_study without Hopyard.
`in_study.py copies ORDER`, or under torchrun `in_study.py ddp ORDER`.

ORDER is a JSON object: networks (file), model, data (folder), epochs, seed, and for ddp configs, wide, out
(file).

copies: one worker of task parallelism, with all data in its own memory. It prints `{"ready": …}` when all is
imported. For each line on stdin, a configuration, it prints `{"ended_at", "accuracy"}`; with the first come
the data. ddp: all configurations one after another, each on all processes: every process has its share of the
rows in memory, gradients are averaged by DistributedDataParallel (gloo). wide: every process takes whole
batches, else its part of each.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plain_training import Data, anonymous_bytes, counts, load_networks, start, train_epoch


def print_event(**said: Any) -> None:
    print(json.dumps(said), flush=True)


def copies(order: dict[str, Any]) -> None:
    networks = load_networks(order["networks"])
    at_first = anonymous_bytes()
    print_event(ready=time.time())
    data = None
    for line in sys.stdin:
        began_at = time.time()
        params = json.loads(line)
        if data is None:
            data = Data.load(order["data"])
        loaded_at = time.time()
        model, optimizer = start(networks, order["model"], params, order["seed"])
        rng = np.random.default_rng(order["seed"])
        accuracy = train_s = evaluate_s = 0.0
        for _ in range(order["epochs"]):
            clock = time.perf_counter()
            train_epoch(networks, model, optimizer, data, params["batch_size"], rng)
            trained = time.perf_counter()
            right, _, rows = counts(networks, model, data).tolist()
            accuracy = right / rows
            train_s, evaluate_s = train_s + trained - clock, evaluate_s + time.perf_counter() - trained
        print_event(
            began_at=began_at,
            loaded_at=loaded_at,
            ended_at=time.time(),
            accuracy=accuracy,
            train_s=train_s,
            evaluate_s=evaluate_s,
            data_bytes=data.nbytes,
            grown_bytes=anonymous_bytes() - at_first,
        )


def ddp(order: dict[str, Any]) -> None:
    from torch import distributed

    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    networks = load_networks(order["networks"])
    distributed.barrier()
    began_at, at_first = time.time(), anonymous_bytes()
    data = Data.load(order["data"], share=(rank, size))
    accuracies = []
    for params in order["configs"]:
        model, optimizer = start(networks, order["model"], params, order["seed"])
        together = torch.nn.parallel.DistributedDataParallel(model)
        rng = np.random.default_rng([order["seed"], rank])
        batch = params["batch_size"] if order["wide"] else max(1, params["batch_size"] // size)
        for _ in range(order["epochs"]):
            train_epoch(networks, together, optimizer, data, batch, rng)
            total = counts(networks, model, data)
            distributed.all_reduce(total)
        accuracies.append(float(total[0] / total[2]))
    ended_at = time.time()
    if rank == 0:
        said = {
            "began_at": began_at,
            "ended_at": ended_at,
            "accuracies": accuracies,
            "data_bytes": data.nbytes,
        }
        Path(order["out"]).write_text(json.dumps({**said, "grown_bytes": anonymous_bytes() - at_first}))
    distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads sometimes abort a process that ends by itself


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    {"copies": copies, "ddp": ddp}[sys.argv[1]](json.loads(sys.argv[2]))
