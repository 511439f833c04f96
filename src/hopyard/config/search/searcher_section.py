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
    """Reads `searcher: NAME` or `searcher: {name: NAME, OPTION: VALUE}`. folder: the folder of the code, in
    which a user's own searcher is searched. Raises SpecError."""
    spec = _read_spec(top)
    for reference in filter(is_custom, (spec.name, str(spec.options.get("of", "")))):
        check_reference(top, "searcher", reference, folder)
    return spec


def _read_spec(top: YamlSection) -> SearcherSpec:
    value = top.values.get("searcher")
    if value is None:
        return SearcherSpec(_DEFAULT_SEARCHER)
    if isinstance(value, str):
        return SearcherSpec(value)
    section = top.section("searcher")
    name = section.text("name")
    if not name:
        raise top.error("searcher", "it has no name", "for example searcher: {name: asha, eta: 4}")
    options: dict[str, ParamValue] = {}
    for key in section.values:
        if key == "options":
            inner = section.section("options")
            options |= {option: read_param(inner, option) for option in inner.values}
        elif key != "name":
            options[key] = read_param(section, key)
    return SearcherSpec(name, options)
