"""`hop user`: a second user of one server, as both of them type."""

from __future__ import annotations

from hopyard.api_client.client import Client
from tests.cli.shell import Shell


def test_a_second_user_is_made_connects_and_is_removed(shell: Shell, client: Client) -> None:
    owner = client.get("/queues")["owner"]
    made = shell.hop("user", "add", "bob")
    token = made.text.strip()
    assert made.code == 0 and token.startswith("hop_") and token not in made.talk
    assert f"export HOPYARD_URL={client.url} HOPYARD_TOKEN=" in made.talk
    bob = Shell(shell.folder, {**shell.environment, "HOPYARD_URL": client.url, "HOPYARD_TOKEN": token})
    assert bob.detach("--", "true").startswith("bob/")
    for word in ("up", "down"):  # the server of this home is not his
        refused = bob.hop(word)
        assert (refused.code, refused.talk.splitlines()[0]) == (
            2,
            f"error: this shell uses the server at {client.url}",
        )
    run = shell.detach("--", "sleep", "100")
    for words in (("stop", run), ("rm", "-y", "--force", run)):
        refused = bob.hop(*words)
        assert refused.code == 2 and f"`bob` cannot end or delete run {run}" in refused.talk
    assert bob.hop("info", run).code == 0
    assert shell.hop("stop", run).code == 0
    for words in (("add", "eve"), ("ls",), ("rm", "bob")):
        refused = bob.hop("user", *words)
        assert refused.code == 2 and f"only the owner of this server, {owner}" in refused.talk
    head, *rows = (line.split()[:2] for line in shell.hop("user", "ls").text.splitlines())
    assert head == ["NAME", "ROLE"] and [owner, "owner"] in rows and "bob" in [row[0] for row in rows]
    told = {one["name"]: one["owner"] for one in shell.hop("user", "ls", "--json").json}
    assert told == {owner: True, "bob": False}
    twice = shell.hop("user", "add", "bob")
    assert twice.code != 0 and "there is a user `bob`" in twice.talk and not twice.out
    assert "owns this server and cannot be removed" in shell.hop("user", "rm", owner).talk
    assert shell.hop("user", "rm", "bob").talk == "bob is no longer a user\n"
    gone = bob.hop("ps")
    assert "there is no user `bob`" in shell.hop("user", "rm", "bob", "--stop-runs").talk, (
        "without a live run either"
    )
    assert gone.code == 2 and "unknown token: this server did not issue it" in gone.talk
    assert set(shell.hop("user", "add", "bob", "--returning", "--json").json) == {"name", "token", "url"}
    assert shell.hop("user", "rm", "bob", "--json").json["tokens"] == 1


def test_a_bad_name_is_refused_before_a_server_is_asked(shell: Shell) -> None:
    for verb in ("add", "rm"):
        done = shell.hop("user", verb, "../bob")
        assert done.code == 2 and done.talk.startswith("error: NAME: `../bob`") and "hint: " in done.talk


def test_nobody_goes_on_with_what_another_did_without_naming_it(shell: Shell, client: Client) -> None:
    (shell.folder / "train.py").write_text(
        "import hopyard as hop\nhop.log(acc=hop.params(lr=0.1).lr, step=1)\n"
    )
    (shell.folder / "search.yaml").write_text(
        "metric: acc\nsearcher: random\ntrials: 1\nspace: {lr: [0.1, 0.2]}\nscript: train.py\n"
        "resources: {cpus: 0.1}\n"
    )
    study = shell.hop("search", "search.yaml", "--detach").text.strip()
    shell.hop("user", "rm", "carol")
    token = shell.hop("user", "add", "carol").text.strip()
    carol = Shell(shell.folder, {**shell.environment, "HOPYARD_URL": client.url, "HOPYARD_TOKEN": token})
    for words in (("resume",), ("replay",), ("show",)):
        refused = carol.hop("search", *words)
        assert refused.code != 0 and "there is no study of yours yet" in refused.talk
        carol.detach("--", "true")
    assert study in carol.hop("search", "show", study).text
    assert study in shell.hop("search", "show").text
    shell.hop("logs", "-f", study)  # until it has ended
    for words, trust in ((("--trust",), True), ((), None)):
        assert carol.hop("search", "resume", study, "--trials", "2", "--detach", *words).code == 0
        newest = client.get("/audit", action="study.continue", limit=1)["records"][0]
        assert (newest["user"], newest["detail"].get("trust")) == ("carol", trust)


def test_tokens_are_made_listed_replaced_and_revoked(shell: Shell, client: Client) -> None:
    made = shell.hop("token", "create", "ci", "--scope", "read", "--expires", "30d")
    secret = made.text.strip()
    assert (
        made.code == 0
        and secret.startswith("hop_")
        and secret not in made.talk
        and "for read; valid until" in made.talk
    )
    reader = Shell(shell.folder, {**shell.environment, "HOPYARD_URL": client.url, "HOPYARD_TOKEN": secret})
    assert reader.hop("ps").code == 0
    refused = reader.hop("run", "--detach", "--", "true")
    assert (
        refused.code != 0
        and "needs the scope `submit`; the token has `read`" in refused.talk
        and "hint: " in refused.talk
    )
    told = {one["name"]: one for one in shell.hop("token", "list", "--json").json}
    assert told["ci"]["scopes"] == ["read"] and told["ci"]["expires_at"] and not told["ci"]["current"]
    head, *rows = shell.hop("token", "list").text.splitlines()
    assert head.split()[:3] == ["NAME", "ID", "SCOPES"] and any(row.startswith("*home-") for row in rows)
    turned = shell.hop("token", "rotate", "ci").text.strip()
    assert reader.hop("ps").code == 2 and turned != secret
    assert shell.hop("token", "revoke", "ci").talk.endswith("is revoked\n")
    missing = shell.hop("token", "revoke", "cii")
    assert missing.code == 2 and "you have no token `cii`" in missing.talk


def test_a_secret_reaches_the_run_and_another_users_fork_says_what_it_lacks(
    shell: Shell, client: Client
) -> None:
    (shell.folder / "shows.py").write_text(
        "import os; print([os.environ.get(name) for name in ('HF_KEY', 'WORD')])\n"
    )
    for refused, words in (
        ("not its value", ("run", "--secret", "HF_KEY=x", "shows.py")),
        ("has no secret `HF_KEY`", ("run", "--secret", "HF_KEY", "shows.py")),
    ):
        done = shell.hop(*words)
        assert done.code == 2 and refused in done.talk and "`hop secret set HF_KEY`" in done.talk
    assert shell.hop("secret", "set", "HF_KEY").code == 2, "an empty value"
    kept = shell.hop("secret", "set", "HF_KEY", typed="s3cr3t value\n")
    assert kept.code == 0 and "s3cr3t" not in kept.text + kept.talk
    (shell.folder / "value").write_text("from a file")
    assert shell.hop("secret", "set", "OTHER", "--from-file", "value").code == 0
    done = shell.hop("run", "-n", "secretive", "--secret", "HF_KEY", "-e", "WORD=w0rd", "shows.py")
    assert done.text == "['s3cr3t value', 'w0rd']\n"
    assert (
        "s3cr3t" not in shell.hop("info", "secretive", "--json").text
        and "env         WORD=w0rd" in shell.hop("info", "secretive").text
    )
    assert [one["name"] for one in shell.hop("secret", "ls", "--json").json] == ["HF_KEY", "OTHER"]
    token = shell.hop("user", "add", "dave").text.strip()
    dave = Shell(shell.folder, {**shell.environment, "HOPYARD_URL": client.url, "HOPYARD_TOKEN": token})
    assert (
        "WORD=***" in dave.hop("info", "secretive").text
        and "w0rd" not in dave.hop("info", "secretive", "--json").text
    )
    assert (
        "not compared, since others' values are hidden: env WORD"
        in dave.hop("diff", "secretive", "secretive").text
    )
    fork = dave.hop("fork", "secretive")
    assert (
        fork.text == "[None, None]\n"
        and "not copied from the other user's run: WORD, HF_KEY" in fork.talk
        and "hint: " in fork.talk
    )
    assert dave.hop("fork", "secretive", "-e", "WORD=own", "-e", "HF_KEY=own").text == "['own', 'own']\n"
    data = shell.folder / "data"
    data.mkdir()
    for user, content in ((shell, "a"), (dave, "b")):
        (data / "x").write_text(content)
        assert user.hop("dataset", "push", "shared-set", str(data)).code == 0
    assert (
        "note: shared-set version 2, pushed by dave " in shell.hop("run", "-d", "shared-set", "shows.py").talk
    )
    assert "pushed by" not in shell.hop("run", "-d", "shared-set:2", "shows.py").talk
    for name in ("HF_KEY", "OTHER"):
        assert shell.hop("secret", "rm", name).code == 0
