"""The configuration of a trial, as a trainable receives it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hopyard.domain.run import ParamValue
from hopyard.domain.study import RESERVED_CONFIG_KEYS
from hopyard.errors import SpecError

ALL_READ = "*"  # in place of names: all parameters
_readers: list[set[str]] = []  # the sets that collect the names of read parameters now


@contextmanager
def track_reads() -> Iterator[set[str]]:
    """Collects the names of the parameters that the block reads of any config, on any thread. A process that
    is forked in the block counts as a reader of all, because its reads cannot be seen."""
    names: set[str] = set()
    _readers.append(names)
    try:
        yield names
    finally:
        _readers[:] = [reader for reader in _readers if reader is not names]  # equal ones remain


def _note_reads(names: Iterable[str]) -> None:
    for reader in _readers:
        reader.update(names)


os.register_at_fork(before=lambda: _note_reads((ALL_READ,)))


def params_of(config: Config) -> Mapping[str, ParamValue]:
    """Returns the parameters for code that does not use their values; this counts as no read."""
    params: Mapping[str, ParamValue] = object.__getattribute__(config, "params")
    return params


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
            if name in params_of(self):
                raise SpecError(
                    f"space.{name}: a trainable's config has its own `{name}`",
                    hints=(f"rename the parameter, for example to `my_{name}`",),
                )

    def __getattribute__(self, name: str) -> Any:
        if name == "params" and _readers:
            _note_reads(params_of(self))
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> ParamValue:
        # copy and pickle look up attributes before `params` exists
        if name.startswith("__") or name in RESERVED_CONFIG_KEYS:
            raise AttributeError(name)
        _note_reads((name,))
        try:
            return params_of(self)[name]
        except KeyError:
            raise AttributeError(_unknown_parameter(name, params_of(self))) from None

    def __getitem__(self, name: str) -> ParamValue:
        _note_reads((name,))
        try:
            return params_of(self)[name]
        except KeyError:
            raise KeyError(_unknown_parameter(name, params_of(self))) from None

    def __contains__(self, name: object) -> bool:
        return name in params_of(self)

    def __iter__(self) -> Iterator[str]:
        return iter(self.params)

    def __len__(self) -> int:
        return len(params_of(self))

    def keys(self) -> Iterator[str]:
        """Returns the names of parameters, so that `dict(config)` and `f(**config)` give the parameters."""
        return iter(self.params)

    def get(self, name: str, default: ParamValue = None) -> ParamValue:
        """Returns a parameter, or `default` if this trial does not have it, for example because of a
        condition of the space."""
        _note_reads((name,))
        return params_of(self).get(name, default)

    def at(self, epoch: int, epochs: int | None = None) -> Config:
        """Returns the config of the same trial in another epoch."""
        return Config(
            params_of(self), self.trial, self.seed, epoch, self.epochs if epochs is None else epochs
        )


def _unknown_parameter(name: str, params: Mapping[str, ParamValue]) -> str:
    matches = difflib.get_close_matches(name, params, n=1)
    suggestion = f"; did you mean `{matches[0]}`?" if matches else ""
    return f"the trial has no parameter `{name}`; it has {', '.join(params) or 'none'}{suggestion}"
