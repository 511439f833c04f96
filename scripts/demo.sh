#!/bin/sh
# What `make demo` runs once everything is installed: from a folder of images to a row on its leaderboard.
# Usage: scripts/demo.sh FOLDER_OF_THE_VENV
set -eu
cd "$(dirname "$0")/.."
bin="$(cd "$1" && pwd)/bin"

say() { printf '\n\033[1m$ %s\033[0m\n' "$*" >&2; }
hop() {
    say "hop $*"
    "$bin/hop" "$@"
}
[ -t 2 ] || say() { printf '\n$ %s\n' "$*" >&2; }

"$bin/python" examples/mnist_dataset.py .demo/mnist
hop dataset push mnist .demo/mnist
hop run examples/mnist/main.py -d mnist
hop plot last val_acc
hop dataset board mnist

activate="${bin#"$PWD/"}/activate"
run="$("$bin/hop" ps -a --limit 1 --json | "$bin/python" -c 'import json, sys; print(json.load(sys.stdin)[0]["name"])')"
try() { printf '    %-54s%s\n' "$1" "$2"; }

printf '\nThat was a real model, trained, recorded and ranked. Next, in this shell:\n\n'
try ". $activate" 'so that `hop` is on your PATH'
try 'hop ps -a' 'what ran'
try 'hop info last' 'everything about the last run'
try 'hop fork last -p lr=0.01 --name faster' 'the same code and data, another learning rate'
try "hop diff $run faster" 'what differed, and what came of it'
try "hop plot faster val_acc --with $run" 'both curves; --x time draws them over the time'
try 'hop run --replicas 2 examples/ddp/main.py -d mnist' 'two processes that train together'
try 'hop status' 'the server that was started for you; `hop down` ends it'
printf '\nThe tutorial goes on from here: docs/guides/tutorial.md\n'
