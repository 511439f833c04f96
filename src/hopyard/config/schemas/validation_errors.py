"""Explains why a value does not have its shape: path, value, what is allowed, hint.

msgspec refuses a value in one pass and names a type or a pattern. Only then is the value compared with its
shape once more, so that YAML files and requests get the same sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import inspect

from hopyard.config.schemas.fields import PATTERN_RULES, REDACTED
from hopyard.config.suggest import closest_name, unknown_name_hints
from hopyard.config.yaml_section import format_given
from hopyard.domain.text import escape

_MAX_LISTED_NAMES = 12
_INT64 = (-(2**63), 2**63 - 1)
_EMPTY_HINT = "give it a value, or leave it out: an empty value is not allowed"
_TIME_HINT = "write it with an offset: 2026-12-01T09:00:00+01:00"


@dataclass(frozen=True, slots=True)
class InvalidValue:
    """path: keys and indices, from the outermost. problem: a clause about the value. hints: how to fix it."""

    path: tuple[str, ...]
    problem: str
    hints: tuple[str, ...] = ()

    def message(self, prefix: str = "") -> str:
        """Returns `path: problem`, with `prefix` before the path."""
        return f"{'.'.join((*filter(None, (prefix,)), *self.path)) or 'body'}: {self.problem}"


def find_problem(value: Any, shape: Any, *, strict: bool = True) -> InvalidValue | None:
    """Returns the first problem of a value for `shape`; None if there is none.

    strict: a text is not a number, as in JSON. False accepts texts as numbers, as in the query of an address.
    """
    return next(_Validator(strict).problems(value, _type_info(shape), ()), None)


def explain(error: msgspec.ValidationError, value: Any, shape: Any, *, strict: bool = True) -> InvalidValue:
    """Returns the problem for which msgspec refused `value`, from msgspec's own sentence if no other problem
    is found."""
    return find_problem(value, shape, strict=strict) or sentence_problem(error)


def sentence_problem(error: msgspec.ValidationError) -> InvalidValue:
    """Returns the problem from msgspec's own sentence."""
    path, problem = _split_sentence(str(error))
    return InvalidValue(path, problem)


@lru_cache(maxsize=256)
def _type_info(shape: Any) -> inspect.Type:
    return inspect.type_info(shape)


@dataclass(frozen=True, slots=True)
class _Validator:
    strict: bool

    def problems(
        self, value: Any, info: inspect.Type, path: tuple[str, ...], *, redacted: bool = False
    ) -> Iterator[InvalidValue]:
        """Yields each problem. redacted: the value may be secret, and is not shown."""
        match info:
            case inspect.Metadata(inner, _, extra):
                yield from self.problems(value, inner, path, redacted=redacted or extra == REDACTED)
            case inspect.StructType() | inspect.DataclassType():
                yield from self._object_problems(value, info, path)
            case inspect.DictType():
                yield from self._mapping_problems(value, info, path)
            case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.TupleType():
                yield from self._list_problems(value, info, path)
            case inspect.UnionType(types):
                yield from self._union_problems(value, types, path, redacted=redacted)
            case _:
                if not self.strict and isinstance(value, str):
                    value = _parse_number(value, info)
                problem = _scalar_problem(value, info, redacted=redacted)
                if problem is not None:
                    yield InvalidValue(path, *problem)

    def _object_problems(
        self, value: Any, info: inspect.StructType | inspect.DataclassType, path: tuple[str, ...]
    ) -> Iterator[InvalidValue]:
        if not isinstance(value, Mapping):
            yield InvalidValue(path, _not(value, "an object"))
            return
        names = [field.encode_name for field in info.fields]
        is_closed = isinstance(info, inspect.StructType) and info.forbid_unknown_fields
        for name in value if is_closed else ():
            if name not in names and name != getattr(info, "tag_field", None):
                hints = unknown_name_hints(str(name), names, subject="fields")
                yield InvalidValue(path, f"there is no field `{escape(str(name)[:80])}`", hints)
        for field in info.fields:
            field_path = (*path, field.encode_name)
            if field.encode_name in value:
                yield from self.problems(value[field.encode_name], field.type, field_path)
            elif field.required:
                yield InvalidValue(field_path, "missing", ("add it",))

    def _mapping_problems(
        self, value: Any, info: inspect.DictType, path: tuple[str, ...]
    ) -> Iterator[InvalidValue]:
        if not isinstance(value, Mapping):
            yield InvalidValue(path, _not(value, "an object"))
            return
        yield from _length_problems(len(value), info, path, "entries")
        for key, inner in value.items():
            entry_path = (*path, escape(str(key)[:80]))
            for key_problem in self.problems(key, info.key_type, entry_path):
                yield InvalidValue(key_problem.path, f"the key: {key_problem.problem}", key_problem.hints)
            yield from self.problems(inner, info.value_type, entry_path)

    def _list_problems(
        self,
        value: Any,
        info: inspect.ListType | inspect.VarTupleType | inspect.SetType | inspect.TupleType,
        path: tuple[str, ...],
    ) -> Iterator[InvalidValue]:
        if not isinstance(value, list | tuple):
            yield InvalidValue(path, _not(value, "a list"))
        elif isinstance(info, inspect.TupleType):
            if len(value) != len(info.item_types):
                yield InvalidValue(path, f"{len(value)} values are given, {len(info.item_types)} are needed")
                return
            for index, (inner, item) in enumerate(zip(value, info.item_types, strict=True)):
                yield from self.problems(inner, item, (*path, str(index)))
        else:
            yield from _length_problems(len(value), info, path, "entries")
            for index, inner in enumerate(value):
                yield from self.problems(inner, info.item_type, (*path, str(index)))

    def _union_problems(
        self, value: Any, types: Iterable[inspect.Type], path: tuple[str, ...], *, redacted: bool
    ) -> Iterator[InvalidValue]:
        if value is None and any(isinstance(member, inspect.NoneType) for member in types):
            return
        members = [m for m in types if not isinstance(m, inspect.NoneType | inspect.CustomType)]
        tagged = {str(m.tag): m for m in members if isinstance(m, inspect.StructType) and m.tag is not None}
        if len(tagged) == len(members) and tagged and isinstance(value, Mapping):
            tag_field = str(next(iter(tagged.values())).tag_field)
            if tag_field not in value:
                yield InvalidValue((*path, tag_field), "missing", ("add it",))
                return
            tag = value[tag_field]
            if isinstance(tag, str) and tag in tagged:
                yield from self.problems(value, tagged[tag], path)
                return
            match = closest_name(tag, tagged) if isinstance(tag, str) else None
            hints = (f"did you mean `{match}`?",) if match else ()
            yield InvalidValue((*path, tag_field), _not(tag, _one_of(tagged)), hints)
            return
        candidates = members if len(members) == 1 else [m for m in members if _is_kind(value, _unwrap(m))]
        if isinstance(value, int):  # one that is too large for an integer is no float
            candidates = [
                m for m in candidates if not isinstance(_unwrap(m), inspect.FloatType)
            ] or candidates
        if not candidates:
            text = " or ".join(dict.fromkeys(map(_kind_text, members)))
            yield InvalidValue(path, f"it is not {text}" if redacted else _not(value, text))
            return
        problems = [
            next(self.problems(value, member, path, redacted=redacted), None) for member in candidates
        ]
        if None not in problems:
            yield from filter(None, problems)


def _scalar_problem(value: Any, info: inspect.Type, *, redacted: bool) -> tuple[str, tuple[str, ...]] | None:
    """Returns the problem and its hints."""
    match info:
        case inspect.StrType():
            return _text_problem(value, info, redacted=redacted)
        case inspect.IntType() | inspect.FloatType():
            fits = _is_kind(value, info) and _in_range(value, info)
            return None if fits else (_not(value, _number_text(info)), ())
        case inspect.BoolType():
            if isinstance(value, bool):
                return None
            return f"{_shown(value)} is neither true nor false", ("write true or false, without quotes",)
        case inspect.NoneType():
            return None if value is None else (_not(value, "null"), ())
        case inspect.EnumType(cls):
            words = [str(member.value) for member in cls]
        case inspect.LiteralType(values):
            words = [str(word) for word in values]
        case inspect.DateTimeType():
            return _time_problem(value, info)
        case _:
            return None
    if value in words:
        return None
    match = closest_name(value, words) if isinstance(value, str) else None
    return _not(value, _one_of(words)), (f"did you mean `{match}`?",) if match else ()


def _text_problem(value: Any, info: inspect.StrType, *, redacted: bool) -> tuple[str, tuple[str, ...]] | None:
    if not isinstance(value, str):
        if redacted:
            return "it is not a text", ("write it in quotes",)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return _not(value, "a text"), (f'write it in quotes: "{value}"',) if is_number else ()
    if info.min_length is not None and len(value) < info.min_length:
        return "it is empty", (_EMPTY_HINT,)
    if info.max_length is not None and len(value) > info.max_length:
        return f"it has {len(value)} characters, at most {info.max_length} are allowed", ("shorten it",)
    if info.pattern is None or re.search(info.pattern, value) is not None:
        return None
    requirement, *rule = PATTERN_RULES.get(info.pattern, (f"a text that matches `{info.pattern}`",))
    return f"it is not {requirement}" if redacted else _not(value, requirement), tuple(rule)


def _time_problem(value: Any, info: inspect.DateTimeType) -> tuple[str, tuple[str, ...]] | None:
    try:
        msgspec.convert(value, Annotated[datetime, msgspec.Meta(tz=info.tz)])
    except msgspec.ValidationError:
        return _not(value, "a time with an offset" if info.tz else "a time"), (_TIME_HINT,)
    return None


def _length_problems(size: int, info: Any, path: tuple[str, ...], unit: str) -> Iterator[InvalidValue]:
    if info.min_length is not None and size < info.min_length:
        problem = (
            "it is empty" if not size else f"it has {size} {unit}, at least {info.min_length} are needed"
        )
        yield InvalidValue(path, problem, (_EMPTY_HINT,) if not size else ())
    if info.max_length is not None and size > info.max_length:
        yield InvalidValue(path, f"it has {size} {unit}, at most {info.max_length} are allowed")


def _number_text(info: inspect.IntType | inspect.FloatType) -> str:
    """Returns the description of the allowed numbers: `a whole number from 1 to 4096`."""
    if isinstance(info, inspect.IntType):
        low = info.ge if info.gt is None else info.gt + 1
        high = info.le if info.lt is None else info.lt - 1
        if (low, high) == _INT64:
            return "a whole number of 64 bits"
        if low is not None and high is not None:
            return f"a whole number from {low} to {high}"
        return "a whole number" + (f" from {low}" if low is not None else "")
    upper = ("to", "to below") if info.ge is not None else (", at most", ", below")
    bounds = {"from": info.ge, "above": info.gt, upper[0]: info.le, upper[1]: info.lt}
    text = " ".join(f"{word} {bound:.15g}" for word, bound in bounds.items() if bound is not None)
    return f"a number {text}".rstrip().replace(" ,", ",")


def _in_range(value: float, info: inspect.IntType | inspect.FloatType) -> bool:
    return (
        (info.ge is None or value >= info.ge)
        and (info.gt is None or value > info.gt)
        and (info.le is None or value <= info.le)
        and (info.lt is None or value < info.lt)
    )


def _unwrap(info: inspect.Type) -> inspect.Type:
    return _unwrap(info.type) if isinstance(info, inspect.Metadata) else info


def _is_kind(value: Any, info: inspect.Type) -> bool:
    """Returns whether the value is of the JSON kind of the type. JSON has one kind of number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match info:
        case inspect.StrType() | inspect.EnumType() | inspect.LiteralType() | inspect.DateTimeType():
            return isinstance(value, str)
        case inspect.IntType():
            return is_number and float(value).is_integer() if isinstance(value, float) else is_number
        case inspect.FloatType():
            return is_number
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.StructType() | inspect.DataclassType() | inspect.DictType():
            return isinstance(value, Mapping)
        case inspect.ListType() | inspect.VarTupleType() | inspect.TupleType() | inspect.SetType():
            return isinstance(value, list | tuple)
    return True


def _kind_text(info: inspect.Type) -> str:
    match _unwrap(info):
        case inspect.IntType() | inspect.FloatType():
            return "a number"
        case inspect.BoolType():
            return "true or false"
        case inspect.EnumType(cls):
            return _one_of(str(member.value) for member in cls)
        case inspect.LiteralType(values):
            return _one_of(map(str, values))
        case inspect.StructType() | inspect.DataclassType() | inspect.DictType():
            return "an object"
        case inspect.ListType() | inspect.VarTupleType() | inspect.TupleType() | inspect.SetType():
            return "a list"
    return "a text"


def _one_of(words: Iterable[str]) -> str:
    quoted = [f"`{word}`" for word in words]
    more = ", …" if len(quoted) > _MAX_LISTED_NAMES else ""
    return " or ".join(quoted) if len(quoted) < 3 else f"one of {', '.join(quoted[:_MAX_LISTED_NAMES])}{more}"


def _not(value: Any, requirement: str) -> str:
    """Returns the clause for a value that does not meet the requirement. Lists and objects are named by their
    kind: they are long."""
    if isinstance(value, Mapping):
        return f"it is an object, not {requirement}"
    if isinstance(value, list | tuple):
        return f"it is a list, not {requirement}"
    return f"{_shown(value)} is not {requirement}"


def _shown(value: Any) -> str:
    return "null" if value is None else escape(format_given(value))


def _parse_number(text: str, info: inspect.Type) -> Any:
    kind = {inspect.IntType: int, inspect.FloatType: float}.get(type(info))
    try:
        return text if kind is None else kind(text)
    except ValueError:
        return text


_SENTENCE = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`(?P<path>[^`]*)`)?", re.S)


def _split_sentence(sentence: str) -> tuple[tuple[str, ...], str]:
    """Splits msgspec's sentence into the path, as people write it, and the problem."""
    match = _SENTENCE.fullmatch(sentence)
    if match is None or not match["path"]:
        return (), sentence
    path = re.sub(r"\[(\d+)\]", r".\1", match["path"].removeprefix("$")).replace("[...]", ".*")
    problem = match["what"][:1].lower() + match["what"][1:]
    return tuple(filter(None, path.split("."))) or ("body",), problem
