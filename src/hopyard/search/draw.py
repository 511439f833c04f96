"""Sampling: every value comes from a stream of its own.

A stream is named by (seed, trial, purpose, parameter) and hashed (BLAKE2b, RFC 7693) as a counter-based generator: nothing is
consumed, so that adding or removing a parameter, or the order of calls, changes no other value.
"""

from __future__ import annotations

from hashlib import blake2b
from math import exp, floor, log

from hopyard.domain.run import ParamValue
from hopyard.domain.space import Choice, Constant, Domain, Integer, Parameter, Space, Uniform

_BITS = 53  # of a double's mantissa: every value below 1 that the hash can give is exact


def unit(seed: int, trial: int, name: str, *, purpose: str = "draw") -> float:
    """A number from 0 (included) to 1 (not included). `purpose` is a word without `:`, so that no two streams share a name."""
    digest = blake2b(f"{seed}:{trial}:{purpose}:{name}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> (64 - _BITS)) / (1 << _BITS)


def draw(space: Space, seed: int, trial: int, *, purpose: str = "draw") -> dict[str, ParamValue]:
    """The params of a trial: one value for every parameter that exists under those drawn before it."""
    chosen: dict[str, ParamValue] = {}
    for parameter in space.parameters:
        if space.active(parameter, chosen):
            chosen[parameter.name] = draw_one(parameter, seed, trial, purpose=purpose)
    return chosen


def draw_one(parameter: Parameter, seed: int, trial: int, *, purpose: str = "draw") -> ParamValue:
    return at(parameter.domain, unit(seed, trial, parameter.name, purpose=purpose))


def at(domain: Domain, share: float) -> ParamValue:
    """The value that lies `share` (0 to 1) of the way through a domain; of finitely many, each has an equal part of the way."""
    match domain:
        case Constant(value):
            return value
        case Choice(values):
            return values[_pick(len(values), share)]
        case Integer(low, high, log=True, step=step):
            # Half a number more at both ends, so that the first and the last have a whole part of the way as well.
            near = min(high, max(low, round(_between(low - 0.5, high + 0.5, share))))
            return low + step * min((high - low) // step, round((near - low) / step))
        case Integer(low, high, step=step):
            return low + step * _pick((high - low) // step + 1, share)
        case Uniform():
            return _real(domain, share)


def _real(domain: Uniform, share: float) -> float:
    low, high = domain.low, domain.high
    if domain.log and domain.step is not None:
        value = quantised(domain, round((_between(low, high, share) - low) / domain.step))
    elif domain.log:
        value = tidy(_between(low, high, share))
    elif domain.step is not None:
        value = quantised(domain, _pick(steps(low, high, domain.step) + 1, share))
    else:
        value = low + share * (high - low)
    return min(high, max(low, value))


def quantised(domain: Uniform, number: int) -> float:
    """The value that lies `number` steps above low, or the last one."""
    assert domain.step is not None
    return tidy(domain.low + domain.step * min(number, steps(domain.low, domain.high, domain.step)))


def steps(low: float, high: float, step: float) -> int:
    """How often `step` fits between them, where 0.1 fits three times into 0.3."""
    return floor((high - low) / step + 1e-9)


def tidy(value: float) -> float:
    """Without the last digits, in which logarithms differ from machine to machine and 3 * 0.1 is not 0.3."""
    return float(f"{value:.12g}")


def _between(low: float, high: float, share: float) -> float:
    return exp(log(low) + share * (log(high) - log(low)))


def _pick(count: int, share: float) -> int:
    return min(count - 1, floor(share * count))
