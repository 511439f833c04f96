"""A worker trains, evaluates, remembers random numbers, tells of what fails: in processes of its own."""

from __future__ import annotations

from collections.abc import Callable

from hopyard.studies.messages import End, Evaluated, Finished, Hello, Named

from .study import Driver, Workers


def test_a_state_hops_between_two_workers_and_is_evaluated(workers: Workers, drive: Callable[..., Driver]) -> None:
    driver = drive()
    for name in ("a", "b"):
        workers.start(name, driver.address)
        driver.expect(Hello, name)
    a, b = driver.open("a", (0,), (0,)), driver.open("b", (1,), (1,))
    assert sum(a.train_rows + b.train_rows) == 48 and sum(a.validation_rows + b.validation_rows) == 12
    assert driver.hellos["a"].shelf == driver.hellos["b"].shelf

    first = driver.train(("a", 0))
    finished = driver.expect(Finished, "a")
    assert (finished.unit, finished.state, finished.start_from, finished.partitions) == (first, first, "", (0,))
    driver.train(("b", 1), state=finished.state)
    second = driver.expect(Finished, "b")
    assert second.start_from == first and second.fetched_bytes == 0
    names = {driver.expect(Named).state for _ in range(2)}
    assert names == {first, second.state}

    driver.evaluate("a", 0, second.state)
    measured = driver.expect(Evaluated, "a")
    assert measured.metrics["seen"] == 2 and measured.metrics["loss"] > 0 and measured.rows == a.validation_rows[0]
    for name in ("a", "b"):
        driver.send(name, End("all done"))
        assert workers.processes[name].wait(20) == 0, workers.log(name)
        assert "left: all done" in workers.log(name)
    assert not list((workers.folder / "memory").iterdir())  # the last one to leave takes the shelf away
