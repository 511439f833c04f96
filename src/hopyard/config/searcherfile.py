"""The searcher of a `search.yaml`: its name, its options, and whether the study's epochs leave it anything to
decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hopyard.config.codefile import check_named
from hopyard.config.reader import Section
from hopyard.config.values import read_param
from hopyard.domain.run import ParamValue
from hopyard.domain.rungs import rung_budgets
from hopyard.domain.searchers import check_options, get_searcher, is_own
from hopyard.domain.study import SearcherSpec, StudySpec
from hopyard.errors import SpecError

_DEFAULT = "random"


def read_searcher(top: Section, folder: Path) -> SearcherSpec:
    """`searcher: NAME`, `searcher: {name: NAME, OPTION: VALUE}`.
    folder: of the code, where a user's own is looked up. Raises SpecError for what no searcher has."""
    spec = _read(top)
    for own in filter(is_own, (spec.name, str(spec.options.get("of", "")))):
        check_named(top, "searcher", own, folder)
    return spec


def _read(top: Section) -> SearcherSpec:
    given = top.values.get("searcher")
    if given is None:
        return SearcherSpec(_DEFAULT)
    if isinstance(given, str):
        return _checked_searcher(top, given, {})
    own = top.section("searcher")
    name = own.text("name")
    if not name:
        raise top.fail("searcher", "it has no name", "for example searcher: {name: asha, eta: 4}")
    options: dict[str, ParamValue] = {}
    for key in own.values:
        if key == "options":
            inner = own.section("options")
            options |= {one: read_param(inner, one) for one in inner.values}
        elif key != "name":
            options[key] = read_param(own, key)
    return _checked_searcher(top, name, options)


def _checked_searcher(top: Section, name: str, options: Mapping[str, ParamValue]) -> SearcherSpec:
    with _as_in_the_file(top):
        if not is_own(name):
            get_searcher(name)
            check_options(name, options)
    return SearcherSpec(name, options)


def check_rungs(top: Section, spec: StudySpec) -> None:
    """Whether the epochs of the study leave its searcher rungs to compare trials at."""
    if is_own(spec.searcher.name):
        return
    options = check_options(spec.searcher.name, spec.searcher.options)
    eta, least = options.get("eta"), options.get("min_epochs")
    if isinstance(eta, int) and isinstance(least, int):
        with _as_in_the_file(top):
            rung_budgets(spec.max_epochs, least, eta)


@contextmanager
def _as_in_the_file(top: Section) -> Iterator[None]:
    """The path of a SpecError is that of a spec: in a file, options stand beside the searcher's name."""
    try:
        yield
    except SpecError as wrong:
        told, hints = wrong.message.replace("searcher.options.", "searcher.", 1), wrong.hints
        if not top.has("max_epochs"):  # a spec's word for what most files call `epochs`
            told, hints = (
                told.replace("max_epochs", "epochs"),
                tuple(hint.replace("max_epochs", "epochs") for hint in hints),
            )
        raise SpecError(f"{top.file}: {told}", hints=hints) from wrong
