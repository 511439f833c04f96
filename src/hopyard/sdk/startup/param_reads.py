"""Records which parameters of the run a process has read, in the file `param-reads` of its replica."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_recorded: set[str] = set()


def given_params() -> dict[str, str]:
    """Returns the parameters in the command or the variables, with the option that takes each; "" if that is
    unknown."""
    import json

    try:
        given = json.loads(os.environ.get("HOPYARD_PARAMS_GIVEN") or "{}")
    except ValueError:
        return {}
    return {str(name): str(word) for name, word in given.items()} if isinstance(given, dict) else {}


def record(kind: str, names: Iterable[str] = ()) -> None:
    """Appends one line. kind: `parser` for a parser of the script's own arguments, `python` for the start of
    an interpreter, `copy` for a copy of all variables."""
    import json

    new = [name for name in names if name not in _recorded]
    if not new and kind in _recorded:
        return
    _recorded.add(kind)
    _recorded.update(new)
    folder = os.environ.get("HOPYARD_REPLICA_DIR")
    if not folder:
        return
    line = json.dumps({"by": kind, "read": new}) + "\n"
    descriptor = os.open(os.path.join(folder, "param-reads"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def record_parsed(known: Iterable[str], arguments: Iterable[str] | None, *, complete: bool = True) -> None:
    """Records the given parameters that a parser knows. known: names and option words of the parser.
    arguments: the words that it parsed; None means those of the process. complete: whether it is the only
    parser of them.

    Words that are not of the process's own command line belong to another parser. A command line without
    any of the given options is that of another program, which the script may have started.
    """
    words = sys.argv[1:] if arguments is None else [str(word) for word in arguments]
    if arguments is not None and not set(words) & set(sys.argv[1:]):
        return
    heads = {plain_name(word.partition("=")[0]) for word in sys.argv[1:]}
    options = {plain_name(word) for word in given_params().values() if word}
    known_names = {plain_name(name) for name in known}
    read = [
        name
        for name, word in given_params().items()
        if plain_name(name) in known_names or (word and plain_name(word) in known_names)
    ]
    record("parser" if complete and (not options or options & heads) else "other", read)


def plain_name(word: str) -> str:
    """Returns the name without leading dashes; `-` and `_` are the same."""
    return word.lstrip("-+").replace("-", "_")
