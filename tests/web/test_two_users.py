"""Two users change the same things at once: nothing is lost without a notice, and the rights hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page, expect

from hopyard.api_client.client import Client
from hopyard.api_client.local_server import connect, start_server, stop_server
from hopyard.config.home import Home
from tests.cli.conftest import shell_in
from tests.cli.shell import Shell
from tests.web.conftest import BUILT, TRAIN
from tests.web.visit import CHROMIUM, Visit

QUEUE = "team"


@dataclass(frozen=True)
class Team:
    """A server of the owner, on which bob administers a queue. run: of the owner in that queue."""

    client: Client
    shell: Shell
    owner_token: str
    bob_token: str
    run: str

    def set_admins(self, *admins: str) -> None:
        tree = {"default": QUEUE, "queues": {QUEUE: {"admins": list(admins)}}}
        self.client.put_queues({"tree": tree, "file": "queues.yaml"})


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    if not BUILT.exists():
        pytest.skip("the web UI is not built: run `make web`")
    home = Home(tmp_path_factory.mktemp("team"))
    home.settings_file.write_text("node: {id: box, cpus: 4, memory: 8G}\n")
    start_server(home)
    client = connect(start=False, home=home)
    shell = shell_in(tmp_path_factory.mktemp("code") / "mnist", home.root)
    shell.write("train.py", TRAIN)
    bob = client.create_user({"name": "bob"})["token"]
    found = Team(client, shell, home.token_file.read_text().strip(), bob, "")
    found.set_admins("bob")
    name = shell.detach("-n", "shared", "--tag", "a=1", "--tag", "b=1", "train.py")
    shell.hop("logs", "--follow", name)
    yield Team(client, shell, found.owner_token, bob, name)
    stop_server(home, runs="stop")


@pytest.fixture
def windows(browser: Browser, team: Team) -> Iterator[tuple[Visit, Visit]]:
    """A window of the owner, and one of bob."""
    visits = []
    for token in (team.owner_token, team.bob_token):
        visit = Visit(browser, team.client.url)
        visit.allow("status of 401")  # the browser asks for its session before it has one
        page = visit.open("/")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("navigation").wait_for()
        visits.append(visit)
    yield visits[0], visits[1]
    for visit in visits:
        visit.close()


def open_editor(page: Page, note: str, tags: str) -> None:
    page.get_by_role("button", name="more actions").click()
    page.get_by_role("menuitem", name="Edit name").click()
    page.get_by_role("textbox", name="Note").fill(note)
    page.get_by_role("textbox", name="Tags").fill(tags)


def save(page: Page) -> None:
    page.get_by_role("dialog").get_by_role("button", name="Save").click()


def test_note_and_tags_of_two_users_are_both_kept(windows: tuple[Visit, Visit], team: Team) -> None:
    ours, theirs = (visit.open(f"/runs/{team.run}") for visit in windows)
    open_editor(ours, "of the owner", "a=1 b=1 mine=1")
    open_editor(theirs, "of bob", "a=2 b=1 his=1")
    save(theirs)
    expect(theirs.get_by_role("dialog")).to_be_hidden()
    expect(ours.get_by_text("his=1")).to_be_visible()  # the page behind the dialog has read it
    windows[0].allow("status of 409")
    save(ours)
    expect(ours.get_by_role("alert")).to_contain_text("Another user or browser changed this run")
    assert team.client.resolve_run(ref=team.run)["note"] == "of bob"
    ours.get_by_role("button", name="Keep mine").click()
    expect(ours.get_by_role("dialog")).to_be_hidden()
    expect(theirs.get_by_text("of the owner")).to_be_visible()
    found = team.client.resolve_run(ref=team.run)
    assert (found["note"], found["spec"]["tags"]) == (
        "of the owner",
        {"a": "2", "b": "1", "his": "1", "mine": "1"},
    )


def test_shared_view_appears_on_the_page_of_another_user(windows: tuple[Visit, Visit], team: Team) -> None:
    ours, theirs = (visit.open("/runs?sort=-val_acc") for visit in windows)
    expect(theirs.get_by_role("button", name="+ Save view")).to_be_visible()
    ours.get_by_role("button", name="+ Save view").click()
    ours.get_by_label("Name of the view").fill("best")
    ours.get_by_role("checkbox", name="Shared").check()
    save(ours)
    expect(ours.get_by_role("dialog")).to_be_hidden()
    owner = team.run.split("/")[0]
    expect(theirs.get_by_role("button", name=f"{owner}: best")).to_be_visible()
    expect(theirs.get_by_role("button", name="change the view best")).to_be_hidden()


def test_reason_of_another_tab_is_replaced_with_a_notice(windows: tuple[Visit, Visit], team: Team) -> None:
    page = windows[0].open("/cluster?tab=nodes&node=box")
    expect(page.get_by_role("heading", name="Nodes / box")).to_be_visible()
    page.get_by_role("button", name="Drain…").click()
    page.get_by_label("Reason").fill("a new disk")
    team.client.cordon_node("box", {"reason": "the fan is loud"})
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("the fan is loud")
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    expect(page.get_by_text("a new disk")).to_be_visible()
    bobs = windows[1].open("/cluster?tab=nodes&node=box")
    expect(bobs.get_by_text("a new disk")).to_be_visible()
    expect(bobs.get_by_role("button", name="Uncordon")).to_be_disabled()
    team.client.uncordon_node("box")
    expect(bobs.get_by_role("button", name="Cordon…")).to_be_disabled()


def test_former_administrator_is_offered_no_change(windows: tuple[Visit, Visit], team: Team) -> None:
    page = windows[1].open(f"/runs/{team.run}")
    page.get_by_role("button", name="more actions").click()
    expect(page.get_by_role("menuitem", name="Edit name")).to_be_visible()
    team.set_admins()
    try:
        expect(page.get_by_role("menuitem", name="Edit name")).to_be_hidden()
        expect(page.get_by_role("menu").get_by_text("administrators of its queue")).to_be_visible()
    finally:
        team.set_admins("bob")
    expect(page.get_by_role("menuitem", name="Edit name")).to_be_visible()
