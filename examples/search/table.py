"""A perceptron on a table, written by hand: a state that begins, trains on a partition, and is evaluated.

    python examples/search/make_table.py table && hop dataset push table table
    hop search examples/search/table.yaml

The state is whatever the functions return: here a dictionary that holds a module and its optimiser. The
random numbers that it draws from hop along with it, so the order of batches is as repeatable as the rest.
"""

import torch
from torch import nn
from torch.nn import functional as F


def init(config):
    model = nn.Sequential(
        nn.Linear(len(COLUMNS), config.width),
        nn.ReLU(),
        nn.Linear(config.width, config.width),
        nn.ReLU(),
        nn.Linear(config.width, 2),
    )
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=config.lr, momentum=config.momentum),
    }


def train(state, partition, config):
    model, optimizer = state["model"].train(), state["optimizer"]
    data = partition.view(x=COLUMNS, y="label")
    for batch in data.batches(config.batch_size, seed=config.epoch):
        loss = F.cross_entropy(model(torch.from_numpy(batch["x"])), torch.from_numpy(batch["y"]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def evaluate(state, partition, config):
    data = partition.view(x=COLUMNS, y="label")
    scores, labels = state["model"].eval()(torch.from_numpy(data["x"])), torch.from_numpy(data["y"])
    return {
        "loss": F.cross_entropy(scores, labels).item(),
        "val_acc": (scores.argmax(1) == labels).float().mean().item(),
    }


COLUMNS = tuple(f"c{number}" for number in range(100))
