"""Options that a script declares by calls: argparse, click, absl, jsonargparse."""

from __future__ import annotations

import ast

from hopyard.domain.param_format import OptionKind, ParamFormat, ParamStyle, ScriptOption
from hopyard.domain.script_analysis.source_tree import SourceTree

_SKIPPED_ACTIONS = ("help", "version", "count", "append", "append_const", "store_const", "extend")


def find_argparse(sources: list[SourceTree]) -> ParamFormat | None:
    """Returns the options of all calls of `add_argument`; None for a launcher, which hands the rest of its
    arguments on."""
    options: dict[str, ScriptOption] = {}
    place, complete = "", True
    local_functions = {
        node.name for source in sources for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef)
    }
    for source in sources:
        called = 0
        for name, call in source.calls():
            is_parser = name.endswith(("ArgumentParser", ".add_argument_group"))
            if name.endswith("ArgumentParser"):
                place = place or source.path
            if name.rpartition(".")[2] == "add_argument":
                called += 1
                nargs = next((_text(k.value) for k in call.keywords if k.arg == "nargs"), "")
                if nargs in ("REMAINDER", "..."):
                    return None
                complete &= _add_argument(options, call)
            elif name.rpartition(".")[2] == "add_subparsers":
                complete = False
            elif not is_parser and name.rpartition(".")[2] not in local_functions:
                # a library that gets the parser may add arguments
                complete &= not any(isinstance(a, ast.Name) and "parser" in a.id.lower() for a in call.args)
        referenced = sum(
            isinstance(node, ast.Attribute) and node.attr == "add_argument" for node in ast.walk(source.tree)
        )
        complete &= called == referenced and _drops_rest(source)
    if not place:
        return None
    return ParamFormat(ParamStyle.ARGS, f"argparse in {place}", options=options, complete=complete)


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
            dropped += _parses_known(node.value) and _text(node.slice) == "0"
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


def _add_argument(options: dict[str, ScriptOption], call: ast.Call) -> bool:
    """Adds the option of a call. Returns False where the syntax tree does not show it."""
    words = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if not words or len(words) != len(call.args) or None in keywords:
        return False
    long = [word for word in words if word.startswith("--")] or words
    action = _text(keywords.get("action"))
    if action in _SKIPPED_ACTIONS:
        return True
    dest = _constant(keywords.get("dest")) or long[0].lstrip("-").replace("-", "_")
    word, aliases = long[0], tuple(other for other in words if other != long[0])
    before = options.get(dest)
    if action == "store_true":
        off = before.off if before is not None else ""
        options[dest] = ScriptOption(word, OptionKind.FLAG, off, aliases=aliases)
    elif action == "store_false":
        on = before.word if before is not None else ""
        options[dest] = ScriptOption(on, OptionKind.FLAG, word, aliases=aliases)
    elif action == "BooleanOptionalAction":
        options[dest] = ScriptOption(word, OptionKind.FLAG, f"--no-{word[2:]}", aliases=aliases)
    else:
        kind = OptionKind.VALUE
        if not word.startswith("-"):
            kind = OptionKind.POSITIONAL
        elif keywords.get("nargs") is not None and _text(keywords["nargs"]) != "?":
            kind = OptionKind.LIST
        numeric = _text(keywords.get("type")) in ("int", "float")
        options[dest] = ScriptOption(word, kind, numeric=numeric, aliases=aliases)
    return True


def find_click(sources: list[SourceTree]) -> ParamFormat | None:
    """Returns the options of click's decorators."""
    options: dict[str, ScriptOption] = {}
    place, complete = "", True
    for source in sources:
        for name, call in source.calls():
            if name not in ("click.option", "click.argument"):
                settings = [keyword.arg for keyword in call.keywords]
                if name == "click.group" or "context_settings" in settings:
                    complete = False  # other commands, or words that the script reads by itself
                continue
            place = place or source.path
            words = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            if not words:
                complete = False
                continue
            keywords = {keyword.arg: keyword.value for keyword in call.keywords}
            if name == "click.argument":
                options[words[0].lower()] = ScriptOption(words[0], OptionKind.POSITIONAL)
                continue
            long = [word for word in words if word.startswith("--")] or words
            word, _, off = long[0].partition("/")
            given = [other for other in words if not other.startswith("-")]
            dest = given[0] if given else word.lstrip("-").replace("-", "_").lower()
            is_flag = bool(off) or _text(keywords.get("is_flag")) == "True"
            aliases = tuple(other for other in words if other.startswith("-") and other != long[0])
            numeric = _text(keywords.get("type")) in ("int", "float")
            kind = OptionKind.FLAG if is_flag else OptionKind.VALUE
            if _text(keywords.get("multiple")) == "True":
                kind = OptionKind.REPEATED
            elif not is_flag and _text(keywords.get("nargs")) not in ("", "1"):
                kind = OptionKind.LIST
            options[dest] = ScriptOption(word.strip(), kind, off.strip(), numeric, aliases)
    if not place:
        return None
    return ParamFormat(ParamStyle.ARGS, f"click in {place}", options=options, complete=complete)


def find_absl(sources: list[SourceTree]) -> ParamFormat | None:
    """Returns the flags of `absl.flags.DEFINE_…`."""
    options: dict[str, ScriptOption] = {}
    place = ""
    for source in sources:
        for name, call in source.calls():
            if not name.startswith("absl.flags.DEFINE_") or not call.args:
                continue
            place = place or source.path
            flag = _constant(call.args[0])
            if flag and name.endswith(("bool", "boolean")):
                options[flag] = ScriptOption(f"--{flag}", OptionKind.FLAG, f"--no{flag}")
            elif flag:
                numeric = name.endswith(("float", "integer"))
                options[flag] = ScriptOption(f"--{flag}", OptionKind.JOINED, numeric=numeric)
    if not place:
        return None
    return ParamFormat(ParamStyle.ARGS, f"absl flags in {place}", options=options, default=OptionKind.JOINED)


def find_jsonargparse(sources: list[SourceTree]) -> ParamFormat | None:
    """Finds jsonargparse and LightningCLI. Their options are names with dots: `--model.lr=0.1`."""
    for source in sources:
        for name, _ in source.calls():
            last = name.rpartition(".")[2]
            if last == "LightningCLI" or name in ("jsonargparse.CLI", "jsonargparse.auto_cli"):
                return ParamFormat(ParamStyle.ARGS, f"{last} in {source.path}", default=OptionKind.JOINED)
            if name == "jsonargparse.ArgumentParser":
                return ParamFormat(
                    ParamStyle.ARGS, f"jsonargparse in {source.path}", default=OptionKind.JOINED
                )
    return None


def _constant(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _text(node: ast.AST | None) -> str:
    """Returns a constant, or the last name of an expression, as text."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
