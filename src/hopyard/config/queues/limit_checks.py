"""Checks the limits of queues against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn

from hopyard.config.resource_amounts import amount_value, resource_key
from hopyard.config.yaml_section import YamlSection
from hopyard.domain.amounts import total_amounts
from hopyard.domain.cluster import Node
from hopyard.domain.effective_limits import child_queues, guaranteed_amounts, guaranteed_gpus
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import CPU, GPU, GPU_OF, MEMORY, Amounts, Queue, QueueTree
from hopyard.errors import SpecError

_GPU_MODEL_HINT = "GPUs of a model count as `gpus` too"


def check_limits(queues: Mapping[QueueName, Queue], sections: Mapping[QueueName, YamlSection]) -> None:
    """Checks the limits of all queues. queues: parents before children. sections: the section of each queue
    in the file. Raises SpecError."""
    tree = QueueTree(queues)
    named, counted, below = guaranteed_amounts(tree), _guaranteed_amounts(tree), child_queues(tree)
    for name, queue in queues.items():
        where = sections[name]
        inside = {child: counted[child] for child in below.get(name, ())}
        _check_guarantee(queue, inside, where.section("guarantee"))
        _check_gpu_models(queue, named[name], where)
        for resource, amount in queue.maximum.items():
            if amount < (least := counted[name].get(resource, 0)):
                theirs = (
                    _own_guarantee(queue, resource)
                    < least
                    == sum(sure.get(resource, 0) for sure in inside.values())
                )
                _too_small_error(
                    where.section("maximum"), resource, amount, counted[name], inside if theirs else {}
                )
        for resource in queue.lend_limit:
            if not named[name].get(resource):
                raise _limit_error(
                    where.section("lend_limit"),
                    resource,
                    "the queue has no guarantee of it to lend",
                    "give the queue a guarantee of it",
                )


def limits_beyond_cluster(tree: QueueTree, nodes: Iterable[Node]) -> list[str]:
    """Returns a sentence for each resource with larger guarantees than the nodes have, and for each limited
    resource that no node has. No error, since nodes may join later."""
    guaranteed, available = guaranteed_amounts(tree), total_amounts(nodes)
    limited = {
        name: f"{queue.name}.{key}"
        for queue in sorted(tree.queues.values(), key=lambda queue: queue.name, reverse=True)
        for key in ("user_limit", "lend_limit", "borrow_limit", "maximum")
        for name in getattr(queue, key)
        if name not in available and name not in (CPU, MEMORY, GPU)
    }
    totals: Counter[str] = Counter()
    for top in child_queues(tree).get(None, []):
        totals.update(guaranteed[top])
    if GPU in totals:  # else the promised models are listed by themselves
        gpus = guaranteed_gpus(tree)
        totals[GPU] = sum(gpus[top] for top in child_queues(tree).get(None, []))
    return [
        (
            f"the queues are guaranteed {_amount_text(name, amount)} {resource_key(name)} together, and "
            f"the nodes have {_amount_text(name, available.get(name, 0))}"
        )
        for name, amount in sorted(totals.items())
        if amount > available.get(name, 0)
    ] + [
        f"no node has {resource_key(name)}, which {where} limits"
        for name, where in sorted(limited.items())
        if name not in totals
    ]


def unreachable_limits(tree: QueueTree) -> list[str]:
    """Returns a sentence for each limit that never binds because a smaller limit beside it always binds
    first. No error, since the smaller limit may be raised later."""
    sentences = []
    for queue in tree.queues.values():
        for key, limits in (("maximum", queue.maximum), ("user_limit", queue.user_limit)):
            for name, amount in sorted(limits.items()):
                least, by = min(_counting_limit(queue, key, name), default=(amount, ""))
                if least < amount:
                    sentences.append(
                        f"{queue.name}.{key}: {_amount_text(name, amount)} {resource_key(name)} can "
                        f"never be reached: {by} is {_amount_text(name, least)}"
                    )
    return sentences


def _counting_limit(queue: Queue, key: str, name: str) -> Iterator[tuple[int, str]]:
    """Yields the limits of the queue that include this one: GPUs of a model count to all GPUs, and the use of
    one user counts to the use of the queue."""
    limits: Mapping[str, Amounts] = {"maximum": queue.maximum, "user_limit": queue.user_limit}
    for other in dict.fromkeys((key, "maximum")):
        for resource in (name, GPU) if name.startswith(GPU_OF) else (name,):
            if (other, resource) != (key, name) and resource in limits[other]:
                yield limits[other][resource], f"{other}.{resource_key(resource)}"


def _guaranteed_amounts(tree: QueueTree) -> dict[QueueName, dict[str, int]]:
    """Returns the guaranteed amounts of each queue. All its GPUs include the GPUs of its models."""
    gpus = guaranteed_gpus(tree)
    return {
        name: {**amounts, **({GPU: gpus[name]} if gpus[name] else {})}
        for name, amounts in guaranteed_amounts(tree).items()
    }


def _check_guarantee(queue: Queue, children: Mapping[QueueName, Amounts], where: YamlSection) -> None:
    whole = Counter[str]()
    for sure in children.values():
        whole.update(sure)
    for resource, amount in queue.guarantee.items():
        if whole[resource] > amount:
            _too_small_error(where, resource, amount, whole, children)


def _own_guarantee(queue: Queue, resource: str) -> int:
    """Returns the amount of a resource in the queue's own guarantee. All GPUs include the GPUs of its
    models."""
    models = sum(
        amount for name, amount in queue.guarantee.items() if resource == GPU and name.startswith(GPU_OF)
    )
    return max(queue.guarantee.get(resource, 0), models)


def _too_small_error(
    where: YamlSection, resource: str, amount: int, minimum: Amounts, children: Mapping[QueueName, Amounts]
) -> NoReturn:
    """Raises the SpecError for a limit below the guarantee of the queue or of its children."""
    parts = {child: sure[resource] for child, sure in children.items() if sure.get(resource)}
    who = ", ".join(f"{child} {_amount_text(resource, part)}" for child, part in parts.items())
    whole = _amount_text(resource, minimum[resource])
    whose = (
        f"the queues right below it are guaranteed, {whole} ({who})"
        if who
        else f"the queue is guaranteed, {whole}"
    )
    hint = f"raise it to {whole}, or lower {'theirs' if who else 'the guarantee'}"
    more = (_GPU_MODEL_HINT,) if resource == GPU and any(name.startswith(GPU_OF) for name in minimum) else ()
    raise _limit_error(
        where, resource, f"{_amount_text(resource, amount)} is less than what {whose}", hint, *more
    )


def _check_gpu_models(queue: Queue, guaranteed: Amounts, where: YamlSection) -> None:
    """GPUs of models count as GPUs too, so all of them together cannot be fewer."""
    models = {name: amount for name, amount in guaranteed.items() if name.startswith(GPU_OF)}
    if sum(models.values()) > queue.guarantee.get(GPU, sum(models.values())):
        whole = _amount_text(GPU, sum(models.values()))
        stand = "beside it" if models.keys() <= queue.guarantee.keys() else "beside it and below it"
        problem = f"{_amount_text(GPU, queue.guarantee[GPU])} is less than the models named {stand}, {whole}"
        raise _limit_error(where.section("guarantee"), GPU, problem, f"raise it to {whole}")


def _limit_error(where: YamlSection, resource: str, problem: str, *hints: str) -> SpecError:
    """The key is spelled as the file has it: models are compared without case."""
    key = next(
        (key for key in where.values if key.lower() == resource_key(resource).lower()), resource_key(resource)
    )
    return where.error(key, problem, *hints)


def _amount_text(resource: str, amount: int) -> str:
    return str(amount_value(resource, amount))
