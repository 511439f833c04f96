"""Parses the requests of replicas in text form: `A100|H100:2`, `0.5`, `fpga=1`, `same:rack/4`, `2-8`. Each
has a writer, whose text is parsed as exactly the same request."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hopyard.config.limits import MAX_EXTRAS
from hopyard.config.suggest import unknown_name_hints
from hopyard.config.units import NON_MODEL_WORDS, is_gpu_model
from hopyard.domain.gang import NODE_LEVEL, Closeness
from hopyard.domain.ids import check_name
from hopyard.domain.resources import WHOLE_GPU
from hopyard.domain.run import MAX_REPLICAS
from hopyard.errors import SpecError

_GPUS_HINT = "GPUs are a number, a share of one, or MODEL:NUMBER: 1, 0.5, A100:8, A100|H100:2"
_TOPOLOGY_HINT = (
    "closeness is written RULE:LEVEL, with slices RULE:LEVEL/SIZE: same:node, spread:rack, same:rack/4"
)
_REPLICAS_HINT = "a number, or the fewest and the most of an elastic run: 4, 2-8"
_RESERVED = frozenset({"cpu", "cpus", "memory", "gpu", "gpus", "gpu_memory"})
_COUNT = re.compile(r"(\d{1,6})(?:\.(\d{1,3}))?", re.ASCII)
_RANGE = re.compile(r"(\d{1,9})(?:\s*-\s*(\d{1,9}))?", re.ASCII)
_NUMBER_LIKE = re.compile(r"-?[\d.]+", re.ASCII)
_LABEL = re.compile(r"[^\x00=]{1,256}")


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """Whole GPUs (`count`), or thousandths of one (`milli`), of one of these models; () allows any."""

    count: int = 0
    milli: int = 0
    models: tuple[str, ...] = ()


def parse_gpus(text: str, *, what: str = "gpus") -> GpuRequest:
    """Raises SpecError."""
    stripped = text.strip()
    names, colon, number = stripped.rpartition(":")
    if not colon:
        names, number = (
            (stripped, "1")
            if stripped[:1].isalpha() and stripped.lower() not in NON_MODEL_WORDS
            else ("", stripped)
        )
    match = _COUNT.fullmatch(number)
    if match is None or (colon and not names):
        raise SpecError(f"{what}: `{text}` is not a number of GPUs", hints=(_GPUS_HINT,))
    models = tuple(dict.fromkeys(name.strip() for name in names.split("|"))) if names else ()
    for model in models:
        if not is_gpu_model(model):
            raise SpecError(f"{what}: `{model}` is not the name of a GPU model", hints=(_GPUS_HINT,))
    count, milli = int(match[1]), int((match[2] or "").ljust(3, "0"))
    if milli and count:
        raise SpecError(
            f"{what}: `{text}` is neither whole GPUs nor a share of one",
            hints=(f"request {count + 1}, or a share below 1: 0.5",),
        )
    if not milli and match[2]:
        raise SpecError(f"{what}: `{text}` is not a number of GPUs", hints=(_GPUS_HINT,))
    if models and not count and not milli:
        raise SpecError(f"{what}: `{text}` requests no GPU of a model", hints=(_GPUS_HINT,))
    return GpuRequest(count, milli, models)


def format_gpus(gpus: GpuRequest) -> str:
    number = f"{gpus.milli / WHOLE_GPU:g}" if gpus.milli else str(gpus.count)
    return f"{'|'.join(gpus.models)}:{number}" if gpus.models else number


def gpu_share_from_memory(
    gpus: GpuRequest | None, amount: int, *, what: str = "--gpu-memory", other: str = "--gpus"
) -> GpuRequest:
    """Returns the request for memory of one GPU, of one of these models. Raises SpecError."""
    if amount <= 0:
        raise SpecError(f"{what}: 0 is not a share of a GPU", hints=("memory is a number with a unit: 20G",))
    if gpus is None:
        return GpuRequest()
    if gpus.milli:
        raise SpecError(
            f"{what}: {other} {format_gpus(gpus)} already gives a share",
            hints=("set one of the two: the memory determines the share",),
        )
    if gpus.count > 1:
        raise SpecError(
            f"{what}: it is a part of one GPU, and {other} requests {gpus.count} whole ones",
            hints=(f"leave out {what}; a whole GPU includes its memory",),
        )
    return GpuRequest(models=gpus.models)


def check_extra(name: str, *, what: str) -> str:
    """Returns the name of a countable resource of a node. Raises SpecError."""
    check_name(name, subject=what)
    if name in _RESERVED or name.startswith("gpu:"):
        raise SpecError(
            f"{what}: `{name}` has its own option",
            hints=("use --cpus, --memory or --gpus",),
        )
    return name


def parse_extras(texts: Iterable[str], *, what: str = "--resource") -> tuple[tuple[str, int], ...]:
    """Parses `NAME=COUNT` or `NAME` (one), sorted by name. Raises SpecError."""
    extras: dict[str, int] = {}
    for text in texts:
        name, equals, count = text.partition("=")
        check_extra(name, what=what)
        if equals and not (count.isascii() and count.isdecimal() and 0 < int(count[:12]) <= MAX_EXTRAS):
            raise SpecError(
                f"{what}: `{count}` is not a count of {name}",
                hints=(f"give a whole number from 1: {what} {name}=1",),
            )
        if name in extras:
            raise SpecError(f"{what}: `{name}` is given twice")
        extras[name] = int(count) if equals else 1
    return tuple(sorted(extras.items()))


def parse_pools(text: str, *, what: str = "--pool") -> tuple[str, ...]:
    """Parses names with commas between. Raises SpecError."""
    return tuple(dict.fromkeys(check_name(name.strip(), subject=what) for name in text.split(",")))


def check_label(key: str, *, what: str) -> str:
    if not _LABEL.fullmatch(key):
        raise SpecError(
            f"{what}: `{key[:80]}` is not the name of a label",
            hints=("labels of nodes are names such as rack or zone",),
        )
    return key


def parse_labels(texts: Iterable[str], *, what: str = "--where") -> tuple[tuple[str, str], ...]:
    """Parses `LABEL=VALUE` each, sorted. Raises SpecError."""
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise SpecError(
                f"{what}: `{text}` is not of the form LABEL=VALUE", hints=(f"for example {what} rack=a",)
            )
        if labels.setdefault(check_label(key, what=what), value) != value:
            raise SpecError(f"{what}: no node has two values of `{key}`", hints=("give one value per label",))
    return tuple(sorted(labels.items()))


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """See `domain.gang.Topology`."""

    rule: str
    level: str
    slice: int = 1

    def spec(self) -> dict[str, str | int]:
        """Returns the Topology as JSON."""
        return {"rule": self.rule, "level": self.level, "slice": self.slice}


def parse_topology(text: str, *, what: str = "--topology") -> TopologyRequest:
    """Raises SpecError."""
    rule, colon, rest = text.strip().partition(":")
    if not colon:
        hints = (
            (f"add the level: {rule}:{NODE_LEVEL}, or a label of nodes: {rule}:rack",)
            if rule in list(Closeness)
            else ()
        )
        raise SpecError(f"{what}: `{text}` has no level", hints=(*hints, _TOPOLOGY_HINT))
    if rule not in list(Closeness):
        raise SpecError(
            f"{what}: `{rule}` is not a placement rule",
            hints=(*unknown_name_hints(rule, [r.value for r in Closeness]), _TOPOLOGY_HINT),
        )
    level, slash, size = rest.rpartition("/")
    if not slash or not _NUMBER_LIKE.fullmatch(size):  # a label's name may hold slashes itself
        return TopologyRequest(rule, check_label(rest, what=what))
    if not (size.isascii() and size.isdecimal() and 1 <= int(size[:9]) <= MAX_REPLICAS):
        raise SpecError(
            f"{what}: `{size}` is not the size of a slice",
            hints=(f"give a whole number of replicas from 1: {rule}:{level}/4",),
        )
    return TopologyRequest(rule, check_label(level, what=what), int(size))


def format_topology(topology: TopologyRequest) -> str:
    return f"{topology.rule}:{topology.level}" + (f"/{topology.slice}" if topology.slice > 1 else "")


def parse_replicas(text: str, *, what: str = "--replicas") -> tuple[int, int]:
    """Returns the smallest (0: exactly the largest) and the largest number. Raises SpecError."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise SpecError(f"{what}: `{text}` is not a number of replicas", hints=(_REPLICAS_HINT,))
    if match[2] is None:
        return 0, check_replicas(int(match[1]), what=what)
    return check_range(int(match[1]), int(match[2]), what=what)


def check_range(minimum: int, maximum: int, *, what: str) -> tuple[int, int]:
    """Checks two numbers as `parse_replicas` does. Raises SpecError."""
    check_replicas(minimum, what=what)
    check_replicas(maximum, what=what)
    if minimum > maximum:
        raise SpecError(
            f"{what}: the minimum {minimum} is greater than the maximum {maximum}",
            hints=(f"did you mean {maximum}-{minimum}?",),
        )
    return (minimum if minimum < maximum else 0), maximum


def format_replicas(minimum: int, maximum: int) -> str:
    return f"{minimum}-{maximum}" if 0 < minimum < maximum else str(maximum)


def check_replicas(replicas: int, *, what: str = "--replicas") -> int:
    if not 1 <= replicas <= MAX_REPLICAS:
        raise SpecError(
            f"{what}: {replicas} is not from 1 to {MAX_REPLICAS}",
            hints=("give a number in this range: replicas start together",),
        )
    return replicas
