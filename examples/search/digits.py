"""A small convolutional network on 5,000 MNIST digits, for a search by model hopper parallelism.

hop search examples/search/digits.yaml
"""

import torch
from torch import nn
from torch.nn import functional as F

import hopyard as hop


def network(config):
    wide = config.channels
    return nn.Sequential(
        *(nn.Conv2d(1, wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(wide, 2 * wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(
            nn.Flatten(),
            nn.Dropout(config.dropout),
            nn.Linear(2 * wide * 7 * 7, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        ),
    )


digits = hop.TorchTrainable(
    model=network,
    optimizer=lambda parameters, config: torch.optim.AdamW(parameters, lr=config.lr),
    loss=F.cross_entropy,
    metrics={"val_acc": "accuracy"},
    schedule=lambda optimizer, config: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8),
)
