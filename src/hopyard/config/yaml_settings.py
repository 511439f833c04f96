"""Changes single settings in a YAML text. Comments, order, anchors and everything else remain."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopyard.config.key_values import Value
from hopyard.config.nested_settings import entry_index

_PLAIN = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_ANCHOR = re.compile(r"^&\S+\s+")
_TAG = re.compile(r"^!\S*\s+")


def change_yaml(text: str, params: Mapping[str, Value | Sequence[Any]]) -> str:
    """Returns the text with these settings. A name with dots is a path of nested keys, unless the text has
    such a key. Raises ValueError."""
    import yaml

    try:
        for name, value in params.items():
            root = _compose(text)
            if root is None:
                text = f"{text}{_line_end(text)}{_entry(name.split('.'), value)}\n"
                continue
            if not isinstance(root, yaml.MappingNode):
                raise ValueError("it is not a mapping")
            known = any(_is_key(key, name) for key, _ in root.value)
            text = _set(text, root, [name] if known else name.split("."), value)
        _compose(text)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {error}") from error
    return text


@dataclass(frozen=True, slots=True)
class AliasNode:
    """An alias such as `*base` at its own place; YAML's composer has the node of the anchor there."""

    target: Any
    start_mark: Any
    end_mark: Any


def _compose(text: str) -> Any:
    """Returns the root node, with an AliasNode for each alias; None for an empty text. Raises YAMLError."""
    import yaml

    class AliasLoader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            is_alias = isinstance(event, yaml.AliasEvent)
            node = super().compose_node(parent, index)
            return AliasNode(node, event.start_mark, event.end_mark) if is_alias else node

    return yaml.compose(text, Loader=AliasLoader)


def _set(text: str, mapping: Any, path: Sequence[str], value: Value | Sequence[Any]) -> str:
    import yaml

    for depth, name in enumerate(path):
        is_last = depth == len(path) - 1
        node = _find(mapping, name)
        if node is None:
            return _insert(text, mapping, path[depth:], value)
        target = node.target if isinstance(node, AliasNode) else node
        if not is_last and isinstance(target, (yaml.MappingNode, yaml.SequenceNode)):
            if node is not target:
                raise ValueError(f"`{name}` is an alias, so a change would reach other settings")
            mapping = node
            continue
        if not is_last and isinstance(mapping, yaml.SequenceNode):
            raise ValueError(f"entry `{name}` of a list has no keys")
        new = _format(value) if is_last else _flow(path[depth + 1 :], value)
        if node is not target:
            return text[: node.start_mark.index] + new + text[node.end_mark.index :]
        return _replace(text, node, new)
    return text


def _find(node: Any, name: str) -> Any:
    """Returns the node of a key's value, None without the key; of a list, the entry with this index."""
    import yaml

    if isinstance(node, yaml.SequenceNode):
        return node.value[entry_index(name, len(node.value))]
    # of a key that occurs twice, the last one counts
    return next((value for key, value in reversed(node.value) if _is_key(key, name)), None)


def _is_key(key: Any, name: str) -> bool:
    import yaml

    key = key.target if isinstance(key, AliasNode) else key
    return isinstance(key, yaml.ScalarNode) and key.value == name


def _replace(text: str, node: Any, new: str) -> str:
    import yaml

    start, end = node.start_mark.index, _end(node)
    kept = ""
    while (found := _ANCHOR.search(text[start:end]) or _TAG.search(text[start:end])) is not None:
        kept += found[0] if found[0].startswith("&") else ""
        start += found.end()
    before = text[: node.start_mark.index]
    if not isinstance(node, yaml.ScalarNode) and not node.flow_style:
        new = f"  {new}"  # a list may begin in the column of its key, a scalar may not
    space = "" if not before or before[-1].isspace() or before[-1] in "[{," else " "
    line_end = "\n" if text[start:end].endswith("\n") else ""
    return f"{before}{space}{kept}{new}{line_end}{text[end:]}"


def _end(node: Any) -> int:
    """Returns the end of a node without the comments behind it, which its mark includes."""
    import yaml

    if isinstance(node, (AliasNode, yaml.ScalarNode)) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    parts = last if isinstance(last, tuple) else (last,)
    return max(_end(part) for part in parts)


def _insert(text: str, mapping: Any, path: Sequence[str], value: Value | Sequence[Any]) -> str:
    """Adds a key before the first one, where no comment or alias is in the way."""
    if mapping.flow_style:
        position = text.index("{", mapping.start_mark.index) + 1
        separator = ", " if mapping.value else ""
        return f"{text[:position]}{_entry(path, value)}{separator}{text[position:]}"
    mark = mapping.value[0][0].start_mark
    return f"{text[: mark.index]}{_entry(path, value)}\n{' ' * mark.column}{text[mark.index :]}"


def _entry(path: Sequence[str], value: Value | Sequence[Any]) -> str:
    inner = _format(value) if len(path) == 1 else _flow(path[1:], value)
    return f"{_format(path[0])}: {inner}"


def _flow(path: Sequence[str], value: Value | Sequence[Any]) -> str:
    return f"{{{_entry(path, value)}}}"


def _format(value: Value | Sequence[Any]) -> str:
    """Returns a text that YAML 1.1 and 1.2 read as this value: `1e-05` would be a text in YAML 1.1."""
    import yaml

    if isinstance(value, list):
        return f"[{', '.join(map(_format, value))}]"
    if isinstance(value, float):
        if not math.isfinite(value):
            return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
        digits, exponent, power = repr(value).partition("e")
        return f"{digits}.0{exponent}{power}" if exponent and "." not in digits else repr(value)
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
            return value
        quoted = json.dumps(value, ensure_ascii=False)
        return re.sub("[\x7f-\x9f\ufeff\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", quoted)
    return json.dumps(value)


def _line_end(text: str) -> str:
    return "\n" if text and not text.endswith("\n") else ""
