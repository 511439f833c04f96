"""The spec of a run as listings carry it. A spec may have megabytes; a page of a thousand runs must not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from hopyard.domain.gang import ANYWHERE
from hopyard.domain.run import RoleSpec, RunSpec

MOST_VALUES = 64  # of params, of tags
_MOST_LETTERS = 256  # of one of them
_ALL_LETTERS = 4096  # of all of them, names included
_LABEL_LETTERS = 1024  # of the labels that all roles ask for
_COMMAND_LETTERS = 512  # of all commands of a run
_FEW = 4  # pools, models and extras of a role
# beyond so many they tell only how many there are and what they ask for of the usual resources
_MANY_ROLES = 8
_OF_SEARCHER, _OF_BEGINNING = ("name",), ("study",)


def brief_spec(spec: RunSpec) -> RunSpec:
    """Without `env`, `secrets` and `environment.packages`; with the first params, tags and words of commands;
    of a study only what it is about (single values, `searcher.name`, `beginning.study`). Equal to `spec`
    where nothing is left out."""
    share = _COMMAND_LETTERS // max(1, len(spec.roles))
    return replace(
        spec,
        roles=tuple(
            _brief_role(role, max(32, share), few=len(spec.roles) <= _MANY_ROLES) for role in spec.roles
        ),
        params=brief_values(spec.params),
        env={},
        secrets=(),
        tags=brief_values(spec.tags),
        environment=replace(spec.environment, packages={}),
        study=None if spec.study is None else _brief_study(spec.study),
    )


def brief_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The first few, with long texts cut."""
    first = ((name, _cut(value, _MOST_LETTERS)) for name, value in islice(values.items(), MOST_VALUES))
    return dict(_within(first, _ALL_LETTERS))


def brief_text(text: str) -> str:
    """Its beginning, where it is long."""
    return str(_cut(text, _MOST_LETTERS))


def _within(pairs: Iterable[tuple[str, Any]], letters: int) -> Iterator[tuple[str, Any]]:
    """As many of the pairs as have no more letters than these together."""
    for name, value in pairs:
        letters -= len(name) + (len(value) if isinstance(value, str) else 8)
        if letters < 0:
            return
        yield name, value


def _cut(value: Any, most: int) -> Any:
    return value[: most - 1] + "…" if isinstance(value, str) and len(value) > most else value


def _brief_role(role: RoleSpec, letters: int, *, few: bool) -> RoleSpec:
    words: list[str] = []
    for word in role.command:
        if letters <= 0:
            words.append("…")
            break
        words.append(_cut(word, letters))
        letters -= len(word) + 1
    asked, where = role.resources, role.where
    if few:
        where = replace(
            where,
            pools=where.pools[:_FEW],
            labels=tuple(_within(where.labels, _LABEL_LETTERS // _MANY_ROLES)),
        )
        resources = replace(asked, extras=asked.extras[:_FEW], gpu_models=asked.gpu_models[:_FEW])
        return replace(role, command=tuple(words), where=where, resources=resources)
    resources = replace(asked, extras=(), gpu_models=asked.gpu_models[:1])
    return replace(role, command=tuple(words), where=ANYWHERE, topology=None, resources=resources)


def _brief_study(study: Mapping[str, Any]) -> dict[str, Any]:
    single = {
        name: _cut(value, _MOST_LETTERS)
        for name, value in study.items()
        if not isinstance(value, (Mapping, list, tuple))
    }
    return {
        **single,
        **{
            part: {name: _cut(study[part].get(name), _MOST_LETTERS) for name in names}
            for part, names in (("searcher", _OF_SEARCHER), ("beginning", _OF_BEGINNING))
            if isinstance(study.get(part), Mapping)
        },
    }
