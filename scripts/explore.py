"""`make explore`: the laws of the suite with random seeds, in rounds that grow, until the time is up or a law
breaks.

    scripts/explore.py [--minutes 10] [--seed N [--round R]] [PATH or pytest option ...]

What breaks a law is printed as the case to add to its test, and as the command that shows it again. Exit
code: 0 when all laws held.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
EXAMPLE = re.compile(r"(?:Failing test case|Falsifying example): \w+\((?P<arguments>.*?)\n *\)", re.S)
BLOB = re.compile(r"@reproduce_failure\([^\n]*\)")
MACHINE = re.compile(r"^ *state = \w+\(\).*?state\.teardown\(\)", re.M | re.S)
NO_TESTS = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="make explore", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="no round begins after these (default: 10)")
    parser.add_argument("--seed", type=int, help="one round with this seed")
    parser.add_argument("--round", type=int, default=1, help="how large the first round is (default: 1)")
    given, options = parser.parse_known_args()
    end, number = time.monotonic() + 60 * given.minutes, given.round
    while True:
        seed = given.seed if given.seed is not None else secrets.randbelow(2**31)
        print(f"== round {number}, seed {seed}", flush=True)
        code = play(seed, number, options)
        if code or given.seed is not None or time.monotonic() > end:
            return code
        number += 1


def play(seed: int, number: int, options: list[str]) -> int:
    """One round: pytest's exit code. Prints the cases that it found."""
    environment = os.environ | {
        "HOPYARD_EXPLORE_ROUND": str(number),
        "HOPYARD_EXPLORE_SEED": str(seed),
        "PYTHONHASHSEED": "random",
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = [
            "-m",
            "pytest",
            "-q",
            "-n",
            "auto",
            "--maxprocesses",
            "4",
            f"--hypothesis-seed={seed}",
            f"--junitxml={report}",
        ]
        code = subprocess.run(
            [sys.executable, *words, *options], cwd=ROOT, env=environment, check=False
        ).returncode
        if code == NO_TESTS:
            print("no law is among these tests")
        elif code and report.exists():
            print("\n".join(findings(report, seed, number)))
    return code


def findings(report: Path, seed: int, number: int) -> Iterator[str]:
    """What to add to the tests that failed, and how to see them fail again."""
    for case in ElementTree.parse(report).iter("testcase"):
        for failure in [*case.iter("failure"), *case.iter("error")]:
            text = re.sub(r"^E {0,7}", "", failure.text or "", flags=re.M)
            yield f"\n== {case.get('classname', '')}.{case.get('name', '')}"
            yield from (
                f"add above its @given:   @example({without_notes(m['arguments'])})"
                for m in EXAMPLE.finditer(text)
            )
            yield from (f"add as a test of its own:\n{found}" for found in MACHINE.findall(text))
            yield from (f"or, until it is mended:  {found}" for found in BLOB.findall(text))
            if not EXAMPLE.search(text) and not MACHINE.search(text):
                yield "its seed stands in its name: add it to the seeds of the test"
    yield f"\nagain: make explore EXPLORE_ARGS='--seed {seed} --round {number} PATH'"


def without_notes(arguments: str) -> str:
    """One line of them, without what Hypothesis remarks on each."""
    return " ".join(re.sub(r"  # .*", "", arguments).split()).rstrip(",")


if __name__ == "__main__":
    sys.exit(main())
