"""Observes the parsers of command lines: which parameters of the run they know."""

from __future__ import annotations

import sys

from .argument_list import is_watched, take_arguments
from .import_hooks import call_guarded
from .param_reads import given_params, record, record_parsed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_REMAINDER = "..."
# `os.environ.get` is in `_collections_abc`, which names itself `collections.abc`
_ENVIRON_MODULES = (__name__, "os", "_collections_abc", "collections.abc")


def install(module: ModuleType) -> None:
    """Installs the observer of this library."""
    {
        "argparse": _watch_argparse,
        "click.core": _watch_click,
        "absl.flags._flagvalue": _watch_absl,
        "fire.core": _watch_fire,
        "hydra._internal.config_loader_impl": _watch_hydra,
        "omegaconf.omegaconf": _watch_omegaconf,
    }[module.__name__](module)


def _watch_argparse(module: Any) -> None:
    parser_class = module.ArgumentParser
    parse = parser_class.parse_known_args

    def parse_known_args(self: Any, args: Any = None, namespace: Any = None, *rest: Any, **named: Any) -> Any:
        # this library's own look at the arguments shows less than the options that its parser knows
        words = take_arguments() if args is None and is_watched() else args
        result = parse(self, words, namespace, *rest, **named)
        call_guarded("argparse", _record_argparse, self, args, result)
        return result

    parser_class.parse_known_args = parse_known_args


def _record_argparse(parser: Any, args: Any, result: Any) -> None:
    actions = parser._actions
    known = [word for action in actions for word in (action.dest, *action.option_strings)]
    if any(action.nargs == _REMAINDER for action in actions):
        # perhaps a launcher: the script that it starts may have a parser of its own
        record_parsed(known, None if args is None else list(args), complete=False)
        return
    namespace, rest = result
    for action in actions:  # words such as `lr=0.1`, which the script reads by itself
        values = getattr(namespace, action.dest, None)
        known += _left_names(values) if isinstance(values, list) else ()
    record_parsed([*known, *_left_names(rest)], None if args is None else list(args))


def _watch_click(module: Any) -> None:
    command_class = module.Command
    parse = command_class.parse_args

    def parse_args(self: Any, ctx: Any, args: Any) -> Any:
        words = list(args)
        result = parse(self, ctx, args)
        known = [name for param in self.params for name in (param.name or "", *param.opts)]
        if self.ignore_unknown_options or self.allow_extra_args:
            known += _left_names(words)  # the script reads them by itself
        call_guarded("click", record_parsed, known, words)
        return result

    command_class.parse_args = parse_args


def _watch_absl(module: Any) -> None:
    values_class = module.FlagValues
    call = values_class.__call__

    def parse(self: Any, argv: Any, *rest: Any, **named: Any) -> Any:
        result = call(self, argv, *rest, **named)
        call_guarded("absl.flags", lambda: record_parsed([*self, *_left_names(result[1:])], list(argv)[1:]))
        return result

    values_class.__call__ = parse


def _watch_fire(module: Any) -> None:
    call = module._Fire  # raises an error for words that nothing takes

    def parse(component: Any, args: Any, *rest: Any, **named: Any) -> Any:
        call_guarded("fire", lambda: record_parsed(_names_in(list(args)), list(args)))
        return call(component, args, *rest, **named)

    module._Fire = parse


def _watch_hydra(module: Any) -> None:
    loader_class = module.ConfigLoaderImpl
    load = loader_class.load_configuration

    def load_configuration(self: Any, config_name: Any, overrides: Any, *rest: Any, **named: Any) -> Any:
        result = load(self, config_name, overrides, *rest, **named)
        call_guarded("hydra", lambda: record_parsed(_names_in(list(overrides)), list(overrides)))
        return result

    loader_class.load_configuration = load_configuration


def _watch_omegaconf(module: Any) -> None:
    config_class = module.OmegaConf
    read = config_class.from_cli

    def from_cli(args_list: Any = None) -> Any:
        result = read(args_list)
        words = sys.argv[1:] if args_list is None else list(args_list)
        call_guarded("omegaconf", lambda: record_parsed(_names_in(words), words))
        return result

    config_class.from_cli = staticmethod(from_cli)


def _names_in(words: list[str]) -> list[str]:
    return [str(word).partition("=")[0] for word in words]


def _left_names(words: list[Any]) -> list[str]:
    """Returns the names in words that a parser leaves to the script: `--lr` and `lr=0.1`."""
    return _names_in([word for word in map(str, words) if word.startswith("-") or "=" in word])


def watch_environ() -> None:
    """Records parameters that the process reads as variables."""
    import os

    given = given_params()
    variables = {word or name: name for name, word in given.items()}
    base = type(os.environ)
    watched = {*variables, "HOPYARD_PARAMS"}
    previous, copied = [""], [False]  # the variable read before, and whether that was for a copy

    class WatchedEnviron(base):  # type: ignore[misc, valid-type]
        def __getitem__(self, key: str) -> str:
            before = previous[0]
            is_copied = (
                key in watched
                and (copied[0] or before not in watched)
                and _follows(list(base.__iter__(self)), before, key)
            )
            if is_copied:  # a copy of all variables reads none of them in particular
                call_guarded("os.environ", record, "copy")
            elif key in variables:
                call_guarded("os.environ", record, "variable", [variables[key]])
            elif key == "HOPYARD_PARAMS" and not _is_called_by_hopyard():
                import json

                text = base.__getitem__(self, key)
                call_guarded("os.environ", lambda: record("variable", list(json.loads(text))))
            previous[0], copied[0] = key, is_copied  # a record has read other variables
            return str(base.__getitem__(self, key))

        def copy(self) -> dict[str, str]:
            call_guarded("os.environ", record, "copy")
            return {key: base.__getitem__(self, key) for key in self}

    os.environ.__class__ = WatchedEnviron


def _follows(names: list[str], before: str, key: str) -> bool:
    position = names.index(key) if key in names else 0
    return position > 0 and names[position - 1] == before


def _is_called_by_hopyard() -> bool:
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in _ENVIRON_MODULES:
        frame = frame.f_back  # type: ignore[assignment]
    names = {} if frame is None else frame.f_globals
    name = names.get("__name__")
    if name == "__main__":  # `python -m hopyard.sdk.notebook`
        name = getattr(names.get("__spec__"), "name", "")
    return str(name).startswith("hopyard")


def watch_file(path: str) -> None:
    """Records all given parameters once the process opens this file."""
    import os

    wanted = os.path.abspath(path)

    def audit(event: str, arguments: Any) -> None:
        if event == "open" and isinstance(arguments[0], str) and os.path.abspath(arguments[0]) == wanted:
            call_guarded("open", record, "file", list(given_params()))

    if hasattr(sys, "addaudithook"):
        sys.addaudithook(audit)
