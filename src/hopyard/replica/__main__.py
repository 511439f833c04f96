"""`python -m hopyard.replica FOLDER [--adopt]`: one replica, without the spawner."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from hopyard.private_files import GROUP_AND_OTHERS_BITS
from hopyard.replica import main as replica
from hopyard.replica.replica_dir import acquire_lock


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m hopyard.replica", description="Run the replica that FOLDER/spec.json describes."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--adopt",
        action="store_true",
        help="clean up after a dead replica: send the remaining output and report the exit",
    )
    arguments = parser.parse_args()
    folder, umask = arguments.folder.absolute(), os.umask(GROUP_AND_OTHERS_BITS)
    lock = acquire_lock(folder)
    if lock is None:
        return 0  # another replica is alive and does the work
    return replica.run(folder, adopt=arguments.adopt, lock=lock, umask=umask)


if __name__ == "__main__":
    sys.exit(main())
