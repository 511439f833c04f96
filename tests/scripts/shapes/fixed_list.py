"""A script from a notebook: its parser gets a list in the code, not the arguments of the process."""

import argparse

import hopyard as hop

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
options = parser.parse_args(["--lr", "0.2"])
hop.log(loss=options.lr, step=0)
