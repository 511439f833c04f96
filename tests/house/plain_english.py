"""Counts the words and sentences that the style guide of the repository replaces, per area of the repository.

`python -m tests.house.plain_english` writes today's counts as the record. The record may only fall.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.house.tree import GENERATED, PACKAGE, ROOT

RECORD = Path(__file__).with_name("plain_english.toml")
MAX_WORDS = 25
LONG = "long sentences"
PHRASES = (
    "anew",
    "asks for",
    "everybody",
    "goes on",
    "lies",
    "nobody",
    "said",
    "stands",
    "tells",
    "told",
    "whatever",
    "who",
    "whoever",
    "whom",
    "whose",
)
_PHRASE = re.compile(rf"\b({'|'.join(PHRASES)})\b", re.IGNORECASE)
_TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|\'\'\'(?:[^\\]|\\.)*?\'\'\'|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|#[^\n]*',
    re.DOTALL,
)
_CODE_BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_NEW_BLOCK = re.compile(r"\s*([-*|<#>:]|\d+\. |!!!)|\s*$")
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`*\[0-9])")
_GENERATED = ("cli.md",)


def counts() -> dict[str, dict[str, int]]:
    """Returns the number of each phrase and of the long sentences, by area."""
    sources = "\n".join(_texts_of_sources())
    docs = [path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")) if path.name not in _GENERATED]
    readme = [(ROOT / "README.md").read_text()]
    return {
        "src": _phrases(sources),
        "docs": _phrases("\n".join(docs)) | {LONG: sum(map(_long_sentences, docs))},
        "readme": _phrases("\n".join(readme)) | {LONG: sum(map(_long_sentences, readme))},
    }


def recorded() -> dict[str, dict[str, int]]:
    return tomllib.loads(RECORD.read_text())


def write(values: dict[str, dict[str, int]]) -> None:
    """Writes `found` as the record, in the format of the data file."""
    lines = ["# Written by `python -m tests.house.plain_english`. The numbers may only fall."]
    for area, numbers in values.items():
        lines += ["", f"[{area}]", *(f'"{phrase}" = {number}' for phrase, number in sorted(numbers.items()))]
    RECORD.write_text("\n".join(lines) + "\n")


def _texts_of_sources() -> Iterator[str]:
    """Docstrings, messages and comments: every literal text and every comment. A generated module repeats the
    texts of the server."""
    for path in sorted(PACKAGE.rglob("*.py")):
        code = path.read_text()
        if GENERATED not in code:
            yield from _TEXT.findall(code)


def _phrases(text: str) -> dict[str, int]:
    result = dict.fromkeys(PHRASES, 0)
    for match in _PHRASE.finditer(text):
        result[match.group().lower()] += 1
    return result


def _long_sentences(page: str) -> int:
    block: list[str] = []
    code_blocks: list[str] = []
    for line in _CODE_BLOCK.sub("", page).splitlines():
        if _NEW_BLOCK.match(line):
            code_blocks.append(" ".join(block))
            block = []
        if not line.lstrip().startswith(("|", "<", "#")):
            block.append(line.strip())
    code_blocks.append(" ".join(block))
    sentences = (sentence for text in code_blocks for sentence in _SENTENCE_END.split(text))
    return sum(len(sentence.split()) > MAX_WORDS for sentence in sentences)


if __name__ == "__main__":
    write(counts())
