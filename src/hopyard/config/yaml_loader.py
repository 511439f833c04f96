"""Parses and writes YAML 1.2 (the core schema): `no`, `12:30` and `2026-11-25` are texts, `1e-3` is a number.

Two rules go beyond the schema. A number with leading zeros (`0755`) is a text, as on the command line. And
mappings and lists keep each scalar as it was written, for texts that stay as typed and for error messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hopyard.domain.text_decoding import decode_text
from hopyard.errors import SpecError

_NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")
_INT = re.compile(r"(?:[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+)\Z")
_FLOAT = re.compile(
    r"(?:[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
)
_TAG = "tag:yaml.org,2002:"


class SourceMapping(dict[Any, Any]):
    """A mapping of a file. `sources` holds the text of each value that is a scalar, by key."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[Any, str] = {}


class SourceList(list[Any]):
    """A list of a file. `sources` holds the text of each entry that is a scalar, by index."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[int, str] = {}


def load_yaml(data: bytes, name: str) -> Any:
    """Returns the value of a text in UTF-8, UTF-16 or UTF-32. Mappings are SourceMapping, lists SourceList.
    Raises SpecError with the file `name` and the line when it is not YAML, or has a key twice."""
    import yaml

    text = decode_text(data, name)
    try:
        loader = _loader()(text)
        try:
            root = loader.get_single_node()
            _check_keys(root, name)
            return None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise SpecError(
            f"{name}: {_position(error, text)}not YAML: {_problem(error)}", hints=(_hint(error),)
        ) from error
    except RecursionError:
        raise SpecError(
            f"{name}: it is nested too deeply to be read",
            hints=("a settings file has a few levels, not hundreds",),
        ) from None
    except ValueError as error:
        raise SpecError(f"{name}: not YAML that can be read: {error}") from error


def dump_yaml(value: Any, **options: Any) -> str:
    """Returns the text of a value. Texts that YAML 1.1 or 1.2 takes for another type are quoted. `options`
    are those of `yaml.dump`."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
            super().increase_indent(flow, False)

    for pattern, kind in ((_INT, "int"), (_FLOAT, "float")):
        Dumper.add_implicit_resolver(_TAG + kind, pattern, list("-+.0123456789"))
    written: str = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, **options)
    return written


def _loader() -> Callable[[str], Any]:
    """Returns the class of the loader. PyYAML is imported at the first file: most commands read none."""
    global _LOADER
    if _LOADER is None:
        _LOADER = _make_loader()
    return _LOADER


_LOADER: Callable[[str], Any] | None = None


def _make_loader() -> Callable[[str], Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.yaml_implicit_resolvers = {}  # without the rules of YAML 1.1
    Loader.yaml_constructors = dict(yaml.SafeLoader.yaml_constructors)
    for tag, pattern, first in (
        ("null", _NULL, ["~", "n", "N", ""]),
        ("bool", _BOOL, list("tTfF")),
        ("int", _INT, list("-+0123456789")),
        ("float", _FLOAT, list("-+.0123456789")),
        ("merge", re.compile(r"<<\Z"), ["<"]),
    ):
        Loader.add_implicit_resolver(_TAG + tag, pattern, first)
    for tag, construct in (
        ("int", _construct_integer),
        ("float", _construct_real),
        ("bool", _construct_flag),
    ):
        Loader.add_constructor(_TAG + tag, construct)
    Loader.add_constructor(_TAG + "map", _construct_mapping)
    Loader.add_constructor(_TAG + "seq", _construct_list)
    return Loader


def _construct_mapping(loader: Any, node: Any) -> Any:
    import yaml

    mapping = SourceMapping()
    yield mapping
    loader.flatten_mapping(node)
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        try:
            mapping[key] = loader.construct_object(value_node, deep=True)
        except TypeError:
            raise yaml.constructor.ConstructorError(
                None, None, "a list or a mapping cannot be a key", key_node.start_mark
            ) from None
        if isinstance(value_node, yaml.ScalarNode):
            mapping.sources[key] = value_node.value
        else:
            mapping.sources.pop(key, None)  # of a merged mapping


def _construct_list(loader: Any, node: Any) -> Any:
    import yaml

    values = SourceList()
    yield values
    for index, child in enumerate(node.value):
        values.append(loader.construct_object(child, deep=True))
        if isinstance(child, yaml.ScalarNode):
            values.sources[index] = child.value


def _construct_integer(loader: Any, node: Any) -> int | str:
    text: str = loader.construct_scalar(node)
    if text.startswith(("0o", "0x")):
        return int(text, 8 if text[1] == "o" else 16)
    return int(text) if len(text) <= 4000 else text  # Python refuses to parse longer ones


def _construct_real(loader: Any, node: Any) -> float:
    text: str = loader.construct_scalar(node)
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def _construct_flag(loader: Any, node: Any) -> bool:
    text: str = loader.construct_scalar(node)
    return text.lower() == "true"


def _position(error: Any, text: str) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"line {mark.line + 1}: "
    place = getattr(error, "position", None)
    return f"line {text.count(chr(10), 0, place) + 1}: " if isinstance(place, int) else ""


def _problem(error: Any) -> str:
    given = (getattr(error, name, None) for name in ("problem", "reason"))
    return next(filter(None, given), str(error).splitlines()[0])


def _hint(error: Any) -> str:
    if "'\\t'" in _problem(error):
        return "indent with spaces: YAML allows no tab there"
    return "check the indentation and the quotes on that line"


def _check_keys(root: Any, name: str) -> None:
    """Raises SpecError if a mapping below this node of YAML holds a key twice: YAML would silently use the
    last."""
    import yaml

    looked_at: set[int] = set()  # the node of an alias has several places, and may contain itself
    pending = [(root, "")]
    while pending:
        node, path = pending.pop()
        if id(node) in looked_at:
            continue
        looked_at.add(id(node))
        lines: dict[str, int] = {}
        for index, entry in enumerate(node.value if isinstance(node, yaml.CollectionNode) else ()):
            key, value = entry if isinstance(node, yaml.MappingNode) else (None, entry)
            text = str(index) if key is None else key.value if isinstance(key, yaml.ScalarNode) else None
            key_path = f"{path}.{text}" if path else str(text)
            if key is not None and text is not None:
                line = key.start_mark.line + 1
                if text in lines:
                    hint = f"remove one of them: the other is in line {lines[text]}"
                    raise SpecError(
                        f"{name}: line {line}: the key `{key_path}` is given twice", hints=(hint,)
                    )
                lines[text] = line
            pending.append((value, key_path))
