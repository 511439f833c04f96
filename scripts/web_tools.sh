#!/bin/sh
# Prepares what the web UI is tested and built with: Node, npm, and the packages of web/.
# What is missing is printed, and the exit code is 1.
set -u
cd "$(dirname "$0")/.."

missing() {
    echo "note: $1" >&2
    exit 1
}

node -e '
    const [major, minor] = process.versions.node.split(".").map(Number)
    process.exit(major > 20 || (major === 20 && minor >= 19) ? 0 : 1)
' 2>/dev/null || missing "Node 20.19 or newer is missing ($(node --version 2>/dev/null || echo 'no `node` on the PATH'))"
command -v npm >/dev/null || missing 'npm is missing (no `npm` on the PATH)'
"${MAKE:-make}" --no-print-directory web/node_modules >&2 || missing 'npm cannot install the packages of web/'
