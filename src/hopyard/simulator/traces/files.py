"""Opens the files that a user names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hopyard.errors import SpecError


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Converts an operating system error of reading the file to a SpecError that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise SpecError(
            f"there is no file {file}", hints=("the path counts from the current folder",)
        ) from None
    except OSError as error:
        hint = "see that it is a file, and that it is yours to read"
        raise SpecError(f"{file} cannot be read: {error.strerror}", hints=(hint,)) from error


def not_text_error(file: Path, line: int) -> SpecError:
    return SpecError(
        f"{file}: line {line}: not text in UTF-8",
        hints=("a compressed or binary file has to be unpacked first",),
    )
