"""A search space as it is given, in a file or in Python.

```yaml
lr: loguniform(1e-5, 1e-1)                       # a text; Optuna's and Ray Tune's names are known too
batch_size: [16, 32, 64]                         # a list: one of these
layers: {int: [1, 4]}                            # whole numbers, both ends included
dropout: {type: float, low: 0.0, high: 0.5, step: 0.1}
optimizer:
  choice:
    sgd:
      momentum: uniform(0.0, 0.99)               # exists only where optimizer is sgd
    adam:
warmup: {int: [0, 1000], when: {optimizer: [adam], layers: [3, 4]}}     # the same, said at the parameter
epochs: 10                                       # always 10
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopyard.config.params import check_key
from hopyard.config.ranges import bad, equal, plain
from hopyard.config.reader import shown
from hopyard.config.spaceforms import domain_of
from hopyard.config.suggest import hints_for
from hopyard.domain.run import ParamValue
from hopyard.domain.space import Choice, Condition, Constant, Domain, Integer, Parameter, Space, Uniform
from hopyard.errors import SpecError

_MOST_PARAMETERS = 1000
_Conditions = tuple[Condition, ...]


def space_of(given: Mapping[str, Any] | Space, *, where: str = "space") -> Space:
    """The space that `given` spells; `where` is its path in errors.

    Raises SpecError, with the path of what is wrong: no parameters, a range without a point or without
    bounds, a condition that can never hold, an unknown key.
    """
    reading = _Reading(where)
    if isinstance(given, Space):
        for parameter in given.parameters:
            path = f"{where}.{parameter.name}"
            reading.add(parameter.name, domain_of(parameter.domain, path), parameter.conditions, path)
    elif isinstance(given, Mapping):
        reading.all_of(given, (), where)
    else:
        raise bad(
            where,
            f"{shown(given)} is not a mapping",
            "one `name: range` line per parameter: lr: loguniform(1e-5, 1e-1)",
        )
    if not reading.found:
        raise bad(
            where,
            "there is no parameter in it, so there is nothing to search",
            "one `name: range` line per parameter: lr: loguniform(1e-5, 1e-1)",
        )
    return Space(tuple(reading.found.values()))


class _Reading:
    """The parameters found so far, in order."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.found: dict[str, Parameter] = {}

    def all_of(self, given: Mapping[Any, Any], outer: _Conditions, where: str) -> None:
        for name, value in given.items():
            if not isinstance(name, str):
                raise bad(where, f"the key {shown(name)} is not a text", f'write it in quotes: "{name}"')
            self.one(name, value, outer, f"{where}.{name}")

    def one(self, name: str, value: Any, outer: _Conditions, where: str) -> None:
        conditions = outer
        if isinstance(value, Mapping) and "when" in value:
            conditions += self._when(value["when"], name, f"{where}.when")
            value = {key: rest for key, rest in value.items() if key != "when"}
        if value is None:
            raise bad(
                where,
                "no range is given",
                f"for example {name}: loguniform(1e-5, 1e-1)",
                f"where it is always nothing: {name}: {{value: null}}",
            )
        nested = _nested(value, where)
        self.add(name, domain_of(list(nested) if nested else value, where), conditions, where)
        for one, inner in (nested or {}).items():
            if inner is not None:
                if not isinstance(inner, Mapping):
                    raise bad(
                        f"{where}.{one}",
                        f"{shown(inner)} is not a mapping",
                        f"the parameters that exist only where {name} is {one}",
                    )
                self.all_of(inner, (*conditions, Condition(name, (one,))), f"{where}.{one}")

    def add(self, name: str, domain: Domain, conditions: _Conditions, where: str) -> None:
        try:
            check_key(name, what=where)
        except SpecError as wrong:
            raise bad(self.where, wrong.message.partition(": ")[2], *wrong.hints) from wrong
        conditions = tuple(self._condition(c, name, where) for c in conditions)
        parameter = Parameter(name, domain, conditions)
        before = self.found.get(name)
        if before is not None:
            parameter = _merged(before, parameter, where)
        elif len(self.found) == _MOST_PARAMETERS:
            raise bad(self.where, f"there are more than {_MOST_PARAMETERS} parameters")
        self._check_possible(parameter, where)
        self.found[name] = parameter

    def _when(self, given: Any, name: str, where: str) -> _Conditions:
        if not isinstance(given, Mapping) or not given:
            raise bad(
                where,
                f"{shown(given)} is no condition",
                f"for example {name}: {{…, when: {{optimizer: sgd}}}}, or with several values: "
                f"{{optimizer: [sgd, adam]}}",
            )
        return tuple(
            Condition(str(parent), tuple(_listed(values, f"{where}.{parent}")))
            for parent, values in given.items()
        )

    def _condition(self, given: Condition, name: str, where: str) -> Condition:
        """With the parent's own values. Raises SpecError for a parent that is not known yet, and a value that
        it never has."""
        parent = self.found.get(given.parameter)
        path = f"{where}.when.{given.parameter}"
        if given.parameter == name:
            raise bad(path, f"`{name}` cannot depend on itself")
        if parent is None:
            hints = hints_for(given.parameter, self.found, what="parameters above it")
            raise bad(
                path,
                f"there is no parameter `{given.parameter}` above it",
                *hints,
                "a parameter stands below those that it depends on",
            )
        if not given.values:
            raise bad(path, "no value is given", f"for example when: {{{given.parameter}: …}}")
        own: list[ParamValue] = []
        for value in given.values:
            matching = _possible(parent, value, path)
            if not matching:
                raise bad(
                    path,
                    f"{shown(value)} is not a value that `{given.parameter}` can have",
                    *_values_of(parent, value),
                )
            own += [one for one in matching if not equal(own, one)]
        return Condition(given.parameter, tuple(own))

    def _check_possible(self, parameter: Parameter, where: str) -> None:
        """Raise SpecError where no choice makes the parameter exist."""
        allowed: dict[str, list[ParamValue]] = {}
        waiting = list(parameter.conditions)
        while waiting:
            condition = waiting.pop()
            before = allowed.get(condition.parameter)
            both = (
                list(condition.values)
                if before is None
                else [value for value in before if equal(condition.values, value)]
            )
            if not both:
                raise bad(
                    f"{where}.when.{condition.parameter}",
                    f"no value of `{condition.parameter}` is left: `{parameter.name}` would never exist",
                )
            allowed[condition.parameter] = both
            waiting += self.found[condition.parameter].conditions


def _nested(value: Any, where: str) -> Mapping[Any, Any] | None:
    """The values of a choice that is written as a mapping, each with the parameters that exist only there;
    else None."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return None
    (head, body), *_ = value.items()
    if head not in ("choice", "categorical", "suggest_categorical") or not isinstance(plain(body), Mapping):
        return None
    if not body:
        raise bad(f"{where}.{head}", "there is nothing to choose from: the mapping is empty")
    return dict(body)


def _merged(before: Parameter, again: Parameter, where: str) -> Parameter:
    """The same range under two values of one parent is one parameter, which exists under both."""
    same_outside = before.conditions[:-1] == again.conditions[:-1] and before.domain == again.domain
    if (
        before.conditions
        and again.conditions
        and same_outside
        and before.conditions[-1].parameter == again.conditions[-1].parameter
    ):
        last, other = before.conditions[-1], again.conditions[-1]
        values = (*last.values, *(value for value in other.values if not equal(last.values, value)))
        return Parameter(
            before.name, before.domain, (*before.conditions[:-1], Condition(last.parameter, values))
        )
    raise bad(
        where,
        f"there is another parameter `{again.name}`",
        "every parameter has a name of its own; under two values of a choice it has the same range, or "
        "two names",
    )


def _listed(values: Any, where: str) -> list[Any]:
    values = plain(values)
    if isinstance(values, (list, tuple)):
        return list(values)
    if isinstance(values, (Mapping, set)):
        raise bad(where, f"{shown(values)} is neither a value nor a list of values")
    return [values]


def _possible(parent: Parameter, value: Any, where: str) -> list[ParamValue]:
    """The parent's own values that are the same as `value`."""
    domain = parent.domain
    if isinstance(domain, Choice):
        return equal(domain.values, value)
    if isinstance(domain, Constant):
        return equal((domain.value,), value)
    if isinstance(domain, Integer):
        whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1
        return (
            [int(value)]
            if whole and domain.low <= value <= domain.high and (int(value) - domain.low) % domain.step == 0
            else []
        )
    assert isinstance(domain, Uniform)
    raise bad(
        where,
        f"`{parent.name}` is a range of real numbers, and nothing can depend on hitting one of them",
        "a condition needs a choice or whole numbers",
    )


def _values_of(parent: Parameter, value: Any) -> tuple[str, ...]:
    domain = parent.domain
    if isinstance(domain, Choice):
        return hints_for(str(value), [str(one) for one in domain.values], what="its values")
    if isinstance(domain, Constant):
        return (f"it is always {shown(domain.value)}",)
    assert isinstance(domain, Integer)
    step = f" in steps of {domain.step}" if domain.step > 1 else ""
    return (f"it goes from {domain.low} to {domain.high}{step}",)
