"""A launcher like torchrun: its own options, a script, and the script's options."""

import argparse
import runpy
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--nproc", type=int)
parser.add_argument("script")
parser.add_argument("rest", nargs=argparse.REMAINDER)
options = parser.parse_args()
sys.argv = [options.script, *options.rest]
runpy.run_path(options.script, run_name="__main__")
