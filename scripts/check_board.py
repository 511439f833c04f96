"""Read a leaderboard (`hop dataset board NAME --json`) from stdin and fail unless it is as good as it should
be.

hop dataset board mnist --json | python scripts/check_board.py --runs 2 --above 0.9
"""

from __future__ import annotations

import argparse
import json
import sys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1, help="at least so many rows")
    parser.add_argument("--above", type=float, required=True, help="every value is larger than this")
    wanted = parser.parse_args()
    board = json.load(sys.stdin)
    values = [row["value"] for row in board["rows"]]
    print(f"{board['metric']}: {', '.join(f'{value:.4f}' for value in values) or 'no row'}")
    if len(values) < wanted.runs:
        print(f"error: {len(values)} rows, expected {wanted.runs}", file=sys.stderr)
        return 1
    if min(values) <= wanted.above:
        print(f"error: {min(values):.4f} is not above {wanted.above}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
