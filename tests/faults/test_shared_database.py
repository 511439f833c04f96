"""Two servers on one PostgreSQL: one decides; when it is killed the other one does, and nothing is started twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard.datasets.cache import remove_tree
from tests.stores_sql.postgres import PostgreSQL, running_postgres, server_programs

from .world import World

pytestmark = pytest.mark.skipif(server_programs() is None, reason="needs PostgreSQL's programs")
WAITS = "import os, sys, time\nopen(sys.argv[1], 'a').write('begun\\n')\nwhile not os.path.exists(sys.argv[2]): time.sleep(0.01)\n"


@pytest.fixture
def shared() -> Iterator[PostgreSQL]:
    with running_postgres() as postgres:
        yield postgres


@pytest.fixture
def two(tmp_path: Path, shared: PostgreSQL) -> Iterator[tuple[World, World, str]]:
    address = shared.new_database()
    worlds = []
    for name in ("first", "second"):
        root = tmp_path / name
        root.mkdir()
        worlds.append(World(root, settings=f"node: {{id: {name}, cpus: 2, memory: 2G}}\ndatabase: {address}\n"))
    try:
        yield worlds[0], worlds[1], address.rpartition("%3D")[2]
    finally:
        for world in worlds:
            world.end()
            remove_tree(world.home.trees)


def test_one_of_two_servers_decides_and_the_other_one_follows_when_it_is_killed(
    two: tuple[World, World, str], shared: PostgreSQL, tmp_path: Path
) -> None:
    first, second, schema = two

    def holder() -> tuple[str, int]:
        ((name, epoch),) = shared.execute(f"SELECT holder, epoch FROM {schema}.lease")
        return name, epoch

    begun, let_go = tmp_path / "begun", tmp_path / "let_go"
    first.write("waits.py", WAITS)
    live = first.detach("waits.py", "--", str(begun), str(let_go))
    first.reaches(live, "running")
    leader, epoch = holder()
    second.ok("up")
    assert holder() == (leader, epoch), "it decides, as long as it lives"
    first.kill_server()
    second.write("says.py", "print('from the second')\n")
    later = second.reaches(second.detach("says.py"), "succeeded")
    assert holder()[0] != leader
    assert holder()[1] > epoch
    assert second.log(later) == "from the second\n"
    assert second.run(live)["phase"] == "running", "another machine's run is nobody's to judge"
    first.ok("up")
    let_go.touch()
    ended = first.reaches(live, "succeeded")
    assert (ended["attempt"]["number"], begun.read_text()) == (1, "begun\n")
