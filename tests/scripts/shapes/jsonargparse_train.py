"""A class whose parameters jsonargparse reads."""

from epochs import train
from jsonargparse import ArgumentParser


class Model:
    def __init__(self, dim: int = 8, lr: float = 0.1):
        self.dim, self.lr = dim, lr


parser = ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_class_arguments(Model, "model")
train(parser.parse_args().as_dict())
