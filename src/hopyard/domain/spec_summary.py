"""The summary of a spec for listings. A spec may have megabytes; a page of a thousand runs must not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from hopyard.domain.gang import ANY_NODE
from hopyard.domain.run import RoleSpec, RunSpec

MAX_VALUES = 64  # of params, of tags
_MAX_TEXT_LENGTH = 256  # of each value
_MAX_TOTAL_LENGTH = 4096  # of all values, names included
_MAX_LABELS_LENGTH = 1024  # of the labels that all roles request
_MAX_COMMAND_LENGTH = 512  # of all commands of a run
_MAX_ITEMS = 4  # pools, models and extras of a role
# the summary of more roles has only their number and their request of the usual resources
_MAX_ROLES = 8
_Record = TypeVar("_Record", bound=Any)
_SEARCHER_KEYS, _BEGINNING_KEYS = ("name",), ("study",)


def summarise_spec(spec: RunSpec) -> RunSpec:
    """Returns the spec without `env`, `secrets`, options of the script, packages and links of the
    environment, and with truncated params, tags and commands.

    Of a study, it keeps only single values, `searcher.name` and `beginning.study`. Equal to `spec` if nothing
    is omitted.
    """
    share = _MAX_COMMAND_LENGTH // max(1, len(spec.roles))
    return _with(
        spec,
        roles=tuple(
            _brief_role(role, max(32, share), truncate_lists=len(spec.roles) <= _MAX_ROLES)
            for role in spec.roles
        ),
        params=truncate_values(spec.params),
        env={},
        secrets=(),
        param_format=None if spec.param_format is None else _with(spec.param_format, options={}),
        tags=truncate_values(spec.tags),
        environment=_with(spec.environment, packages={}, editable={}, links={}),
        study=None if spec.study is None else _brief_study(spec.study),
    )


def _with(record: _Record, **fields: Any) -> _Record:
    """Returns the record with these fields. A copy is slow, and most specs are short already."""
    is_same = all(getattr(record, name) == value for name, value in fields.items())
    return record if is_same else replace(record, **fields)


def truncate_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the first values, with long texts truncated."""
    first = ((name, _truncate(value, _MAX_TEXT_LENGTH)) for name, value in islice(values.items(), MAX_VALUES))
    return dict(_limit_total_length(first, _MAX_TOTAL_LENGTH))


def truncate_text(text: str) -> str:
    """Returns the text, truncated if it is long."""
    return str(_truncate(text, _MAX_TEXT_LENGTH))


def _limit_total_length(pairs: Iterable[tuple[str, Any]], max_length: int) -> Iterator[tuple[str, Any]]:
    """Yields the first pairs, up to a total length in characters."""
    for name, value in pairs:
        max_length -= len(name) + (len(value) if isinstance(value, str) else 8)
        if max_length < 0:
            return
        yield name, value


def _truncate(value: Any, max_length: int) -> Any:
    return value[: max_length - 1] + "…" if isinstance(value, str) and len(value) > max_length else value


def _brief_role(role: RoleSpec, max_length: int, *, truncate_lists: bool) -> RoleSpec:
    words: list[str] = []
    for word in role.command:
        if max_length <= 0:
            words.append("…")
            break
        words.append(_truncate(word, max_length))
        max_length -= len(word) + 1
    request, where = role.resources, role.where
    if truncate_lists:
        where = _with(
            where,
            pools=where.pools[:_MAX_ITEMS],
            labels=tuple(_limit_total_length(where.labels, _MAX_LABELS_LENGTH // _MAX_ROLES)),
        )
        resources = _with(
            request, extras=request.extras[:_MAX_ITEMS], gpu_models=request.gpu_models[:_MAX_ITEMS]
        )
        return _with(role, command=tuple(words), where=where, resources=resources)
    resources = _with(request, extras=(), gpu_models=request.gpu_models[:1])
    return _with(role, command=tuple(words), where=ANY_NODE, topology=None, resources=resources)


def _brief_study(study: Mapping[str, Any]) -> dict[str, Any]:
    single = {
        name: _truncate(value, _MAX_TEXT_LENGTH)
        for name, value in study.items()
        if not isinstance(value, (Mapping, list, tuple))
    }
    return {
        **single,
        **{
            part: {name: _truncate(study[part].get(name), _MAX_TEXT_LENGTH) for name in names}
            for part, names in (("searcher", _SEARCHER_KEYS), ("beginning", _BEGINNING_KEYS))
            if isinstance(study.get(part), Mapping)
        },
    }
