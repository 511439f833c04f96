"""The configuration of a trial, as a trainable receives it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from hopyard.domain.run import ParamValue
from hopyard.domain.study import RESERVED_CONFIG_KEYS
from hopyard.errors import SpecError


@dataclass(frozen=True, slots=True)
class Config:
    """The parameters of the trial, as `config.lr` or `config["lr"]`, and its position. Immutable, compared by
    value.

    params: the parameters alone. trial: its id. seed: the seed of the study. epoch: the current epoch, from
    0. epochs: the current budget of the trial in epochs. Raises SpecError for a parameter with one of these
    names.
    """

    params: Mapping[str, ParamValue]
    trial: str = "0"
    seed: int = 0
    epoch: int = 0
    epochs: int = 1

    def __post_init__(self) -> None:
        for name in RESERVED_CONFIG_KEYS:
            if name in self.params:
                raise SpecError(
                    f"space.{name}: a trainable's config has its own `{name}`",
                    hints=(f"rename the parameter, for example to `my_{name}`",),
                )

    def __getattr__(self, name: str) -> ParamValue:
        # copy and pickle look up attributes before `params` exists
        if name.startswith("__") or name in RESERVED_CONFIG_KEYS:
            raise AttributeError(name)
        try:
            return self.params[name]
        except KeyError:
            raise AttributeError(_unknown_parameter(name, self.params)) from None

    def __getitem__(self, name: str) -> ParamValue:
        try:
            return self.params[name]
        except KeyError:
            raise KeyError(_unknown_parameter(name, self.params)) from None

    def __contains__(self, name: object) -> bool:
        return name in self.params

    def __iter__(self) -> Iterator[str]:
        return iter(self.params)

    def __len__(self) -> int:
        return len(self.params)

    def keys(self) -> Iterator[str]:
        """Returns the names of parameters, so that `dict(config)` and `f(**config)` give the parameters."""
        return iter(self.params)

    def get(self, name: str, default: ParamValue = None) -> ParamValue:
        """Returns a parameter, or `default` if this trial does not have it, for example because of a
        condition of the space."""
        return self.params.get(name, default)

    def at(self, epoch: int, epochs: int | None = None) -> Config:
        """Returns the config of the same trial in another epoch."""
        return replace(self, epoch=epoch, epochs=self.epochs if epochs is None else epochs)


def _unknown_parameter(name: str, params: Mapping[str, ParamValue]) -> str:
    matches = difflib.get_close_matches(name, params, n=1)
    suggestion = f"; did you mean `{matches[0]}`?" if matches else ""
    return f"the trial has no parameter `{name}`; it has {', '.join(params) or 'none'}{suggestion}"
