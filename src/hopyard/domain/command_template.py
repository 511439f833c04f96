"""Placeholders in a command: `{lr}` and `${lr}` are replaced by the values of parameters.

`{dataset:mnist}` is the folder of a dataset, `{port:8888}` a port. `{{lr}}` is the text `{lr}`. A
word that is not a plain template, such as a shell script with `${HOME}`, keeps the names that no parameter
has.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from hopyard.domain.suggest import close_names
from hopyard.errors import SpecError

DATASET_PREFIX, PORT_PREFIX = "dataset:", "port:"
_NAME = r"(?:dataset:)?[A-Za-z_][A-Za-z0-9_.-]*|port:[a-z0-9][a-z0-9-]*"
_PLACEHOLDER = re.compile(rf"\{{\{{({_NAME})\}}\}}|\$?\{{({_NAME})\}}")
# `{lr}`, `--lr={lr}`, `model.lr=${lr}`: no other meaning is likely, so the name must be known
_PLAIN = re.compile(rf"(?:[\w.+-]+=)?\$?\{{({_NAME})\}}", re.ASCII)


def placeholder_names(words: Iterable[str]) -> list[str]:
    """Returns the name of each placeholder, in order, once."""
    found = (name for word in words for _, name in _PLACEHOLDER.findall(word) if name)
    return list(dict.fromkeys(found))


def plain_names(words: Iterable[str]) -> list[str]:
    """Returns the names of the words that are a placeholder, with an option before it at most."""
    return [found[1] for word in words if (found := _PLAIN.fullmatch(word))]


def is_template(word: str) -> bool:
    """Returns whether the word has a placeholder, or the text of one: `{{lr}}`."""
    return _PLACEHOLDER.search(word) is not None


def fill_template(words: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """Returns the words with each placeholder that `values` names replaced. Others remain unchanged."""
    return [_fill_word(word, values) for word in words]


def check_template(words: Sequence[str], names: Collection[str], *, what: str) -> None:
    """Raises SpecError for a word that is a placeholder of an unknown name. Datasets and ports
    are not checked."""
    for word in words:
        plain = _PLAIN.fullmatch(word)
        if plain is None or plain[1] in names or plain[1].startswith((DATASET_PREFIX, PORT_PREFIX)):
            continue
        close = close_names(plain[1], names, limit=1)
        raise SpecError(
            f"{what}: `{word}` names no parameter of the run",
            hints=(
                f"did you mean `{{{close[0]}}}`?" if close else f"give its value: `-p {plain[1]}=…`",
                f"write `{{{{{plain[1]}}}}}` for the text `{{{plain[1]}}}`",
            ),
        )


def _fill_word(word: str, values: Mapping[str, str]) -> str:
    if "{" not in word:
        return word
    is_plain = _PLAIN.fullmatch(word.replace("{{", "{").replace("}}", "}")) is not None

    def replacement(match: re.Match[str]) -> str:
        escaped, name = match[1], match[2]
        if escaped:
            is_name = is_plain or escaped in values or escaped.startswith((DATASET_PREFIX, PORT_PREFIX))
            return f"{{{escaped}}}" if is_name else match[0]
        return values.get(name, match[0])

    return _PLACEHOLDER.sub(replacement, word)
