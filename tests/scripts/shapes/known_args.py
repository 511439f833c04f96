"""A parser of some options; the script reads the others by hand."""

import argparse

from epochs import train

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
options, rest = parser.parse_known_args()
others = dict(zip(rest[::2], rest[1::2], strict=True))
train({"dim": int(others.get("--dim", 8)), "lr": options.lr})
