"""The searcher of a `search.yaml`: its name and its options."""

from __future__ import annotations

from pathlib import Path

from hopyard.config.code_check import check_reference
from hopyard.config.section_values import read_param
from hopyard.config.yaml_section import YamlSection
from hopyard.domain.run import ParamValue
from hopyard.domain.searchers import is_custom
from hopyard.domain.study import SearcherSpec

_DEFAULT_SEARCHER = "random"


def read_searcher(top: YamlSection, folder: Path) -> SearcherSpec:
    """`searcher: NAME`, `searcher: {name: NAME, OPTION: VALUE}`.
    folder: of the code, where a user's own searcher is looked up. Raises SpecError."""
    spec = _read_spec(top)
    for own in filter(is_custom, (spec.name, str(spec.options.get("of", "")))):
        check_reference(top, "searcher", own, folder)
    return spec


def _read_spec(top: YamlSection) -> SearcherSpec:
    given = top.values.get("searcher")
    if given is None:
        return SearcherSpec(_DEFAULT_SEARCHER)
    if isinstance(given, str):
        return SearcherSpec(given)
    own = top.section("searcher")
    name = own.text("name")
    if not name:
        raise top.error("searcher", "it has no name", "for example searcher: {name: asha, eta: 4}")
    options: dict[str, ParamValue] = {}
    for key in own.values:
        if key == "options":
            inner = own.section("options")
            options |= {one: read_param(inner, one) for one in inner.values}
        elif key != "name":
            options[key] = read_param(own, key)
    return SearcherSpec(name, options)
