"""The searcher of a `search.yaml`: its name, its options, and whether the study's epochs leave it anything to
decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hopyard.config.code_check import check_reference
from hopyard.config.section_values import read_param
from hopyard.config.yaml_section import YamlSection
from hopyard.domain.run import ParamValue
from hopyard.domain.rungs import rung_budgets
from hopyard.domain.searchers import check_options, get_searcher, is_custom
from hopyard.domain.study import SearcherSpec, StudySpec
from hopyard.errors import SpecError

_DEFAULT_SEARCHER = "random"


def read_searcher(top: YamlSection, folder: Path) -> SearcherSpec:
    """`searcher: NAME`, `searcher: {name: NAME, OPTION: VALUE}`.
    folder: of the code, where a user's own is looked up. Raises SpecError for what no searcher has."""
    spec = _read_spec(top)
    for own in filter(is_custom, (spec.name, str(spec.options.get("of", "")))):
        check_reference(top, "searcher", own, folder)
    return spec


def _read_spec(top: YamlSection) -> SearcherSpec:
    given = top.values.get("searcher")
    if given is None:
        return SearcherSpec(_DEFAULT_SEARCHER)
    if isinstance(given, str):
        return _checked_searcher(top, given, {})
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
    return _checked_searcher(top, name, options)


def _checked_searcher(top: YamlSection, name: str, options: Mapping[str, ParamValue]) -> SearcherSpec:
    with _with_file_paths(top):
        if not is_custom(name):
            get_searcher(name)
            check_options(name, options)
    return SearcherSpec(name, options)


def check_rungs(top: YamlSection, spec: StudySpec) -> None:
    """Whether the epochs of the study leave its searcher rungs to compare trials at."""
    if is_custom(spec.searcher.name):
        return
    options = check_options(spec.searcher.name, spec.searcher.options)
    eta, least = options.get("eta"), options.get("min_epochs")
    if isinstance(eta, int) and isinstance(least, int):
        with _with_file_paths(top):
            rung_budgets(spec.max_epochs, least, eta)


@contextmanager
def _with_file_paths(top: YamlSection) -> Iterator[None]:
    """The path of a SpecError is that of a spec: in a file, options stand beside the searcher's name."""
    try:
        yield
    except SpecError as wrong:
        told, hints = wrong.message.replace("searcher.options.", "searcher.", 1), wrong.hints
        if not top.contains("max_epochs"):  # a spec's word for what most files call `epochs`
            told, hints = (
                told.replace("max_epochs", "epochs"),
                tuple(hint.replace("max_epochs", "epochs") for hint in hints),
            )
        raise SpecError(f"{top.file}: {told}", hints=hints) from wrong
