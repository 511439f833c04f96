"""Dataclasses that `HfArgumentParser` reads."""

import dataclasses
from typing import Optional

from epochs import train
from transformers import HfArgumentParser


@dataclasses.dataclass
class ModelArguments:
    layers: list[int] = dataclasses.field(default_factory=lambda: [1])
    name: Optional[str] = None  # noqa: UP045  # as the public scripts write it


@dataclasses.dataclass
class TrainArguments:
    lr: float = 0.1
    batch_size: int = 64
    amp: bool = False
    shuffle: bool = True


model, training = HfArgumentParser((ModelArguments, TrainArguments)).parse_args_into_dataclasses()
train({**dataclasses.asdict(model), **dataclasses.asdict(training)})
