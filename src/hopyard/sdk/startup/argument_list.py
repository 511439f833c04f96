"""The list of a process's arguments, which notices whether the process looks at them."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType
    from typing import Any

# These keep a copy of the arguments for their own records.
_RECORDERS = frozenset({"wandb", "comet_ml", "neptune", "sentry_sdk"})
_watched: list[WatchedArguments] = []


class WatchedArguments(list):  # type: ignore[type-arg]
    """A list in the place of `sys.argv`. It calls `on_read` at the first access to more than the name of the
    program. Its length shows no argument. A copy is a plain list."""

    is_read = False
    on_read: Callable[[], object] = staticmethod(lambda: None)

    def notice(self) -> None:
        """Remembers an access of the caller's caller."""
        if self.is_read:
            return
        try:
            caller = str(sys._getframe(2).f_globals.get("__name__"))
        except ValueError:  # a program in C
            caller = ""
        if caller.partition(".")[0] not in _RECORDERS:
            self.is_read = True
            self.on_read()

    def plain(self) -> list[Any]:
        """Returns the items; this is no access."""
        return [list.__getitem__(self, index) for index in range(len(self))]

    def __getitem__(self, key: Any) -> Any:
        chosen = range(*key.indices(len(self))) if isinstance(key, slice) else (key,)
        if any(chosen):  # the first is the name of the program
            self.notice()
        return list.__getitem__(self, key)

    def __iter__(self) -> Iterator[Any]:
        self.notice()
        return list.__iter__(self)

    def __radd__(self, other: Any) -> Any:
        self.notice()
        return NotImplemented  # a list adds it by itself

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.notice()
        return (list, (self.plain(),))


def _noticed(name: str) -> Any:
    method: Any = getattr(list, name)

    def noticed(self: Any, *arguments: Any, **named: Any) -> Any:
        self.notice()
        return method(self, *arguments, **named)

    noticed.__name__ = name
    return noticed


for _name in (
    *("__add__", "__contains__", "__delitem__", "__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__mul__"),
    *("__ne__", "__repr__", "__reversed__", "__rmul__", "copy", "count", "index", "insert", "pop", "remove"),
    *("reverse", "sort"),
):
    setattr(WatchedArguments, _name, _noticed(_name))


def watch_arguments(on_read: Callable[[], object]) -> None:
    """Watches the arguments of this process: `sys.argv`, and `sys.orig_argv` with those of Python."""
    for name in ("argv", "orig_argv"):
        words = getattr(sys, name, None)
        if type(words) is list:
            arguments = WatchedArguments(words)
            arguments.on_read = on_read
            setattr(sys, name, arguments)
            _watched.append(arguments)


def install(module: ModuleType) -> None:
    """Lets PyYAML write the watched list as any other: it refuses classes that it does not know."""
    for name in ("SafeRepresenter", "Representer"):
        getattr(module, name).add_representer(WatchedArguments, module.SafeRepresenter.represent_list)


def own_arguments() -> list[str]:
    """Returns the present words of `sys.argv` behind the name of the program; this is no access."""
    words: Iterable[Any] = sys.argv.plain() if isinstance(sys.argv, WatchedArguments) else sys.argv
    return list(map(str, words))[1:]


def is_watched() -> bool:
    """Returns whether `sys.argv` is the list of the process's start."""
    return isinstance(sys.argv, WatchedArguments)


def are_untouched() -> bool:
    """Returns whether the arguments are watched and were not read until now."""
    return bool(_watched) and not any(arguments.is_read for arguments in _watched)


def release_arguments() -> None:
    """Puts plain lists in the places of the watched ones, which some libraries cannot write to a file."""
    for name in ("argv", "orig_argv"):
        words = getattr(sys, name, None)
        if isinstance(words, WatchedArguments):
            words.is_read = True
            setattr(sys, name, words.plain())


def take_arguments() -> list[str]:
    """Returns the words for a parser. Its options show what the process reads."""
    for arguments in _watched:
        arguments.is_read = True
    return own_arguments()
