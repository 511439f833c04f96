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
    guaranteed, counted_guarantees, children = (
        guaranteed_amounts(tree),
        _guaranteed_amounts(tree),
        child_queues(tree),
    )
    for name, queue in queues.items():
        section = sections[name]
        child_guarantees = {child: counted_guarantees[child] for child in children.get(name, ())}
        _check_guarantee(queue, child_guarantees, section.section("guarantee"))
        _check_gpu_models(queue, guaranteed[name], section)
        for resource, amount in queue.maximum.items():
            if amount < (minimum := counted_guarantees[name].get(resource, 0)):
                is_from_children = (
                    _own_guarantee(queue, resource)
                    < minimum
                    == sum(amounts.get(resource, 0) for amounts in child_guarantees.values())
                )
                _too_small_error(
                    section.section("maximum"),
                    resource,
                    amount,
                    counted_guarantees[name],
                    child_guarantees if is_from_children else {},
                )
        for resource in queue.lend_limit:
            if not guaranteed[name].get(resource):
                raise _limit_error(
                    section.section("lend_limit"),
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
    for root in child_queues(tree).get(None, []):
        totals.update(guaranteed[root])
    if GPU in totals:  # else the promised models are listed by themselves
        gpus = guaranteed_gpus(tree)
        totals[GPU] = sum(gpus[root] for root in child_queues(tree).get(None, []))
    return [
        (
            f"the queues are guaranteed {_amount_text(name, amount)} {resource_key(name)} together, and "
            f"the nodes have {_amount_text(name, available.get(name, 0))}"
        )
        for name, amount in sorted(totals.items())
        if amount > available.get(name, 0)
    ] + [
        f"no node has {resource_key(name)}, which {path} limits"
        for name, path in sorted(limited.items())
        if name not in totals
    ]


def unreachable_limits(tree: QueueTree) -> list[str]:
    """Returns a sentence for each limit that never binds because a smaller limit beside it always binds
    first. No error, since the smaller limit may be raised later."""
    sentences = []
    for queue in tree.queues.values():
        for key, limits in (("maximum", queue.maximum), ("user_limit", queue.user_limit)):
            for name, amount in sorted(limits.items()):
                smallest, limit_path = min(_counting_limit(queue, key, name), default=(amount, ""))
                if smallest < amount:
                    sentences.append(
                        f"{queue.name}.{key}: {_amount_text(name, amount)} {resource_key(name)} can "
                        f"never be reached: {limit_path} is {_amount_text(name, smallest)}"
                    )
    return sentences


def _counting_limit(queue: Queue, key: str, name: str) -> Iterator[tuple[int, str]]:
    """Yields the limits of the queue that include this one: GPUs of a model count to all GPUs, and the use of
    one user counts to the use of the queue."""
    limits: Mapping[str, Amounts] = {"maximum": queue.maximum, "user_limit": queue.user_limit}
    for limit_key in dict.fromkeys((key, "maximum")):
        for resource in (name, GPU) if name.startswith(GPU_OF) else (name,):
            if (limit_key, resource) != (key, name) and resource in limits[limit_key]:
                yield limits[limit_key][resource], f"{limit_key}.{resource_key(resource)}"


def _guaranteed_amounts(tree: QueueTree) -> dict[QueueName, dict[str, int]]:
    """Returns the guaranteed amounts of each queue. All its GPUs include the GPUs of its models."""
    gpus = guaranteed_gpus(tree)
    return {
        name: {**amounts, **({GPU: gpus[name]} if gpus[name] else {})}
        for name, amounts in guaranteed_amounts(tree).items()
    }


def _check_guarantee(queue: Queue, children: Mapping[QueueName, Amounts], section: YamlSection) -> None:
    totals = Counter[str]()
    for amounts in children.values():
        totals.update(amounts)
    for resource, amount in queue.guarantee.items():
        if totals[resource] > amount:
            _too_small_error(section, resource, amount, totals, children)


def _own_guarantee(queue: Queue, resource: str) -> int:
    """Returns the amount of a resource in the queue's own guarantee. All GPUs include the GPUs of its
    models."""
    models = sum(
        amount for name, amount in queue.guarantee.items() if resource == GPU and name.startswith(GPU_OF)
    )
    return max(queue.guarantee.get(resource, 0), models)


def _too_small_error(
    section: YamlSection, resource: str, amount: int, minimum: Amounts, children: Mapping[QueueName, Amounts]
) -> NoReturn:
    """Raises the SpecError for a limit below the guarantee of the queue or of its children."""
    amounts = {
        child: child_amounts[resource]
        for child, child_amounts in children.items()
        if child_amounts.get(resource)
    }
    children_text = ", ".join(f"{child} {_amount_text(resource, part)}" for child, part in amounts.items())
    minimum_text = _amount_text(resource, minimum[resource])
    requirement = (
        f"the queues right below it are guaranteed, {minimum_text} ({children_text})"
        if children_text
        else f"the queue is guaranteed, {minimum_text}"
    )
    hint = f"raise it to {minimum_text}, or lower {'theirs' if children_text else 'the guarantee'}"
    model_hints = (
        (_GPU_MODEL_HINT,) if resource == GPU and any(name.startswith(GPU_OF) for name in minimum) else ()
    )
    raise _limit_error(
        section,
        resource,
        f"{_amount_text(resource, amount)} is less than what {requirement}",
        hint,
        *model_hints,
    )


def _check_gpu_models(queue: Queue, guaranteed: Amounts, section: YamlSection) -> None:
    """Raises SpecError if the number of all GPUs is below the sum of the models, because GPUs of models count
    as GPUs too."""
    models = {name: amount for name, amount in guaranteed.items() if name.startswith(GPU_OF)}
    if sum(models.values()) > queue.guarantee.get(GPU, sum(models.values())):
        total = _amount_text(GPU, sum(models.values()))
        place = "beside it" if models.keys() <= queue.guarantee.keys() else "beside it and below it"
        problem = f"{_amount_text(GPU, queue.guarantee[GPU])} is less than the models named {place}, {total}"
        raise _limit_error(section.section("guarantee"), GPU, problem, f"raise it to {total}")


def _limit_error(section: YamlSection, resource: str, problem: str, *hints: str) -> SpecError:
    """Returns the error for a limit. The key is spelled as in the file: models are compared without case."""
    key = next(
        (key for key in section.values if key.lower() == resource_key(resource).lower()),
        resource_key(resource),
    )
    return section.error(key, problem, *hints)


def _amount_text(resource: str, amount: int) -> str:
    return str(amount_value(resource, amount))
