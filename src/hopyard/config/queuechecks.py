"""What the limits of queues have to be to each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn

from hopyard.config.amounts import spelled, value
from hopyard.config.reader import Section
from hopyard.domain.amounts import totals
from hopyard.domain.cluster import Node
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import CPU, GPU, GPU_OF, MEMORY, Amounts, Queue, QueueTree
from hopyard.domain.quota import children, guaranteed_gpus, guarantees
from hopyard.errors import SpecError

_MODELS = "GPUs of a model count as `gpus` too"


def check_limits(queues: Mapping[QueueName, Queue], given: Mapping[QueueName, Section]) -> None:
    """queues: parents before children. given: where each stands in the file. Raises SpecError."""
    tree = QueueTree(queues)
    named, counted, below = guarantees(tree), _counted(tree), children(tree)
    for name, queue in queues.items():
        where = given[name]
        inside = {child: counted[child] for child in below.get(name, ())}
        _check_guarantee(queue, inside, where.section("guarantee"))
        _check_models(queue, named[name], where)
        for resource, amount in queue.maximum.items():
            if amount < (least := counted[name].get(resource, 0)):
                theirs = (
                    _own(queue, resource) < least == sum(sure.get(resource, 0) for sure in inside.values())
                )
                _fail_below(
                    where.section("maximum"), resource, amount, counted[name], inside if theirs else {}
                )
        for resource in queue.lend_limit:
            if not named[name].get(resource):
                raise _fail(
                    where.section("lend_limit"),
                    resource,
                    "the queue is guaranteed none that it could lend",
                    "give it a guarantee of it",
                )


def beyond_cluster(tree: QueueTree, nodes: Iterable[Node]) -> list[str]:
    """A sentence for each resource of which more is guaranteed than the nodes have, or that is limited and no
    node has. No error: nodes may join later."""
    sure, have = guarantees(tree), totals(nodes)
    limited = {
        name: f"{queue.name}.{key}"
        for queue in sorted(tree.queues.values(), key=lambda queue: queue.name, reverse=True)
        for key in ("user_limit", "lend_limit", "borrow_limit", "maximum")
        for name in getattr(queue, key)
        if name not in have and name not in (CPU, MEMORY, GPU)
    }
    promised: Counter[str] = Counter()
    for top in children(tree).get(None, []):
        promised.update(sure[top])
    if GPU in promised:  # where only models are promised, they say as much themselves
        gpus = guaranteed_gpus(tree)
        promised[GPU] = sum(gpus[top] for top in children(tree).get(None, []))
    return [
        (
            f"the queues are guaranteed {_text(name, amount)} {spelled(name)} together, and the nodes have "
            f"{_text(name, have.get(name, 0))}"
        )
        for name, amount in sorted(promised.items())
        if amount > have.get(name, 0)
    ] + [
        f"no node has {spelled(name)}, which {where} limits"
        for name, where in sorted(limited.items())
        if name not in promised
    ]


def idle_limits(tree: QueueTree) -> list[str]:
    """A sentence for each limit that can never bind, since a smaller one beside it does before.
    No error: it harms nobody, and what is smaller today may be raised tomorrow."""
    found = []
    for queue in tree.queues.values():
        for key, limits in (("maximum", queue.maximum), ("user_limit", queue.user_limit)):
            for name, amount in sorted(limits.items()):
                least, by = min(_wider(queue, key, name), default=(amount, ""))
                if least < amount:
                    found.append(
                        f"{queue.name}.{key}: {_text(name, amount)} {spelled(name)} can never be "
                        f"reached, {by} is {_text(name, least)}"
                    )
    return found


def _wider(queue: Queue, key: str, name: str) -> Iterator[tuple[int, str]]:
    """The limits of the queue under which all falls that this one counts: GPUs of a model under those of all
    GPUs, what one user uses under what the whole queue uses."""
    limits: Mapping[str, Amounts] = {"maximum": queue.maximum, "user_limit": queue.user_limit}
    for other in dict.fromkeys((key, "maximum")):
        for resource in (name, GPU) if name.startswith(GPU_OF) else (name,):
            if (other, resource) != (key, name) and resource in limits[other]:
                yield limits[other][resource], f"{other}.{spelled(resource)}"


def _counted(tree: QueueTree) -> dict[QueueName, dict[str, int]]:
    """What each queue is sure of, with the GPUs of its models among all of its GPUs."""
    gpus = guaranteed_gpus(tree)
    return {
        name: {**amounts, **({GPU: gpus[name]} if gpus[name] else {})}
        for name, amounts in guarantees(tree).items()
    }


def _check_guarantee(queue: Queue, below: Mapping[QueueName, Amounts], where: Section) -> None:
    whole = Counter[str]()
    for sure in below.values():
        whole.update(sure)
    for resource, amount in queue.guarantee.items():
        if whole[resource] > amount:
            _fail_below(where, resource, amount, whole, below)


def _own(queue: Queue, resource: str) -> int:
    """What the queue's own guarantee says of a resource, with the GPUs of its models among all of its
    GPUs."""
    models = sum(
        amount for name, amount in queue.guarantee.items() if resource == GPU and name.startswith(GPU_OF)
    )
    return max(queue.guarantee.get(resource, 0), models)


def _fail_below(
    where: Section, resource: str, amount: int, least: Amounts, below: Mapping[QueueName, Amounts]
) -> NoReturn:
    """It has to be at least so much, which the queue itself is guaranteed, or those below it are."""
    parts = {child: sure[resource] for child, sure in below.items() if sure.get(resource)}
    who = ", ".join(f"{child} {_text(resource, part)}" for child, part in parts.items())
    whole = _text(resource, least[resource])
    whose = (
        f"the queues right below it are guaranteed, {whole} ({who})"
        if who
        else f"the queue is guaranteed, {whole}"
    )
    hint = f"raise it to {whole}, or lower {'theirs' if who else 'the guarantee'}"
    more = (_MODELS,) if resource == GPU and any(name.startswith(GPU_OF) for name in least) else ()
    raise _fail(where, resource, f"{_text(resource, amount)} is less than what {whose}", hint, *more)


def _check_models(queue: Queue, sure: Amounts, where: Section) -> None:
    """GPUs of models count as GPUs too, so all of them together cannot be fewer."""
    models = {name: amount for name, amount in sure.items() if name.startswith(GPU_OF)}
    if sum(models.values()) > queue.guarantee.get(GPU, sum(models.values())):
        whole = _text(GPU, sum(models.values()))
        stand = "beside it" if models.keys() <= queue.guarantee.keys() else "beside it and below it"
        problem = f"{_text(GPU, queue.guarantee[GPU])} is less than the models named {stand}, {whole}"
        raise _fail(where.section("guarantee"), GPU, problem, f"raise it to {whole}")


def _fail(where: Section, resource: str, problem: str, *hints: str) -> SpecError:
    """The key is spelled as the file has it: models are compared without case."""
    key = next((key for key in where.values if key.lower() == spelled(resource).lower()), spelled(resource))
    return where.fail(key, problem, *hints)


def _text(resource: str, amount: int) -> str:
    return str(value(resource, amount))
