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

"$bin/python" scripts/mnist_dataset.py .demo/mnist
hop dataset push mnist .demo/mnist
hop run examples/mnist/main.py -d mnist
hop plot last val_acc
hop dataset board mnist

activate="${bin#"$PWD/"}/activate"
cat <<END

That was a real model, trained, recorded and ranked. Next, in this shell:

    . $activate                            so that \`hop\` is on your PATH
    hop ps -a                                       what ran
    hop info last                                   everything about the last run
    hop fork last -p lr=0.01                        the same code and data, another learning rate
    hop diff 1 last                                 what differed, and what came of it
    hop run --replicas 2 examples/ddp/main.py -d mnist    two processes that train together
    hop status                                      the server that was started for you; \`hop down\` ends it

The tutorial goes on from here: docs/tutorial.md
END
