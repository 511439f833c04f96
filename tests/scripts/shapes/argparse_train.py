"""A script with a parser of its own, which two of its modules extend."""

import argparse

from epochs import train
from options import add_model_options

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--batch-size", "-b", type=int, default=64)
parser.add_argument("--no-cuda", action="store_true")
add_model_options(parser)
train(vars(parser.parse_args()))
