"""A dataclass within a dataclass, read by tyro."""

import dataclasses
import json

import tyro


@dataclasses.dataclass
class Optim:
    lr: float = 0.1
    name: str = "sgd"


@dataclasses.dataclass
class Settings:
    optim: Optim = dataclasses.field(default_factory=Optim)
    layers: tuple[int, ...] = (1,)
    amp: bool = False


print(json.dumps(dataclasses.asdict(tyro.cli(Settings)), sort_keys=True))
