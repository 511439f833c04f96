"""A home that is used with another database than the one that knows its files."""

from __future__ import annotations

from .world import World, until

LOOPS = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.1)\n"


def test_files_that_another_database_knows_are_not_swept(world: World) -> None:
    world.write("says.py", "print('hello')\n")
    over = world.reaches(world.detach("--cpus", "0.5", "says.py"), "succeeded")
    world.kill_server()
    database, aside = world.home.database, world.root / "aside"
    aside.mkdir()
    for path in database.parent.glob(f"{database.name}*"):
        path.rename(aside / path.name)
    world.ok("up")
    (warning,) = [one for one in world.ok("doctor", "--json").json if "none of them is swept" in one["text"]]
    assert "`database:`" in warning["hint"]
    world.reaches(world.detach("--cpus", "0.5", "says.py"), "succeeded")
    world.kill_server()
    assert (world.home.streams / over["id"]).is_dir()
    for path in database.parent.glob(f"{database.name}*"):
        path.unlink()
    for path in aside.iterdir():
        path.rename(database.parent / path.name)
    world.ok("up")
    assert world.log(over) == "hello\n"
    until(
        lambda: len([one for one in world.home.streams.iterdir() if one.name[0] != "."]) == 1,
        "the sweep of what this one does not know",
    )


def test_server_on_another_database_does_not_start_beside_live_runs_of_the_home(world: World) -> None:
    world.write("loops.py", LOOPS)
    live = world.run(world.detach("--cpus", "0.5", "loops.py"))
    world.says(live, "begun")
    pid = world.state(live)["child_pid"]
    world.ok("down", "--keep-runs")
    aside = world.root / "aside.db"
    world.home.database.rename(aside)
    refused = world.hop("up")
    assert (
        refused.code != 0 and "belong to another database" in refused.talk and live["id"] in refused.talk
    ), refused
    assert f"see `database:` in {world.home.settings_file}" in refused.talk
    for path in world.home.root.glob("hopyard.db*"):
        path.unlink()
    aside.rename(world.home.database)
    world.ok("up")
    found = world.run(live["name"])
    assert (found["phase"], found["attempt"]["number"]) == ("running", 1) and world.state(live)[
        "child_pid"
    ] == pid
    world.ok("stop", live["name"])
    world.reaches(live["name"], "cancelled")


def test_node_keeps_its_name_while_runs_are_live_on_it(world: World) -> None:
    world.write("loops.py", LOOPS)
    live = world.run(world.detach("--cpus", "3", "loops.py"))
    world.says(live, "begun")
    world.ok("down", "--keep-runs")
    settings = world.home.settings_file.read_text()
    world.home.settings_file.write_text(settings.replace("box", "newbox"))
    refused = world.hop("up")
    assert (
        refused.code != 0 and "live on node `box`" in refused.talk and "`node: {id: box}`" in refused.talk
    ), refused
    world.home.settings_file.write_text(settings)
    world.ok("stop", live["name"])
    world.reaches(live["name"], "cancelled")
    world.ok("down")
    world.home.settings_file.write_text(settings.replace("box", "newbox"))
    world.write("says.py", "print('hello')\n")
    world.reaches(world.detach("--cpus", "4", "says.py"), "succeeded")
