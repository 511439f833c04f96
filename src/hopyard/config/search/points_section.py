"""The section `points` of a search file: the parameters of the first trials."""

from __future__ import annotations

from collections.abc import Mapping

from hopyard.config.section_values import read_param
from hopyard.config.suggest import unknown_name_hints
from hopyard.config.yaml_section import YamlSection, as_section, format_given
from hopyard.domain.run import ParamValue
from hopyard.domain.searchers import is_custom
from hopyard.domain.space import Space, Uniform, contains
from hopyard.domain.study import SearcherSpec


def read_points(
    top: YamlSection, space: Space, searcher: SearcherSpec
) -> tuple[Mapping[str, ParamValue], ...]:
    """Raises SpecError for a value outside the space, and for a searcher that takes no points."""
    points = tuple(_read_point(top, index, value, space) for index, value in top.items("points"))
    if points and (is_custom(searcher.name) or searcher.name == "grid"):
        raise top.error(
            "points",
            f"`{searcher.name}` decides all trials itself",
            "use another searcher, for example `tpe`",
        )
    return points


def _read_point(top: YamlSection, index: int, value: object, space: Space) -> Mapping[str, ParamValue]:
    section = as_section(top.file, f"points.{index}", value)
    domains = {parameter.name: parameter.domain for parameter in space.parameters}
    point: dict[str, ParamValue] = {}
    for name in section.values:
        if name not in domains:
            raise section.error(name, "there is no such parameter", *unknown_name_hints(name, domains))
        given = read_param(section, name)
        if not contains(domains[name], given):
            raise section.error(
                name, f"{format_given(given)} is outside the range of `{name}`", "widen it in `space`"
            )
        is_real = isinstance(domains[name], Uniform) and isinstance(given, int)
        point[name] = float(given) if is_real and isinstance(given, int) else given
    return point
