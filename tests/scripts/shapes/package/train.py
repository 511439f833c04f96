"""A module that runs with `python -m package.train`, and counts the words that its parser leaves."""

import argparse

from epochs import train

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
known, others = parser.parse_known_args()
train({"lr": known.lr, "others": len(others)})
