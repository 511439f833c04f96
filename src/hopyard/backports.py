"""Names of newer Python versions for the modules that a user's script imports, which may run Python 3.9.

Under a version that has a name, it is Python's own. Type checkers see Python's own, too.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 10):
    from builtins import zip as zip
    from dataclasses import dataclass as dataclass
    from itertools import pairwise as pairwise
else:
    import dataclasses
    from itertools import tee

    _MISSING = object()

    def dataclass(cls=None, /, *, slots=False, **options):  # noqa: ARG001  # slots only save memory
        return dataclasses.dataclass(cls, **options)

    def pairwise(values):
        first, second = tee(values)
        next(second, None)
        return zip(first, second)

    _zip = zip

    def zip(*columns, strict=False):
        return _zip_strict(columns) if strict else _zip(*columns)

    def _zip_strict(columns):
        iterators = [iter(column) for column in columns]
        while iterators:
            row = [next(iterator, _MISSING) for iterator in iterators]
            missing = sum(value is _MISSING for value in row)
            if missing == len(row):
                return
            if missing:
                raise ValueError("zip() arguments have different lengths")
            yield tuple(row)


if sys.version_info >= (3, 11):
    from datetime import UTC as UTC
    from enum import StrEnum as StrEnum
else:
    from datetime import timezone
    from enum import Enum

    UTC = timezone.utc

    class StrEnum(str, Enum):
        """The text of a member is its value."""

        __str__ = str.__str__
        __format__ = str.__format__
