"""What the limits of queues have to be to each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

from hopyard.config.amounts import spelled, value
from hopyard.config.reader import Section
from hopyard.domain.amounts import totals
from hopyard.domain.cluster import Node
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import CPU, GPU, GPU_OF, MEMORY, Amounts, Queue, QueueTree
from hopyard.domain.quota import children, guarantees
from hopyard.errors import SpecError


def check_limits(queues: Mapping[QueueName, Queue], given: Mapping[QueueName, Section]) -> None:
    """queues: parents before children. given: where each stands in the file. Raises SpecError."""
    tree = QueueTree(queues)
    sure, below = guarantees(tree), children(tree)
    for name, queue in queues.items():
        where = given[name]
        inside = {child: sure[child] for child in below.get(name, ())}
        _check_guarantee(queue, inside, where.section("guarantee"))
        _check_models(queue, where)
        for resource, amount in queue.maximum.items():
            if amount < sure[name].get(resource, 0):
                _fail_below(where.section("maximum"), resource, amount, sure[name][resource], {} if resource in queue.guarantee else inside)
        for resource in queue.lend_limit:
            if not sure[name].get(resource):
                raise _fail(
                    where.section("lend_limit"),
                    resource,
                    "the queue is guaranteed none that it could lend",
                    "give it a guarantee of it",
                )


def beyond_cluster(tree: QueueTree, nodes: Iterable[Node]) -> list[str]:
    """A sentence for each resource of which more is guaranteed than the nodes have, or that is limited and no node has. No error: nodes
    may join later."""
    sure, have = guarantees(tree), totals(nodes)
    limited = {
        name: f"{queue.name}.{key}"
        for queue in sorted(tree.queues.values(), key=lambda queue: queue.name, reverse=True)
        for key in ("user_limit", "lend_limit", "borrow_limit", "maximum")
        for name in getattr(queue, key)
        if name not in have and name not in (CPU, MEMORY, GPU)
    }
    promised: dict[str, int] = {}
    for top in children(tree).get(None, []):
        for name, amount in sure[top].items():
            promised[name] = promised.get(name, 0) + amount
    return [
        f"the queues are guaranteed {_text(name, amount)} {spelled(name)} together, and the nodes have {_text(name, have.get(name, 0))}"
        for name, amount in sorted(promised.items())
        if amount > have.get(name, 0)
    ] + [f"no node has {spelled(name)}, which {where} limits" for name, where in sorted(limited.items()) if name not in promised]


def _check_guarantee(queue: Queue, below: Mapping[QueueName, Amounts], where: Section) -> None:
    for resource, amount in queue.guarantee.items():
        whole = sum(sure.get(resource, 0) for sure in below.values())
        if whole > amount:
            _fail_below(where, resource, amount, whole, below)


def _fail_below(where: Section, resource: str, amount: int, least: int, below: Mapping[QueueName, Amounts]) -> NoReturn:
    """It has to be at least so much, which the queue itself is guaranteed, or those below it are."""
    parts = {child: sure[resource] for child, sure in below.items() if sure.get(resource)}
    who = ", ".join(f"{child} {_text(resource, part)}" for child, part in parts.items())
    whole = _text(resource, least)
    whose = f"the queues right below it are guaranteed, {whole} ({who})" if who else f"the queue is guaranteed, {whole}"
    hint = f"raise it to {whole}, or lower {'theirs' if who else 'the guarantee'}"
    raise _fail(where, resource, f"{_text(resource, amount)} is less than what {whose}", hint)


def _check_models(queue: Queue, where: Section) -> None:
    """GPUs of models count as GPUs too, so all of them together cannot be fewer."""
    models = sum(amount for name, amount in queue.guarantee.items() if name.startswith(GPU_OF))
    if models > queue.guarantee.get(GPU, models):
        whole = _text(GPU, models)
        problem = f"{_text(GPU, queue.guarantee[GPU])} is less than the models named beside it, {whole}"
        raise _fail(where.section("guarantee"), GPU, problem, f"raise it to {whole}")


def _fail(where: Section, resource: str, problem: str, hint: str) -> SpecError:
    """The key is spelled as the file has it: models are compared without case."""
    key = next((key for key in where.values if key.lower() == spelled(resource).lower()), spelled(resource))
    return where.fail(key, problem, hint)


def _text(resource: str, amount: int) -> str:
    return str(value(resource, amount))
