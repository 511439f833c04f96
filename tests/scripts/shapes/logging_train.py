"""argparse beside the SDK's metrics, without `hop.params`."""

import argparse

import hopyard as hop

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
arguments = parser.parse_args()
hop.log(loss=arguments.lr, step=0)
print(arguments.lr)
