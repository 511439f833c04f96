"""Records which parameters of the run a process has read, in the file `param-reads` of its replica."""

from __future__ import annotations

import os

from .argument_list import are_untouched, own_arguments, release_arguments, watch_arguments
from .import_hooks import call_guarded

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
    an interpreter, `copy` for a copy of all variables, `arguments` for a look at the process's arguments."""
    new = [name for name in names if name not in _recorded]
    if not new and kind in _recorded:
        return
    _recorded.add(kind)
    _recorded.update(new)
    _append_line({"by": kind, "read": new})


def _append_line(values: dict[str, object]) -> None:
    import json

    folder = os.environ.get("HOPYARD_REPLICA_DIR")
    if not folder or os.environ.get("HOPYARD_CONSOLE"):
        return
    line = json.dumps(values) + "\n"
    descriptor = os.open(os.path.join(folder, "param-reads"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def watch_held_arguments() -> None:
    """Records the parameters that the arguments of this process contain, and watches whether it looks at
    them. A process that never does has certainly not read these."""
    held = [name for name, word in given_params().items() if _is_held(name, word)]
    if held:
        watch_arguments(lambda: call_guarded("sys.argv", record, "arguments"))
        _append_line({"by": "holder", "held": held, "process": os.getpid()})


def _is_held(name: str, word: str) -> bool:
    arguments = own_arguments()
    heads = {plain_name(each.partition("=")[0]) for each in arguments}
    if plain_name(word or name) in heads:
        return True
    return not word and (_value_text(name) in arguments or any(_has_key(each, name) for each in arguments))


def _value_text(name: str) -> str | None:
    """Returns the text of a parameter without a known option."""
    import json

    values = json.loads(os.environ.get("HOPYARD_PARAMS") or "{}")
    return str(values[name]) if name in values else None


def _has_key(text: str, name: str) -> bool:
    """Returns whether the text is a JSON object with this key."""
    import json

    return text.startswith("{") and json.dumps(name) in text


def record_parsed(known: Iterable[str], arguments: Iterable[str] | None, *, complete: bool = True) -> None:
    """Records the given parameters that a parser knows. known: names and option words of the parser.
    arguments: the words that it parsed; None means those of the process. complete: whether it is the only
    parser of them.

    Words that are not of the process's own command line belong to another parser, or to the code: nothing
    has looked at that command line then. A command line without any of the given options is that of another
    program, which the script may have started.
    """
    own = own_arguments()
    if are_untouched() or (arguments is not None and not set(map(str, arguments)) & set(own)):
        return
    release_arguments()  # a parser has read them
    heads = {plain_name(word.partition("=")[0]) for word in own}
    options = {plain_name(word) for word in given_params().values() if word}
    known_names = {plain_name(name) for name in known}
    read = [
        name
        for name, word in given_params().items()
        if plain_name(name) in known_names or (word and plain_name(word) in known_names)
    ]
    if complete:
        record("parser" if not options or options & heads else "other", read)
    else:
        _append_line({"by": "launcher", "process": os.getpid(), "read": read})


def plain_name(word: str) -> str:
    """Returns the name without leading dashes; `-` and `_` are the same."""
    return word.lstrip("-+").replace("-", "_")
