"""Parses a search space, from a file or from Python.

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
warmup: {int: [0, 1000], when: {optimizer: [adam], layers: [3, 4]}}     # the same, written at the parameter
epochs: 10                                       # always 10
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopyard.config.key_values import check_key
from hopyard.config.limits import MAX_PARAMETERS
from hopyard.config.search.range_checks import equal_values, range_error, to_plain_value
from hopyard.config.search.range_forms import read_domain
from hopyard.config.suggest import unknown_name_hints
from hopyard.config.yaml_section import format_given
from hopyard.domain.run import ParamValue
from hopyard.domain.space import Choice, Condition, Constant, Domain, Integer, Parameter, Space, Uniform
from hopyard.errors import SpecError

_Conditions = tuple[Condition, ...]


def read_space(value: Mapping[str, Any] | Space, *, where: str = "space") -> Space:
    """Returns the space that `value` spells; `where` is its path in errors. Raises SpecError with the path of
    the invalid value: no parameters, a range without a point or without bounds, a condition that can never
    hold, an unknown key."""
    reader = _SpaceReader(where)
    if isinstance(value, Space):
        for parameter in value.parameters:
            path = f"{where}.{parameter.name}"
            reader.add(parameter.name, read_domain(parameter.domain, path), parameter.conditions, path)
    elif isinstance(value, Mapping):
        reader.read_parameters(value, (), where)
    else:
        raise range_error(
            where,
            f"{format_given(value)} is not a mapping",
            "one `name: range` line per parameter: lr: loguniform(1e-5, 1e-1)",
        )
    if not reader.parameters:
        raise range_error(
            where,
            "there is no parameter in it, so there is nothing to search",
            "one `name: range` line per parameter: lr: loguniform(1e-5, 1e-1)",
        )
    return Space(tuple(reader.parameters.values()))


class _SpaceReader:
    """Collects the parameters, in order."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.parameters: dict[str, Parameter] = {}

    def read_parameters(self, mapping: Mapping[Any, Any], outer: _Conditions, path: str) -> None:
        for name, value in mapping.items():
            if not isinstance(name, str):
                raise range_error(
                    path, f"the key {format_given(name)} is not a text", f'write it in quotes: "{name}"'
                )
            self.read_parameter(name, value, outer, f"{path}.{name}")

    def read_parameter(self, name: str, value: Any, outer: _Conditions, path: str) -> None:
        conditions = outer
        if isinstance(value, Mapping) and "when" in value:
            conditions += self._read_conditions(value["when"], name, f"{path}.when")
            value = {key: rest for key, rest in value.items() if key != "when"}
        if value is None:
            raise range_error(
                path,
                "no range is given",
                f"for example {name}: loguniform(1e-5, 1e-1)",
                f"where it is always nothing: {name}: {{value: null}}",
            )
        nested = _nested_parameters(value, path)
        self.add(name, read_domain(list(nested) if nested else value, path), conditions, path)
        for choice, inner in (nested or {}).items():
            if inner is not None:
                if not isinstance(inner, Mapping):
                    raise range_error(
                        f"{path}.{choice}",
                        f"{format_given(inner)} is not a mapping",
                        f"the parameters that exist only where {name} is {choice}",
                    )
                self.read_parameters(inner, (*conditions, Condition(name, (choice,))), f"{path}.{choice}")

    def add(self, name: str, domain: Domain, conditions: _Conditions, path: str) -> None:
        try:
            check_key(name, what=path)
        except SpecError as wrong:
            raise range_error(self.path, wrong.message.partition(": ")[2], *wrong.hints) from wrong
        conditions = tuple(self._read_condition(c, name, path) for c in conditions)
        parameter = Parameter(name, domain, conditions)
        before = self.parameters.get(name)
        if before is not None:
            parameter = _merge(before, parameter, path)
        elif len(self.parameters) == MAX_PARAMETERS:
            raise range_error(self.path, f"there are more than {MAX_PARAMETERS} parameters")
        self._check_possible(parameter, path)
        self.parameters[name] = parameter

    def _read_conditions(self, value: Any, name: str, path: str) -> _Conditions:
        if not isinstance(value, Mapping) or not value:
            raise range_error(
                path,
                f"{format_given(value)} is no condition",
                f"for example {name}: {{…, when: {{optimizer: sgd}}}}, or with several values: "
                f"{{optimizer: [sgd, adam]}}",
            )
        return tuple(
            Condition(str(parent), tuple(_value_list(values, f"{path}.{parent}")))
            for parent, values in value.items()
        )

    def _read_condition(self, condition: Condition, name: str, where: str) -> Condition:
        """Returns the condition with the parent's own values. Raises SpecError for a parent that is not
        defined before, and for a value that it never has."""
        parent = self.parameters.get(condition.parameter)
        path = f"{where}.when.{condition.parameter}"
        if condition.parameter == name:
            raise range_error(path, f"`{name}` cannot depend on itself")
        if parent is None:
            hints = unknown_name_hints(condition.parameter, self.parameters, subject="parameters above it")
            raise range_error(
                path,
                f"there is no parameter `{condition.parameter}` above it",
                *hints,
                "a parameter stands below those that it depends on",
            )
        if not condition.values:
            raise range_error(path, "no value is given", f"for example when: {{{condition.parameter}: …}}")
        values: list[ParamValue] = []
        for value in condition.values:
            matching = _matching_values(parent, value, path)
            if not matching:
                raise range_error(
                    path,
                    f"{format_given(value)} is not a value that `{condition.parameter}` can have",
                    *_parent_values(parent, value),
                )
            values += [match for match in matching if not equal_values(values, match)]
        return Condition(condition.parameter, tuple(values))

    def _check_possible(self, parameter: Parameter, path: str) -> None:
        """Raises SpecError if the parameter can never exist."""
        allowed: dict[str, list[ParamValue]] = {}
        pending = list(parameter.conditions)
        while pending:
            condition = pending.pop()
            allowed_before = allowed.get(condition.parameter)
            possible = (
                list(condition.values)
                if allowed_before is None
                else [value for value in allowed_before if equal_values(condition.values, value)]
            )
            if not possible:
                raise range_error(
                    f"{path}.when.{condition.parameter}",
                    f"no value of `{condition.parameter}` is left: `{parameter.name}` would never exist",
                )
            allowed[condition.parameter] = possible
            pending += self.parameters[condition.parameter].conditions


def _nested_parameters(value: Any, path: str) -> Mapping[Any, Any] | None:
    """The values of a choice that is written as a mapping, each with the parameters that exist only there;
    else None."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return None
    (form, body), *_ = value.items()
    if form not in ("choice", "categorical", "suggest_categorical") or not isinstance(
        to_plain_value(body), Mapping
    ):
        return None
    if not body:
        raise range_error(f"{path}.{form}", "there is nothing to choose from: the mapping is empty")
    return dict(body)


def _merge(first: Parameter, second: Parameter, path: str) -> Parameter:
    """Merges the same range under two values of one parent into one parameter, which exists under both."""
    same_outside = first.conditions[:-1] == second.conditions[:-1] and first.domain == second.domain
    if (
        first.conditions
        and second.conditions
        and same_outside
        and first.conditions[-1].parameter == second.conditions[-1].parameter
    ):
        first_condition, second_condition = first.conditions[-1], second.conditions[-1]
        values = (
            *first_condition.values,
            *(value for value in second_condition.values if not equal_values(first_condition.values, value)),
        )
        return Parameter(
            first.name, first.domain, (*first.conditions[:-1], Condition(first_condition.parameter, values))
        )
    raise range_error(
        path,
        f"there is another parameter `{second.name}`",
        "every parameter has a name of its own; under two values of a choice it has the same range, or "
        "two names",
    )


def _value_list(values: Any, path: str) -> list[Any]:
    values = to_plain_value(values)
    if isinstance(values, (list, tuple)):
        return list(values)
    if isinstance(values, (Mapping, set)):
        raise range_error(path, f"{format_given(values)} is neither a value nor a list of values")
    return [values]


def _matching_values(parent: Parameter, value: Any, path: str) -> list[ParamValue]:
    """Returns the parent's own values that are the same as `value`."""
    domain = parent.domain
    if isinstance(domain, Choice):
        return equal_values(domain.values, value)
    if isinstance(domain, Constant):
        return equal_values((domain.value,), value)
    if isinstance(domain, Integer):
        whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1
        return (
            [int(value)]
            if whole and domain.low <= value <= domain.high and (int(value) - domain.low) % domain.step == 0
            else []
        )
    assert isinstance(domain, Uniform)
    raise range_error(
        path,
        f"`{parent.name}` is a range of real numbers, and nothing can depend on hitting one of them",
        "a condition needs a choice or whole numbers",
    )


def _parent_values(parent: Parameter, value: Any) -> tuple[str, ...]:
    domain = parent.domain
    if isinstance(domain, Choice):
        return unknown_name_hints(str(value), [str(choice) for choice in domain.values], subject="its values")
    if isinstance(domain, Constant):
        return (f"it is always {format_given(domain.value)}",)
    assert isinstance(domain, Integer)
    step = f" in steps of {domain.step}" if domain.step > 1 else ""
    return (f"it goes from {domain.low} to {domain.high}{step}",)
