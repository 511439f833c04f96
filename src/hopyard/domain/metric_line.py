"""A line of output with metrics: `step {step}: train loss {train_loss}, val loss {val_loss}`.

Each name in braces marks a number, and is the name of a metric. `{step}` is the step of the others; a line
without a whole number there has the step after the last one. `{}` is a number that does not count. Other
text is compared as it is, except for the number of spaces. `{{` and `}}` are braces.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hopyard.errors import SpecError

STEP = "step"
_NUMBER = (
    r"[-+]?(?:(?:(?:\d{1,3}(?:,\d{3})+(?![,\d])|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
    r"|(?:[nN]a[nN]|[iI]nf(?:inity)?)(?!\w))"
)
_PARTS = re.compile(r"(\{\{|\}\})|\{([^{}]*)\}|([{}])")
_CONTROL_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# what a format of Python adds to a name: `{loss:.3f}`
_FORMAT = re.compile(
    r"(?P<name>[^:]*?)(?:![rsa])?:(?!\d*\Z)(?:.?[<>=^])?[-+ ]?\d*[,_]?(?:\.\d+)?[bcdeEfFgGnosxX%]?"
)
_MAX_NAME_LENGTH = 200
_HINT = "for example 'epoch {step}: val loss {val_loss}'"


class MetricLine:
    """Reads the numbers of a line that has the form of a template. Raises SpecError for a bad template."""

    def __init__(self, template: str, *, what: str = "--metric-line") -> None:
        self.names: list[str] = []
        self._step = 0  # of the next line without a step
        self._expression = re.compile(self._compile(template.strip(), what))

    def read(self, line: str) -> tuple[int, dict[str, float]] | None:
        """Returns the step and the metrics of a line; None if it has another form."""
        found = self._expression.search(_CONTROL_SEQUENCE.sub("", line))
        if found is None:
            return None
        values = {
            name: float(text.replace(",", "")) for name, text in zip(self.names, found.groups(), strict=True)
        }
        given = values.pop(STEP, None)
        step = self._step if given is None or not given.is_integer() or abs(given) >= 2**53 else int(given)
        self._step = step + 1
        return step, values

    def _compile(self, template: str, what: str) -> str:
        parts: list[str] = []
        end, after_number = 0, False
        for found in _PARTS.finditer(template):
            literal = template[end : found.start()]
            parts.append(_escape(literal))
            end = found.end()
            brace, name, stray = found.groups()
            if stray:
                raise SpecError(
                    f"{what}: `{template}` has a single `{stray}`", hints=(f"write `{stray * 2}`",)
                )
            if brace:
                parts.append(re.escape(brace[0]))
                after_number = False
                continue
            if after_number and not literal:
                raise SpecError(f"{what}: `{template}` has no text between two numbers", hints=(_HINT,))
            parts.append(self._number(name.strip(), template, what))
            after_number = True
        if not set(self.names) - {STEP}:
            raise SpecError(f"{what}: `{template}` names no metric", hints=(_HINT,))
        start = r"(?<!\w)" if template[0].isalnum() else ""
        if template[0] == "{" and template[1] != "{":
            start = r"(?<!\d)"  # else each digit of a long number is tried as the first one
        return "".join((start, *parts, _escape(template[end:])))

    def _number(self, name: str, template: str, what: str) -> str:
        if not name:
            return _NUMBER
        if len(name) > _MAX_NAME_LENGTH or not name.isprintable():
            raise SpecError(f"{what}: `{name}` is no name of a metric", hints=(_HINT,))
        if (format_ := _FORMAT.fullmatch(name)) is not None:
            plain = format_["name"].strip()
            raise SpecError(
                f"{what}: `{{{name}}}` has a format of Python",
                hints=(f"write the name alone: `{{{plain if plain.isidentifier() else 'loss'}}}`",),
            )
        if name in self.names:
            raise SpecError(
                f"{what}: `{template}` has `{{{name}}}` twice",
                hints=("write `{}` for a number to pass over",),
            )
        self.names.append(name)
        return f"({_NUMBER})"


def check_metric_lines(templates: Sequence[str], *, what: str = "--metric-line") -> tuple[str, ...]:
    """Returns the templates. Raises SpecError for a bad one."""
    for template in templates:
        MetricLine(template, what=what)
    return tuple(templates)


def _escape(literal: str) -> str:
    return r"\s+".join(map(re.escape, re.split(r"\s+", literal)))
