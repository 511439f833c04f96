"""Options that a script declares by the fields of a dataclass or the parameters of a function: tyro,
HfArgumentParser, Typer, Fire."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from hopyard.domain.param_format import OptionKind, ParamFormat, ParamStyle, ScriptOption
from hopyard.domain.script_analysis.source_tree import SourceTree

_MAX_DEPTH = 5
_PLAIN_TYPES = ("", "bool", "int", "float", "str", "Path")  # no class of the script
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class TypedField:
    name: str
    type: str  # as written
    required: bool


def find_tyro(sources: list[SourceTree]) -> ParamFormat | None:
    """Returns the options of the first `tyro.cli`; nested dataclasses have names with dots."""
    for source, call in _calls(sources, "tyro.cli"):
        options: dict[str, ScriptOption] = {}
        complete = bool(call.args) and _add_tyro(options, sources, ast.unparse(call.args[0]), "", 0)
        return ParamFormat(ParamStyle.ARGS, f"tyro in {source.path}", options=options, complete=complete)
    return None


def _add_tyro(
    options: dict[str, ScriptOption], sources: list[SourceTree], name: str, prefix: str, depth: int
) -> bool:
    definition = _find_definition(sources, name)
    if definition is None or depth > _MAX_DEPTH:
        return False
    complete = not (isinstance(definition, ast.ClassDef) and definition.bases)
    for field in _fields(definition):
        path = prefix + field.name
        if _find_definition(sources, field.type) is not None:
            complete &= _add_tyro(options, sources, field.type, f"{path}.", depth + 1)
            continue
        word = "--" + path.replace("_", "-")
        if field.type == "bool" and not field.required:
            parent, dot, last = word[2:].rpartition(".")
            options[path] = ScriptOption(word, OptionKind.FLAG, f"--{parent}{dot}no-{last}")
        else:
            options[path] = ScriptOption(word, _kind(field.type), numeric=field.type in ("int", "float"))
    return complete


def find_hf_arguments(sources: list[SourceTree]) -> ParamFormat | None:
    """Returns the options of `HfArgumentParser`; those of classes of the library are not known."""
    for source in sources:
        for name, call in source.calls():
            if name.rpartition(".")[2] != "HfArgumentParser" or not call.args:
                continue
            types = call.args[0].elts if isinstance(call.args[0], (ast.Tuple, ast.List)) else [call.args[0]]
            options: dict[str, ScriptOption] = {}
            complete = True
            for each in types:
                definition = _find_definition(sources, ast.unparse(each))
                complete &= definition is not None and not getattr(definition, "bases", ())
                for field in _fields(definition) if definition is not None else ():
                    numeric = field.type in ("int", "float")
                    options[field.name] = ScriptOption(f"--{field.name}", _kind(field.type), numeric=numeric)
            return ParamFormat(
                ParamStyle.ARGS, f"HfArgumentParser in {source.path}", options=options, complete=complete
            )
    return None


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
        options: dict[str, ScriptOption] = {}
        definition = _find_definition(sources, functions[0]) if len(functions) == 1 else None
        for field in _fields(definition) if definition is not None else ():
            word = f"--{field.name.replace('_', '-')}"
            if field.required and "Option" not in field.type:
                options[field.name] = ScriptOption(field.name, OptionKind.POSITIONAL)
            elif field.type == "bool":
                options[field.name] = ScriptOption(word, OptionKind.FLAG, f"--no-{word[2:]}")
            else:
                options[field.name] = ScriptOption(word, numeric=field.type in ("int", "float"))
        return ParamFormat(
            ParamStyle.ARGS, f"Typer in {source.path}", options=options, complete=definition is not None
        )
    return None


def find_fire(sources: list[SourceTree]) -> ParamFormat | None:
    """Returns the options of `fire.Fire(function)`."""
    for source, call in _calls(sources, "fire.Fire"):
        definition = _find_definition(sources, ast.unparse(call.args[0])) if call.args else None
        is_function = isinstance(definition, ast.FunctionDef)
        options = {
            field.name: ScriptOption(f"--{field.name}", OptionKind.JOINED)
            for field in (_fields(definition) if definition is not None and is_function else ())
        }
        complete = isinstance(definition, ast.FunctionDef) and definition.args.kwarg is None
        return ParamFormat(
            ParamStyle.ARGS,
            f"Fire in {source.path}",
            options=options,
            complete=complete,
            default=OptionKind.JOINED,
        )
    return None


def _calls(sources: list[SourceTree], wanted: str) -> Iterator[tuple[SourceTree, ast.Call]]:
    for source in sources:
        for name, call in source.calls():
            if name == wanted:
                yield source, call


def _find_definition(sources: list[SourceTree], name: str) -> Definition | None:
    if name in _PLAIN_TYPES or not name.replace(".", "_").isidentifier():
        return None
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, Definition) and node.name == name.rpartition(".")[2]:
                return node
    return None


def _fields(definition: Definition) -> list[TypedField]:
    if isinstance(definition, ast.ClassDef):
        return [
            TypedField(node.target.id, _type(node.annotation), node.value is None)
            for node in definition.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        ]
    arguments = definition.args
    plain = [*arguments.posonlyargs, *arguments.args]
    required = len(plain) - len(arguments.defaults)
    return [
        TypedField(each.arg, _type(each.annotation), index < required)
        for index, each in enumerate(plain)
        if each.arg != "self"
    ] + [
        TypedField(each.arg, _type(each.annotation), default is None)
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]


def _type(annotation: ast.AST | None) -> str:
    """Returns the type as written, without `Optional`, `| None` and `Annotated`."""
    text = "" if annotation is None else ast.unparse(annotation).strip("'\"")
    text = text.removeprefix("typing.").replace(" | None", "").replace("None | ", "")
    if text.startswith("Optional["):
        text = text[len("Optional[") : -1]
    return text


def _kind(type_text: str) -> OptionKind:
    is_list = type_text.lower().startswith(("list[", "tuple[", "sequence["))
    return OptionKind.LIST if is_list else OptionKind.VALUE
