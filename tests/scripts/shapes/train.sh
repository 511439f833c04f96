#!/bin/sh
exec python argparse_train.py "$@"
