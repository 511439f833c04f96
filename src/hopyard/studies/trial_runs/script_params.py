"""The parameters that the script of a study takes. A searched parameter that no trial takes would be reported
with results that do not depend on it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from hopyard.domain.param_format import ParamStyle, fill_command, notebook_hint, param_format_from_json
from hopyard.domain.run import ParamValue
from hopyard.domain.space import Constant
from hopyard.domain.study import StudySpec
from hopyard.domain.suggest import closest_name
from hopyard.errors import StudyFailed
from hopyard.studies.code_reads import MAX_UNREAD_TRIALS

_MAX_NAMES = 12


class ScriptParams:
    """Collects the parameters that runs of the study have declared.

    named_in_code: parameters that a call of `hop.params` in the script names. Such a call may stand in a
    branch that a trial does not take.
    """

    def __init__(self, spec: StudySpec, named_in_code: Collection[str] = ()) -> None:
        self._spec, self._named_in_code = spec, named_in_code
        self._unread_trials: Counter[str] = Counter()
        self._searched = [
            parameter.name
            for parameter in spec.space.parameters
            if not isinstance(parameter.domain, Constant)
        ]
        self._in_command = _command_names(spec)
        roles = (spec.trial or {}).get("roles") or ()
        self._words = [str(word) for role in roles for word in role.get("command") or ()]
        stored = (spec.trial or {}).get("param_format")
        self._is_notebook = (stored or {}).get("style") == ParamStyle.NOTEBOOK
        self.declared: set[str] | None = None

    @property
    def budget_in_command(self) -> bool:
        """Whether the command of a trial contains its budget."""
        return self._spec.budget_param in self._in_command

    @property
    def takes_budget(self) -> bool | None:
        """Whether the script takes the parameter of its budget; None if it is unknown."""
        if self.budget_in_command:
            return True
        return None if self.declared is None else self._spec.budget_param in self.declared

    def declare(self, names: Iterable[str]) -> bool:
        """Returns whether any of the names is new."""
        new = set(names) - (self.declared or set())
        self.declared = (self.declared or set()) | new
        return bool(new)

    def check(self, params: Mapping[str, ParamValue], unread: Collection[str] = ()) -> None:
        """Checks the parameters of a trial that has ended. Raises StudyFailed if the study searches one of
        them, and no trial has taken it. unread: parameters that its run has not read."""
        untaken = self.untaken(params, unread)
        self._unread_trials.update(untaken)
        final = [
            name
            for name in untaken
            if name not in self._named_in_code or self._unread_trials[name] >= MAX_UNREAD_TRIALS
        ]
        if final:
            raise StudyFailed(self._describe(final, unread), hints=self._hints(final[0]))

    def untaken(self, params: Mapping[str, ParamValue], unread: Collection[str] = ()) -> list[str]:
        """Returns the searched parameters among these that no trial has taken until now."""
        taken = ((self.declared or set()) | self._in_command) - set(unread)
        return [name for name in self._searched if name in params and name not in taken]

    @property
    def never_read(self) -> list[str]:
        """The searched parameters that ended trials had, and that no trial has taken."""
        return self.untaken(dict.fromkeys(self._unread_trials))

    def _describe(self, untaken: list[str], unread: Collection[str]) -> str:
        names = ", ".join(f"`{name}`" for name in untaken[:_MAX_NAMES])
        parameters = f"parameter {names}" if len(untaken) == 1 else f"parameters {names}"
        if set(untaken) <= set(unread) and (not self.declared or self._in_command.intersection(untaken)):
            return f"the study searches the {parameters}, but no process of the trial has read it"
        if not self.declared:
            return f"the script takes no parameters, but the study searches the {parameters}"
        known = ", ".join(sorted(self.declared)[:_MAX_NAMES])
        return f"the study searches the {parameters}, but the script takes only {known}"

    def _hints(self, name: str) -> tuple[str, ...]:
        similar = name.replace("-", "_")
        near = similar if similar in (self.declared or ()) else closest_name(name, self.declared or ())
        renamed = (f"did you mean `{near}`? Rename the parameter in `space`",) if near else ()
        if self._is_notebook:
            return (*renamed, notebook_hint(similar))
        if name in self._in_command:
            script = next((word for word in self._words if word.endswith(".py")), "the script")
            place = f"`{script}`" if script in self._words else script
            return (f"let {place} read its arguments: `parser.parse_args()`", "or read `hop.params` in it")
        return (
            *renamed,
            f"read it in the script: hop.params({similar}=…)",
            f"or pass it in the command: `command: python train.py --{name} {{{name}}}`",
        )


def _command_names(spec: StudySpec) -> set[str]:
    """Returns the parameters that the command of a trial contains as `{name}`, or in the form of its
    script."""
    trial = spec.trial or {}
    stored = trial.get("param_format")
    form = None if stored is None else param_format_from_json(stored)
    params = dict.fromkeys([*(p.name for p in spec.space.parameters), spec.budget_param])
    return {
        name
        for role in trial.get("roles") or ()
        for name in fill_command(role.get("command") or (), params, form).given
    }
