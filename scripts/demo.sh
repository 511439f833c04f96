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

# The repository contains the built web UI. Changed sources are built while the demo trains.
web_log=.demo/build-web.log
builder=
if ! "$bin/python" scripts/web_sources.py --check 2>/dev/null; then
    mkdir -p .demo
    { scripts/web_tools.sh && "${MAKE:-make}" --no-print-directory build-web; } >"$web_log" 2>&1 </dev/null &
    builder=$!
fi

"$bin/python" examples/mnist_dataset.py .demo/mnist
hop dataset push mnist .demo/mnist
hop run examples/mnist/main.py -d mnist
hop plot last val_acc
hop dataset board mnist

if [ -n "$builder" ] && ! wait "$builder"; then
    printf '\nThe web UI was not built from the sources in web/ (see %s).\n' "$web_log" >&2
    tail -n 1 "$web_log" >&2
fi

activate="${bin#"$PWD/"}/activate"
run="$("$bin/hop" ps -a --limit 1 --json | "$bin/python" -c 'import json, sys; print(json.load(sys.stdin)[0]["name"])')"
try() { printf '    %-54s%s\n' "$1" "$2"; }

printf '\nThat was a real model, trained, recorded and ranked. Next, in this shell:\n\n'
try ". $activate" 'so that `hop` is on your PATH'
try 'hop ps -a' 'what ran'
try 'hop ui' 'the same in a browser'
try 'hop info last' 'everything about the last run'
try 'hop fork last -p lr=0.01 --name faster' 'the same code and data, another learning rate'
try "hop diff $run faster" 'what differed, and what came of it'
try "hop plot faster val_acc --with $run" 'both curves; --x time draws them over the time'
try 'hop run --replicas 2 examples/ddp/main.py -d mnist' 'two processes that train together'
try 'hop status' 'the server that was started for you; `hop down` ends it'
printf '\nThe tutorial goes on from here: docs/guides/tutorial.md\n'
