"""A home that is used with a database other than the one that knows its files."""

from __future__ import annotations

from .server_home import ServerHome, wait_until

LOOPS = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.1)\n"


def test_files_of_another_database_are_not_garbage_collected(server_home: ServerHome) -> None:
    server_home.write("says.py", "print('hello')\n")
    over = server_home.wait_for_phase(server_home.run_detached("--cpus", "0.5", "says.py"), "succeeded")
    server_home.kill_server()
    database, aside = server_home.home.database, server_home.root / "aside"
    aside.mkdir()
    for path in database.parent.glob(f"{database.name}*"):
        path.rename(aside / path.name)
    server_home.ok("up")
    (warning,) = [
        finding
        for finding in server_home.ok("doctor", "--json").json
        if "unreferenced files are not removed" in finding["text"]
    ]
    assert "`database:`" in warning["hint"]
    server_home.wait_for_phase(server_home.run_detached("--cpus", "0.5", "says.py"), "succeeded")
    server_home.kill_server()
    assert (server_home.home.streams / over["id"]).is_dir()
    for path in database.parent.glob(f"{database.name}*"):
        path.unlink()
    for path in aside.iterdir():
        path.rename(database.parent / path.name)
    server_home.ok("up")
    assert server_home.log(over) == "hello\n"
    wait_until(
        lambda: len([path for path in server_home.home.streams.iterdir() if path.name[0] != "."]) == 1,
        "the sweep of what this one does not know",
    )


def test_server_on_another_database_does_not_start_beside_live_runs_of_the_home(
    server_home: ServerHome,
) -> None:
    server_home.write("loops.py", LOOPS)
    live = server_home.run(server_home.run_detached("--cpus", "0.5", "loops.py"))
    server_home.wait_for_output(live, "begun")
    pid = server_home.replica_status(live)["child_pid"]
    server_home.ok("down", "--keep-runs")
    aside = server_home.root / "aside.db"
    server_home.home.database.rename(aside)
    result = server_home.hop("up")
    assert (
        result.code != 0 and "belong to another database" in result.stderr and live["id"] in result.stderr
    ), result
    assert f"see `database:` in {server_home.home.settings_file}" in result.stderr
    for path in server_home.home.root.glob("hopyard.db*"):
        path.unlink()
    aside.rename(server_home.home.database)
    server_home.ok("up")
    run = server_home.run(live["name"])
    assert (run["phase"], run["attempt"]["number"]) == ("running", 1) and server_home.replica_status(live)[
        "child_pid"
    ] == pid
    server_home.ok("stop", live["name"])
    server_home.wait_for_phase(live["name"], "cancelled")


def test_node_keeps_its_name_while_runs_are_live_on_it(server_home: ServerHome) -> None:
    server_home.write("loops.py", LOOPS)
    live = server_home.run(server_home.run_detached("--cpus", "3", "loops.py"))
    server_home.wait_for_output(live, "begun")
    server_home.ok("down", "--keep-runs")
    settings = server_home.home.settings_file.read_text()
    server_home.home.settings_file.write_text(settings.replace("box", "newbox"))
    result = server_home.hop("up")
    assert (
        result.code != 0 and "live on node `box`" in result.stderr and "`node: {id: box}`" in result.stderr
    ), result
    server_home.home.settings_file.write_text(settings)
    server_home.ok("stop", live["name"])
    server_home.wait_for_phase(live["name"], "cancelled")
    server_home.ok("down")
    server_home.home.settings_file.write_text(settings.replace("box", "newbox"))
    server_home.write("says.py", "print('hello')\n")
    server_home.wait_for_phase(server_home.run_detached("--cpus", "4", "says.py"), "succeeded")
