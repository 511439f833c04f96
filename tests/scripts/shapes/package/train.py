"""A module that runs with `python -m package.train`, and counts the words that its parser leaves."""

import argparse
import json

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
known, others = parser.parse_known_args()
print(json.dumps({"lr": known.lr, "others": len(others)}))
