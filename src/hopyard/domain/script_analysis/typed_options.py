"""Options that a script declares by the fields of a dataclass or the parameters of a function: tyro,
pyrallis, HfArgumentParser, Fire."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hopyard.domain.param_format import OptionKind, ParamFormat, ParamStyle, ScriptOption
from hopyard.domain.script_analysis.source_tree import SourceTree
from hopyard.domain.script_analysis.trainer_options import is_trainer_class, trainer_options

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
    definition = find_definition(sources, name)
    if definition is None or depth > _MAX_DEPTH:
        return False
    complete = not (isinstance(definition, ast.ClassDef) and definition.bases)
    for field in _fields(definition):
        path = prefix + field.name
        if find_definition(sources, field.type) is not None:
            complete &= _add_tyro(options, sources, field.type, f"{path}.", depth + 1)
            continue
        word = "--" + path.replace("_", "-")
        if field.type == "bool" and not field.required:
            parent, dot, last = word[2:].rpartition(".")
            options[path] = ScriptOption(word, OptionKind.FLAG, f"--{parent}{dot}no-{last}")
        else:
            options[path] = _typed_option(word, field.type)
    return complete


def find_pyrallis(sources: list[SourceTree]) -> ParamFormat | None:
    """Returns the options of the dataclass that `@pyrallis.wrap()` or `pyrallis.parse` names.
    Nested dataclasses have names with dots; each option takes a value, flags too. Draccus has the same."""
    for library in ("pyrallis", "draccus"):
        for source, name in _pyrallis_classes(sources, library):
            options = {"config_path": ScriptOption("--config_path")}
            complete = _add_pyrallis(options, sources, name, "", 0)
            return ParamFormat(
                ParamStyle.ARGS, f"{library} in {source.path}", options=options, complete=complete
            )
    return None


def _pyrallis_classes(sources: list[SourceTree], library: str) -> Iterator[tuple[SourceTree, str]]:
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(each, ast.Call) and source.resolve(each.func) == f"{library}.wrap"
                for each in node.decorator_list
            ):
                yield source, (_fields(node) or [TypedField("", "", required=True)])[0].type
    for source, call in _calls(sources, f"{library}.parse"):
        given = [each.value for each in call.keywords if each.arg == "config_class"] or call.args
        yield source, ast.unparse(given[0]) if given else ""


def _add_pyrallis(
    options: dict[str, ScriptOption], sources: list[SourceTree], name: str, prefix: str, depth: int
) -> bool:
    definition = find_definition(sources, name)
    if not isinstance(definition, ast.ClassDef) or depth > _MAX_DEPTH:
        return False
    complete = not definition.bases
    for field in _fields(definition):
        path = prefix + field.name
        if isinstance(find_definition(sources, field.type), ast.ClassDef):
            complete &= _add_pyrallis(options, sources, field.type, f"{path}.", depth + 1)
        else:
            options[path] = replace(_typed_option(f"--{path}", field.type), kind=OptionKind.VALUE, text=False)
    return complete


def find_hf_arguments(sources: list[SourceTree]) -> ParamFormat | None:
    """Returns the options of `HfArgumentParser`, with those of the library's `TrainingArguments`."""
    for source in sources:
        for name, call in source.calls():
            if name.rpartition(".")[2] != "HfArgumentParser" or not call.args:
                continue
            types = call.args[0].elts if isinstance(call.args[0], (ast.Tuple, ast.List)) else [call.args[0]]
            options: dict[str, ScriptOption] = {}
            complete = True
            for each in types:
                definition = find_definition(sources, ast.unparse(each))
                bases = [source.resolve(base) for base in getattr(definition, "bases", ())]
                complete &= definition is not None and not bases
                if any(map(is_trainer_class, [source.resolve(each)] if definition is None else bases)):
                    options |= trainer_options()
                for field in _fields(definition) if definition is not None else ():
                    options[field.name] = _typed_option(f"--{field.name}", field.type)
            return ParamFormat(
                ParamStyle.ARGS, f"HfArgumentParser in {source.path}", options=options, complete=complete
            )
    return None


def find_fire(sources: list[SourceTree]) -> ParamFormat | None:
    """Returns the options of `fire.Fire(function)`."""
    for source, call in _calls(sources, "fire.Fire"):
        definition = find_definition(sources, ast.unparse(call.args[0])) if call.args else None
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


def find_definition(sources: list[SourceTree], name: str) -> Definition | None:
    """Returns the class or function of this name; None for one of a library."""
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
            TypedField(node.target.id, type_text(node.annotation), node.value is None)
            for node in definition.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        ]
    arguments = definition.args
    plain = [*arguments.posonlyargs, *arguments.args]
    required = len(plain) - len(arguments.defaults)
    return [
        TypedField(each.arg, type_text(each.annotation), index < required)
        for index, each in enumerate(plain)
        if each.arg != "self"
    ] + [
        TypedField(each.arg, type_text(each.annotation), default is None)
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]


def type_text(annotation: ast.AST | None) -> str:
    """Returns the type as written, without `Optional`, `| None` and `Annotated`."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).endswith("Annotated"):
        inner = annotation.slice
        annotation = inner.elts[0] if isinstance(inner, ast.Tuple) and inner.elts else inner
    text = "" if annotation is None else ast.unparse(annotation).strip("'\"")
    text = text.removeprefix("typing.").replace(" | None", "").replace("None | ", "")
    if text.startswith("Optional["):
        text = text[len("Optional[") : -1]
    return text


def _typed_option(word: str, type_text: str) -> ScriptOption:
    is_list = type_text.lower().startswith(("list[", "tuple[", "sequence["))
    kind = OptionKind.LIST if is_list else OptionKind.VALUE
    return ScriptOption(word, kind, numeric=type_text in ("int", "float"), text=type_text in ("str", "Path"))
