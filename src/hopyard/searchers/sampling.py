"""Sampling: every value comes from a stream of its own.

The name of a stream is (seed, trial, purpose, parameter); its hash (BLAKE2b, RFC 7693) is a counter-based
generator. Nothing is consumed: a new or removed parameter, or another order of calls, changes no other value.
"""

from __future__ import annotations

from hashlib import blake2b
from math import exp, floor, log

from hopyard.domain.run import ParamValue
from hopyard.domain.space import Choice, Constant, Domain, Integer, Parameter, Space, Uniform

_MANTISSA_BITS = 53  # of a double's mantissa: every value below 1 that the hash can give is exact


def uniform(seed: int, trial: int, name: str, *, purpose: str = "draw") -> float:
    """Returns a number from 0 (included) to 1 (not included). `purpose` is a word without `:`, so that no two
    streams share a name."""
    digest = blake2b(
        f"{seed}:{trial}:{purpose}:{name}".encode("utf-8", "surrogatepass"), digest_size=8
    ).digest()
    return (int.from_bytes(digest, "big") >> (64 - _MANTISSA_BITS)) / (1 << _MANTISSA_BITS)


def sample(space: Space, seed: int, trial: int, *, purpose: str = "draw") -> dict[str, ParamValue]:
    """Returns the params of a trial: one value for every parameter that exists under the values drawn before
    it."""
    params: dict[str, ParamValue] = {}
    for parameter in space.parameters:
        if space.is_active(parameter, params):
            params[parameter.name] = sample_parameter(parameter, seed, trial, purpose=purpose)
    return params


def sample_parameter(parameter: Parameter, seed: int, trial: int, *, purpose: str = "draw") -> ParamValue:
    return value_at(parameter.domain, uniform(seed, trial, parameter.name, purpose=purpose))


def value_at(domain: Domain, share: float) -> ParamValue:
    """Returns the value at `share` (0 to 1) of the way through a domain. Each value of a finite domain has an
    equal part of the way."""
    match domain:
        case Constant(value):
            return value
        case Choice(values):
            return values[_choose_index(len(values), share)]
        case Integer(low, high, log=True):
            # Half a number more at both ends: so the first and the last value have a whole part of the way.
            return nearest_value(domain, interpolate_log(low - 0.5, high + 0.5, share))
        case Integer():
            return quantise(domain, _choose_index(last_step(domain) + 1, share))
        case Uniform(low, high, log=True):
            return nearest_value(domain, interpolate_log(low, high, share))
        case Uniform(low, high, step=None):
            return float(min(high, max(low, low + share * (high - low))))
        case Uniform():
            return quantise(domain, _choose_index(last_step(domain) + 1, share))


def nearest_value(domain: Uniform | Integer, value: float) -> float | int:
    """Returns the value of the domain that is nearest to this one."""
    if domain.step is None:
        return float(min(domain.high, max(domain.low, round_value(value))))
    return quantise(domain, round((value - domain.low) / domain.step))


def quantise(domain: Uniform | Integer, number: int) -> float | int:
    """Returns the value that is `number` steps above low, clamped to the first and the last."""
    if domain.step is None:
        raise ValueError("a range without steps")
    number = max(0, min(number, last_step(domain)))
    if isinstance(domain, Integer):
        return domain.low + domain.step * number
    return float(min(domain.high, max(domain.low, round_value(domain.low + domain.step * number))))


def last_step(domain: Uniform | Integer) -> int:
    """Returns the number of steps from the lowest value to the highest; 0.1 fits three times into 0.3. A
    range without steps has none."""
    if isinstance(domain, Integer):
        return (domain.high - domain.low) // domain.step
    return 0 if domain.step is None else floor((domain.high - domain.low) / domain.step + 1e-9)


def round_value(value: float) -> float:
    """Returns the value without its last digits, in which logarithms differ between machines and 3 * 0.1 is
    not 0.3."""
    return float(f"{value:.12g}")


def interpolate_log(low: float, high: float, share: float) -> float:
    """Returns the value at `share` of the way from low to high in their logarithms."""
    return exp(log(low) + share * (log(high) - log(low)))


def _choose_index(count: int, share: float) -> int:
    return min(count - 1, floor(share * count))
