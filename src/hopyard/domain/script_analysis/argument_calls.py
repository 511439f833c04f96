"""Options that a script declares by calls: click, absl, jsonargparse."""

from __future__ import annotations

import ast

from hopyard.domain.param_format import OptionKind, ParamFormat, ParamStyle, ScriptOption
from hopyard.domain.script_analysis.source_tree import SourceTree, constant_text, expression_text, list_count

_TEXT_TYPES = ("str", "string", "path", "choice", "file")


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
                type_name = _click_type(keywords)
                options[words[0].lower()] = ScriptOption(
                    words[0],
                    OptionKind.POSITIONAL,
                    numeric=type_name in ("int", "float"),
                    text=type_name in _TEXT_TYPES,
                )
                continue
            long = [word for word in words if word.startswith("--")] or words
            word, _, off = long[0].partition("/")
            given = [other for other in words if not other.startswith("-")]
            dest = given[0] if given else word.lstrip("-").replace("-", "_").lower()
            is_flag = bool(off) or expression_text(keywords.get("is_flag")) == "True"
            aliases = tuple(other for other in words if other.startswith("-") and other != long[0])
            type_name = _click_type(keywords)
            kind = OptionKind.FLAG if is_flag else OptionKind.VALUE
            if expression_text(keywords.get("count")) == "True":
                kind = OptionKind.COUNT
            elif expression_text(keywords.get("multiple")) == "True":
                kind = OptionKind.REPEATED
            elif not is_flag and expression_text(keywords.get("nargs")) not in ("", "1"):
                kind = OptionKind.LIST
            options[dest] = ScriptOption(
                word.strip(),
                kind,
                off.strip(),
                type_name in ("int", "float"),
                aliases,
                text=type_name in _TEXT_TYPES and kind not in (OptionKind.FLAG, OptionKind.COUNT),
                count=list_count(expression_text(keywords.get("nargs"))) if kind is OptionKind.LIST else 0,
            )
    if not place:
        return None
    return ParamFormat(ParamStyle.ARGS, f"click in {place}", options=options, complete=complete)


def _click_type(keywords: dict[str | None, ast.expr]) -> str:
    """Returns the name of an option's type in lower case; without one, that of its default, as click does."""
    given, default = keywords.get("type"), keywords.get("default")
    if isinstance(given, ast.Call):
        return expression_text(given.func).lower()  # `click.Choice([…])`
    if given is not None:
        return expression_text(given).lower()
    if isinstance(default, ast.Constant) and default.value is not None:
        return type(default.value).__name__
    return "str" if default is None or isinstance(default, ast.Constant) else ""


def find_absl(sources: list[SourceTree]) -> ParamFormat | None:
    """Returns the flags of `absl.flags.DEFINE_…`."""
    options: dict[str, ScriptOption] = {}
    place = ""
    for source in sources:
        for name, call in source.calls():
            if not name.startswith("absl.flags.DEFINE_") or not call.args:
                continue
            place = place or source.path
            flag = constant_text(call.args[0])
            if flag and name.endswith(("bool", "boolean")):
                options[flag] = ScriptOption(f"--{flag}", OptionKind.FLAG, f"--no{flag}")
            elif flag:
                numeric = name.endswith(("float", "integer"))
                is_text = name.endswith(("string", "enum"))
                options[flag] = ScriptOption(f"--{flag}", OptionKind.JOINED, numeric=numeric, text=is_text)
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
