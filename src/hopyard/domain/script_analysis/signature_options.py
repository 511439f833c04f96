"""Options of a Typer function: by its parameters, and by `typer.Option` and `typer.Argument`."""

from __future__ import annotations

import ast

from hopyard.domain.param_format import OptionKind, ParamFormat, ParamStyle, ScriptOption
from hopyard.domain.script_analysis.source_tree import SourceTree
from hopyard.domain.script_analysis.typed_options import find_definition, type_text

_DECLARED = ("typer.Option", "typer.Argument")


def find_typer(sources: list[SourceTree]) -> ParamFormat | None:
    """Returns the options of `typer.run(function)`, or of the only command of a Typer app."""
    for source in sources:
        names = [name for name, _ in source.calls()]
        if not any(name in ("typer.run", "typer.Typer") for name in names):
            continue
        functions = [
            ast.unparse(call.args[0]) for name, call in source.calls() if name == "typer.run" and call.args
        ] or [
            node.name
            for node in ast.walk(source.tree)
            if isinstance(node, ast.FunctionDef)
            and any(ast.unparse(d).partition("(")[0].endswith(".command") for d in node.decorator_list)
        ]
        definition = find_definition(sources, functions[0]) if len(functions) == 1 else None
        options: dict[str, ScriptOption] = {}
        if isinstance(definition, ast.FunctionDef):
            options = _function_options(source, definition)
        return ParamFormat(
            ParamStyle.ARGS, f"Typer in {source.path}", options=options, complete=definition is not None
        )
    return None


def _function_options(source: SourceTree, function: ast.FunctionDef) -> dict[str, ScriptOption]:
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    pairs = zip(
        [*plain, *arguments.kwonlyargs],
        [*defaults, *arguments.defaults, *arguments.kw_defaults],
        strict=True,
    )
    return {
        argument.arg: _option(source, argument, default)
        for argument, default in pairs
        if not type_text(argument.annotation).endswith("Context")
    }


def _option(source: SourceTree, argument: ast.arg, default: ast.expr | None) -> ScriptOption:
    annotation = argument.annotation
    calls = [default, *ast.walk(annotation)] if annotation is not None else [default]
    declared = next(
        (each for each in calls if isinstance(each, ast.Call) and source.resolve(each.func) in _DECLARED),
        None,
    )
    kind = type_text(annotation)
    if source.resolve(declared.func) == "typer.Argument" if declared is not None else default is None:
        return ScriptOption(
            argument.arg,
            OptionKind.POSITIONAL,
            numeric=kind in ("int", "float"),
            text=kind in ("str", "Path"),
        )
    words = [
        each.value
        for each in (declared.args if declared is not None else ())
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.startswith("-")
    ]
    word = f"--{argument.arg.replace('_', '-')}"
    long = next((each for each in words if each.startswith("--")), words[0] if words else word)
    aliases = tuple(each for each in words if each != long)
    if kind == "bool":
        on, slash, off = (part.strip() for part in long.partition("/"))
        off = off if slash else "" if words else f"--no-{word[2:]}"
        return ScriptOption(on, OptionKind.FLAG, off, aliases=aliases)
    is_list = kind.lower().startswith("list[")
    return ScriptOption(
        long,
        OptionKind.REPEATED if is_list else OptionKind.VALUE,
        numeric=kind in ("int", "float"),
        aliases=aliases,
        text=kind in ("str", "Path"),
    )
