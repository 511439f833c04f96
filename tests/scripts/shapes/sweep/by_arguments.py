"""Options of argparse."""

import argparse

from loss import log_loss

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=9.0)
log_loss(parser.parse_args().lr)
