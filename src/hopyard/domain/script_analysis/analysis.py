"""Chooses the form of a script's parameters by the library that parses its command line."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace

from hopyard.domain.notebook import read_notebook
from hopyard.domain.param_format import OptionKind, ParamFormat, ParamStyle, ScriptOption
from hopyard.domain.script_analysis import argparse_options, argument_calls, signature_options, typed_options
from hopyard.domain.script_analysis.hydra_settings import hydra_options, takes_overrides
from hopyard.domain.script_analysis.source_tree import ReadSource, SourceTree, read_sources

Detector = Callable[[list[SourceTree], ReadSource], ParamFormat | None]


def analyse_script(script: str, read: ReadSource) -> ParamFormat | None:
    """Returns the form in which the script takes parameters; None where none is found.

    script: a path relative to the folder of the code. read: returns the bytes of such a file, None if there
    is none.
    """
    sources = read_sources(script, read)
    for detect in _DETECTORS:
        form = detect(sources, read)
        if form is not None:
            return replace(form, script=script)
    return None


def analyse_notebook(notebook: str, text: bytes) -> ParamFormat:
    """Returns the form in which a notebook takes parameters: as variables after its cell tagged `parameters`,
    or by `hop.params`. Raises SpecError."""
    content = read_notebook(text, notebook)
    declared = content.declared()
    if content.parameters_cell is None and content.is_python:
        form = _sdk(
            read_sources(notebook, lambda path: content.source().encode() if path == notebook else None)
        )
        if form is not None:
            return replace(form, script=notebook)
    place = "before the first cell of" if content.parameters_cell is None else "cell `parameters` of"
    options = {name: ScriptOption(name, numeric=_is_number(value)) for name, value in declared.items()}
    return ParamFormat(ParamStyle.NOTEBOOK, f"{place} {notebook}", notebook, options)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _sdk(sources: list[SourceTree]) -> ParamFormat | None:
    calls = [
        (source, call)
        for source in sources
        for name, call in source.calls()
        if name in ("hopyard.params", "hopyard.sdk.api.params")
    ]
    if not calls:
        return None
    parsed = argparse_options.find_argparse(sources)
    if parsed is not None and all(_hands_on_options(call, parsed) for _, call in calls):
        return parsed  # also takes the options that hop.params does not declare
    return ParamFormat(source=f"hop.params in {calls[0][0].path}")


def _hands_on_options(call: ast.Call, parsed: ParamFormat) -> bool:
    """Returns whether each parameter of a call of hop.params is an option under its name, as in
    `hop.params(lr=args.lr)`."""
    return not call.args and all(
        keyword.arg is not None
        and isinstance(keyword.value, ast.Attribute)
        and keyword.value.attr == keyword.arg
        and keyword.arg in parsed.options
        for keyword in call.keywords
    )


def _hydra(sources: list[SourceTree], read: ReadSource) -> ParamFormat | None:
    for source in sources:
        if takes_overrides(source):
            options = hydra_options(source, read)
            return ParamFormat(
                ParamStyle.HYDRA, f"Hydra in {source.path}", options=options, default=OptionKind.JOINED
            )
    for source in sources:
        if any(name.endswith("OmegaConf.from_cli") for name, _ in source.calls()):
            return ParamFormat(ParamStyle.HYDRA, f"OmegaConf in {source.path}", default=OptionKind.JOINED)
    return None


def _configurator(sources: list[SourceTree]) -> ParamFormat | None:
    """Finds `exec(open('configurator.py').read())`, which reads `--key=value` into globals."""
    for source in sources:
        for name, call in source.calls():
            text = ast.unparse(call) if name == "exec" else ""
            if "open(" in text and ".py" in text:
                names = _assigned_names(source.tree)
                options = {key: ScriptOption(f"--{key}", OptionKind.JOINED) for key in names}
                return ParamFormat(
                    ParamStyle.ARGS,
                    f"exec of a configurator in {source.path}",
                    options=options,
                    complete=True,
                    default=OptionKind.JOINED,
                )
    return None


def _assigned_names(tree: ast.Module) -> list[str]:
    """Returns the module's variables with a constant value."""
    return [
        node.targets[0].id
        for node in tree.body
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    ]


def _environ(sources: list[SourceTree]) -> ParamFormat | None:
    """Finds variables that the script reads, by their names as parameters: in lower case and as written."""
    options: dict[str, ScriptOption] = {}
    place = ""
    for source in sources:
        for node in ast.walk(source.tree):
            variable = _read_variable(source, node)
            if variable:
                place = place or source.path
                option = ScriptOption(variable)
                options.setdefault(variable, option)
                options.setdefault(variable.lower(), option)
    return ParamFormat(ParamStyle.ENV, f"os.environ in {place}", options=options) if options else None


def _read_variable(source: SourceTree, node: ast.AST) -> str:
    key: ast.AST | None = None
    if isinstance(node, ast.Call) and node.args:
        if source.resolve(node.func) in ("os.getenv", "os.environ.get"):
            key = node.args[0]
    elif isinstance(node, ast.Subscript) and source.resolve(node.value) == "os.environ":
        key = node.slice
    is_read = not isinstance(node, ast.Subscript) or isinstance(node.ctx, ast.Load)
    return str(key.value) if isinstance(key, ast.Constant) and isinstance(key.value, str) and is_read else ""


def _by_source(find: Callable[[list[SourceTree]], ParamFormat | None]) -> Detector:
    return lambda sources, _read: find(sources)


_DETECTORS: tuple[Detector, ...] = (
    _by_source(_sdk),
    _hydra,
    *map(
        _by_source,
        (
            typed_options.find_tyro,
            typed_options.find_pyrallis,
            typed_options.find_hf_arguments,
            signature_options.find_typer,
            argument_calls.find_click,
            typed_options.find_fire,
            argument_calls.find_absl,
            argument_calls.find_jsonargparse,
            argparse_options.find_argparse,
            _configurator,
            _environ,
        ),
    ),
)
