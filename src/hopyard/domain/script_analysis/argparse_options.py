"""Options that a script declares by argparse, with its subcommands."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace

from hopyard.domain.param_format import OptionKind, OptionPlace, ParamFormat, ParamStyle, ScriptOption
from hopyard.domain.script_analysis.source_tree import SourceTree, constant_text, expression_text, list_count

_SKIPPED_ACTIONS = ("help", "version")
_FLAG_ACTIONS = ("store_true", "store_const", "append_const")
_REMAINDERS = ("REMAINDER", "...")
_TEXT_TYPES = ("str", "Path")
_PLAIN_KINDS = (OptionKind.POSITIONAL, OptionKind.REMAINDER)  # words without an option before them


@dataclass(slots=True)
class _ParserOptions:
    """What the calls of a script declare. parsers: by the variable of a parser or a group, the place of its
    options if the script has subcommands. passed: by the call, the place of an option that a function adds to
    its parameter. takes_many: whether positional words may be of any number."""

    options: dict[str, ScriptOption] = field(default_factory=dict)
    parsers: dict[str, OptionPlace] = field(default_factory=dict)
    passed: dict[ast.Call, OptionPlace] = field(default_factory=dict)
    has_subcommands: bool = False
    takes_many: bool = False

    def placed(self) -> dict[str, ScriptOption]:
        """Returns the options with their places. Positional words of any number would end at an option that
        is between them, so all options precede them."""
        if self.has_subcommands:
            return self.options
        place = OptionPlace.FIRST if self.takes_many else OptionPlace.ANY
        return {
            name: option if option.kind in _PLAIN_KINDS else replace(option, place=place)
            for name, option in self.options.items()
        }


def find_argparse(sources: list[SourceTree]) -> ParamFormat | None:
    """Returns the options of all calls of `add_argument`. A script with an option that takes all other words
    may be a launcher, which hands them to another script."""
    declared = _ParserOptions()
    place, complete = "", True
    local_functions = {
        node.name for source in sources for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef)
    }
    for source in sources:
        called = 0
        declared.parsers = _parser_places(source)
        declared.passed = _passed_places(source, declared.parsers)
        for name, call in source.calls():
            is_parser = name.endswith(("ArgumentParser", ".add_argument_group"))
            if name.endswith("ArgumentParser"):
                place = place or source.path
            if name.rpartition(".")[2] == "add_argument":
                called += 1
                complete &= _add_argument(declared, call)
            elif name.rpartition(".")[2] == "add_subparsers":
                declared.has_subcommands, complete = True, False
                dest = next((constant_text(k.value) for k in call.keywords if k.arg == "dest"), "")
                if dest:
                    declared.options[dest] = ScriptOption(dest, OptionKind.POSITIONAL, text=True)
            elif not is_parser and name.rpartition(".")[2] not in local_functions:
                # a library that gets the parser may add arguments
                complete &= not any(isinstance(a, ast.Name) and "parser" in a.id.lower() for a in call.args)
        referenced = sum(
            isinstance(node, ast.Attribute) and node.attr == "add_argument" for node in ast.walk(source.tree)
        )
        complete &= called == referenced and _drops_rest(source)
    if not place:
        return None
    return ParamFormat(ParamStyle.ARGS, f"argparse in {place}", options=declared.placed(), complete=complete)


def _parser_places(source: SourceTree) -> dict[str, OptionPlace]:
    """Returns the place of the options of each parser and group, by its variable: those of the parser itself
    precede the name of a subcommand. A variable of both kinds has no place."""
    places: dict[str, OptionPlace] = {}
    groups: dict[str, str] = {}
    parents: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and source.resolve(node.func).endswith(".add_parser"):
            lists = [k.value for k in node.keywords if k.arg == "parents"]
            parents |= {each.id for value in lists for each in ast.walk(value) if isinstance(each, ast.Name)}
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            continue
        method = source.resolve(node.value.func).rpartition(".")[2]
        for target in node.targets:
            if not isinstance(target, ast.Name):
                continue
            if method.endswith("ArgumentParser") or method == "add_parser":
                place = OptionPlace.LAST if method == "add_parser" else OptionPlace.FIRST
                places[target.id] = place if places.get(target.id, place) is place else OptionPlace.ANY
            elif method.endswith("_group"):
                groups[target.id] = _receiver(node.value)
    places |= dict.fromkeys(parents, OptionPlace.LAST)
    return places | {group: places[parent] for group, parent in groups.items() if parent in places}


def _passed_places(source: SourceTree, places: dict[str, OptionPlace]) -> dict[ast.Call, OptionPlace]:
    """Returns the place of the options that functions add to the parsers that they get, by the call. It is
    that of the parsers which the script passes, if all have the same one."""
    calls: dict[str, list[ast.Call]] = {}
    for name, call in source.calls():
        calls.setdefault(name, []).append(call)
    found: dict[ast.Call, OptionPlace] = {}
    for function in ast.walk(source.tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        plain = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        names = [*plain, *(argument.arg for argument in function.args.kwonlyargs)]
        own: dict[str, OptionPlace] = {}
        for position, name in enumerate(names):
            given = {
                _place_of(value, source, places)
                for call in calls.get(function.name, ())
                for value in (
                    *call.args[position : position + 1 if name in plain else position],
                    *(keyword.value for keyword in call.keywords if keyword.arg == name),
                )
            }
            own[name] = given.pop() if len(given) == 1 else OptionPlace.ANY
        inner = list(ast.walk(function))
        for node in inner:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                method = source.resolve(node.value.func).rpartition(".")[2]
                if method.endswith("_group") and _receiver(node.value) in own:
                    own |= dict.fromkeys(names, own[_receiver(node.value)])
                elif method.endswith("ArgumentParser"):  # `parser = parser or ArgumentParser()`
                    own = {name: place for name, place in own.items() if name not in names}
        found |= {
            node: own[_receiver(node)]
            for node in inner
            if isinstance(node, ast.Call) and _receiver(node) in own
        }
    return found


def _place_of(value: ast.expr, source: SourceTree, places: dict[str, OptionPlace]) -> OptionPlace:
    """Returns the place of the options of a parser that a function gets."""
    if isinstance(value, ast.Call) and source.resolve(value.func).endswith(".add_parser"):
        return OptionPlace.LAST
    return places.get(value.id, OptionPlace.ANY) if isinstance(value, ast.Name) else OptionPlace.ANY


def _receiver(call: ast.Call) -> str:
    """Returns the variable of the method that is called; "" for another expression."""
    target = call.func.value if isinstance(call.func, ast.Attribute) else None
    return target.id if isinstance(target, ast.Name) else ""


def _drops_rest(source: SourceTree) -> bool:
    """Returns whether the script ignores the words that `parse_known_args` returns."""
    calls, dropped = 0, 0
    loaded = {
        node.id
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    for node in ast.walk(source.tree):
        calls += isinstance(node, ast.Attribute) and node.attr == "parse_known_args"
        if isinstance(node, ast.Subscript):
            dropped += _parses_known(node.value) and expression_text(node.slice) == "0"
        elif isinstance(node, ast.Assign) and _parses_known(node.value) and len(node.targets) == 1:
            names = node.targets[0].elts if isinstance(node.targets[0], (ast.Tuple, ast.List)) else []
            dropped += len(names) == 2 and isinstance(names[1], ast.Name) and names[1].id not in loaded
    return calls == dropped


def _parses_known(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "parse_known_args"
    )


def _add_argument(declared: _ParserOptions, call: ast.Call) -> bool:
    """Adds the option of a call. Returns False where the syntax tree does not show it."""
    words = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if not words or len(words) != len(call.args) or None in keywords:
        return False
    long = [word for word in words if word.startswith("--")] or words
    action = expression_text(keywords.get("action"))
    if action in _SKIPPED_ACTIONS:
        return True
    options = declared.options
    dest = constant_text(keywords.get("dest")) or long[0].lstrip("-").replace("-", "_")
    word, aliases = long[0], tuple(other for other in words if other != long[0])
    before = options.get(dest)
    nargs = expression_text(keywords.get("nargs"))
    type_name = expression_text(keywords["type"]) if "type" in keywords else "str"
    off, kind = "", OptionKind.VALUE
    if action in _FLAG_ACTIONS:
        kind, off = OptionKind.FLAG, before.off if before is not None else ""
    elif action == "store_false":
        kind, word, off = OptionKind.FLAG, before.word if before is not None else "", word
    elif action == "BooleanOptionalAction":
        kind, off = OptionKind.FLAG, f"--no-{word[2:]}"
    elif action == "count":
        kind = OptionKind.COUNT
    elif nargs in _REMAINDERS:
        kind, declared.takes_many = OptionKind.REMAINDER, True
    elif not word.startswith("-"):
        kind = OptionKind.POSITIONAL
        declared.takes_many |= nargs != ""
    elif "nargs" in keywords and nargs != "?":
        kind = OptionKind.LIST
    elif action == "append":
        kind = OptionKind.REPEATED
    options[dest] = ScriptOption(
        word,
        kind,
        off,
        type_name in ("int", "float"),
        aliases,
        text=type_name in _TEXT_TYPES and kind not in (OptionKind.FLAG, OptionKind.COUNT),
        place=OptionPlace.ANY
        if kind in _PLAIN_KINDS
        else declared.passed.get(call, declared.parsers.get(_receiver(call), OptionPlace.ANY)),
        count=list_count(nargs) if kind is OptionKind.LIST else 0,
    )
    return True
