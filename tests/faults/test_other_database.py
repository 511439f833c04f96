"""A home that is used with another database than the one that knows its files."""

from __future__ import annotations

from .world import World, until


def test_files_that_another_database_knows_are_not_swept(world: World) -> None:
    world.write("says.py", "print('hello')\n")
    over = world.reaches(world.detach("--cpus", "0.5", "says.py"), "succeeded")
    world.kill_server()
    database, aside = world.home.database, world.root / "aside"
    aside.mkdir()
    for path in database.parent.glob(f"{database.name}*"):
        path.rename(aside / path.name)
    world.ok("up")
    until(lambda: "none of them is swept" in world.home.server_log.read_text(), "the warning")
    world.reaches(world.detach("--cpus", "0.5", "says.py"), "succeeded")
    world.kill_server()
    assert (world.home.streams / over["id"]).is_dir()
    for path in database.parent.glob(f"{database.name}*"):
        path.unlink()
    for path in aside.iterdir():
        path.rename(database.parent / path.name)
    world.ok("up")
    assert world.log(over) == "hello\n"
    until(lambda: len([one for one in world.home.streams.iterdir() if one.name[0] != "."]) == 1, "the sweep of what this one does not know")
