"""The substitutes for names of newer Python versions, under this version and under Python 3.9."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.house.test_python39 import find_python
from tests.house.tree import PACKAGE

CODE = """
from hopyard.backports import UTC, StrEnum, dataclass, pairwise, zip

class Color(StrEnum):
    RED = "red"

assert Color("red") is Color.RED and f"{Color.RED:>4}" == " red" and str(Color.RED) == "red"

@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2

assert Point(1) == Point(1, 2) and hash(Point(1)) == hash(Point(1, 2))
try:
    Point(1).x = 3
except AttributeError:
    pass
else:
    raise SystemExit("a frozen value was changed")

assert list(pairwise("abc")) == [("a", "b"), ("b", "c")] and list(pairwise("a")) == []
assert list(zip("ab", "c")) == [("a", "c")]
assert list(zip("ab", "cd", strict=True)) == [("a", "c"), ("b", "d")]
assert list(zip(strict=True)) == []
for columns in (["a", "bc"], ["ab", "c"]):
    try:
        list(zip(*columns, strict=True))
    except ValueError:
        continue
    raise SystemExit("columns of different lengths were accepted")
assert UTC.utcoffset(None).total_seconds() == 0
"""


@pytest.mark.parametrize("version", [sys.version_info[:2], (3, 9), (3, 10)], ids=["own", "3.9", "3.10"])
def test_substitutes_act_as_the_names_that_they_replace(version: tuple[int, int]) -> None:
    python = sys.executable if version == sys.version_info[:2] else find_python(version)
    if python is None:
        pytest.skip("this machine has no such Python")
    result = subprocess.run(
        [python, "-c", CODE],
        check=False,
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
