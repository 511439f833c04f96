"""The parameters that the script of a study takes. A searched parameter that no trial takes would be reported
with results that do not depend on it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hopyard.domain.run import ParamValue
from hopyard.domain.space import Constant
from hopyard.domain.study import StudySpec
from hopyard.domain.suggest import closest_name
from hopyard.errors import StudyFailed

_TEMPLATE_NAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_MAX_NAMES = 12


class ScriptParams:
    """Collects the parameters that runs of the study have declared."""

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        self._searched = [
            parameter.name
            for parameter in spec.space.parameters
            if not isinstance(parameter.domain, Constant)
        ]
        self._in_command = _command_names(spec)
        self.declared: set[str] | None = None

    @property
    def takes_budget(self) -> bool | None:
        """Whether the script takes the parameter of its budget; None if it is unknown."""
        if self._spec.budget_param in self._in_command:
            return True
        return None if self.declared is None else self._spec.budget_param in self.declared

    def declare(self, names: Iterable[str]) -> bool:
        """Returns whether any of the names is new."""
        new = set(names) - (self.declared or set())
        self.declared = (self.declared or set()) | new
        return bool(new)

    def check(self, params: Mapping[str, ParamValue]) -> None:
        """Raises StudyFailed if the study searches one of the params of a trial, and no trial has taken
        it."""
        taken = (self.declared or set()) | self._in_command
        untaken = [name for name in self._searched if name in params and name not in taken]
        if untaken:
            raise StudyFailed(self._describe(untaken), hints=self._hints(untaken[0]))

    def _describe(self, untaken: list[str]) -> str:
        names = ", ".join(f"`{name}`" for name in untaken[:_MAX_NAMES])
        parameters = f"parameter {names}" if len(untaken) == 1 else f"parameters {names}"
        if not self.declared:
            return f"the script takes no parameters, but the study searches the {parameters}"
        known = ", ".join(sorted(self.declared)[:_MAX_NAMES])
        return f"the study searches the {parameters}, but the script takes only {known}"

    def _hints(self, name: str) -> tuple[str, ...]:
        similar = name.replace("-", "_")
        near = similar if similar in (self.declared or ()) else closest_name(name, self.declared or ())
        return (
            *((f"did you mean `{near}`? Rename the parameter in `space`",) if near else ()),
            f"read it in the script: hop.params({similar}=…)",
            f"or pass it in the command: `command: python train.py --{name} {{{name}}}`",
        )


def _command_names(spec: StudySpec) -> set[str]:
    """Returns the parameters that the command of a trial contains as `{name}`."""
    roles = (spec.trial or {}).get("roles") or ()
    return {
        name for role in roles for word in role.get("command") or () for name in _TEMPLATE_NAME.findall(word)
    }
