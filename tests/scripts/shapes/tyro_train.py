"""A dataclass within a dataclass, read by tyro."""

import dataclasses

import tyro
from epochs import train


@dataclasses.dataclass
class Optim:
    lr: float = 0.1
    name: str = "sgd"


@dataclasses.dataclass
class Settings:
    optim: Optim = dataclasses.field(default_factory=Optim)
    layers: tuple[int, ...] = (1,)
    amp: bool = False


train(dataclasses.asdict(tyro.cli(Settings)))
