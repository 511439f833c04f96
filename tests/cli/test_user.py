"""`hop user`: a second user of one server, from the shells of both users."""

from __future__ import annotations

from hopyard.api_client.client import Client
from tests.cli.shell import Shell


def test_second_user_is_added_connects_and_is_removed(shell: Shell, client: Client) -> None:
    owner = client.get("/queues")["owner"]
    created = shell.hop("user", "add", "bob")
    token = created.text.strip()
    assert created.code == 0 and token.startswith("hop_") and token not in created.stderr_text
    assert f"export HOPYARD_URL={client.url} HOPYARD_TOKEN=" in created.stderr_text
    bob = Shell(shell.folder, {**shell.environment, "HOPYARD_URL": client.url, "HOPYARD_TOKEN": token})
    assert bob.detach("--", "true").startswith("bob/")
    for word in ("up", "down"):  # the server of this home is not his
        refused = bob.hop(word)
        assert (refused.code, refused.stderr_text.splitlines()[0]) == (
            2,
            f"error: this shell uses the server at {client.url}",
        )
    run = shell.detach("--", "sleep", "100")
    for words in (("stop", run), ("rm", "-y", "--force", run)):
        refused = bob.hop(*words)
        assert refused.code == 2 and f"`bob` cannot end or delete run {run}" in refused.stderr_text
    assert bob.hop("info", run).code == 0
    assert shell.hop("stop", run).code == 0
    for words in (("add", "eve"), ("ls",), ("rm", "bob")):
        refused = bob.hop("user", *words)
        assert refused.code == 2 and f"only the owner of this server, {owner}" in refused.stderr_text
    head, *rows = (line.split()[:2] for line in shell.hop("user", "ls").text.splitlines())
    assert head == ["NAME", "ROLE"] and [owner, "owner"] in rows and "bob" in [row[0] for row in rows]
    result = {row["name"]: row["owner"] for row in shell.hop("user", "ls", "--json").json}
    assert result == {owner: True, "bob": False}
    twice = shell.hop("user", "add", "bob")
    assert twice.code != 0 and "user `bob` already exists" in twice.stderr_text and not twice.out
    assert "owns this server and cannot be removed" in shell.hop("user", "rm", owner).stderr_text
    assert shell.hop("user", "rm", "bob").stderr_text == "bob is no longer a user\n"
    gone = bob.hop("ps")
    assert "there is no user `bob`" in shell.hop("user", "rm", "bob", "--stop-runs").stderr_text, (
        "without a live run either"
    )
    assert gone.code == 2 and "unknown token: this server did not issue it" in gone.stderr_text
    assert set(shell.hop("user", "add", "bob", "--returning", "--json").json) == {"name", "token", "url"}
    assert shell.hop("user", "rm", "bob", "--json").json["tokens"] == 1


def test_invalid_user_name_is_refused_without_a_server(shell: Shell) -> None:
    for verb in ("add", "rm"):
        result = shell.hop("user", verb, "../bob")
        assert (
            result.code == 2
            and result.stderr_text.startswith("error: NAME: `../bob`")
            and "hint: " in result.stderr_text
        )


def test_continuing_work_of_another_user_needs_its_name(shell: Shell, client: Client) -> None:
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
        assert refused.code != 0 and "there is no study of yours yet" in refused.stderr_text
        carol.detach("--", "true")
    assert study in carol.hop("search", "show", study).text
    assert study in shell.hop("search", "show").text
    shell.hop("logs", "-f", study)  # until it has ended
    for words, trust in ((("--trust",), True), ((), None)):
        assert carol.hop("search", "resume", study, "--trials", "2", "--detach", *words).code == 0
        newest = client.get("/audit", action="study.continue", limit=1)["records"][0]
        assert (newest["user"], newest["detail"].get("trust")) == ("carol", trust)


def test_tokens_are_created_listed_replaced_and_revoked(shell: Shell, client: Client) -> None:
    created = shell.hop("token", "create", "ci", "--scope", "read", "--expires", "30d")
    secret = created.text.strip()
    assert (
        created.code == 0
        and secret.startswith("hop_")
        and secret not in created.stderr_text
        and "for read; valid until" in created.stderr_text
    )
    reader = Shell(shell.folder, {**shell.environment, "HOPYARD_URL": client.url, "HOPYARD_TOKEN": secret})
    assert reader.hop("ps").code == 0
    refused = reader.hop("run", "--detach", "--", "true")
    assert (
        refused.code != 0
        and "needs the scope `submit`; the token has `read`" in refused.stderr_text
        and "hint: " in refused.stderr_text
    )
    result = {row["name"]: row for row in shell.hop("token", "list", "--json").json}
    assert result["ci"]["scopes"] == ["read"] and result["ci"]["expires_at"] and not result["ci"]["current"]
    head, *rows = shell.hop("token", "list").text.splitlines()
    assert head.split()[:3] == ["NAME", "ID", "SCOPES"] and any(row.startswith("*home-") for row in rows)
    turned = shell.hop("token", "rotate", "ci").text.strip()
    assert reader.hop("ps").code == 2 and turned != secret
    assert shell.hop("token", "revoke", "ci").stderr_text.endswith("is revoked\n")
    missing = shell.hop("token", "revoke", "cii")
    assert missing.code == 2 and "you have no token `cii`" in missing.stderr_text


def test_secret_reaches_the_run_and_is_not_inherited_by_other_users(shell: Shell, client: Client) -> None:
    (shell.folder / "shows.py").write_text(
        "import os; print([os.environ.get(name) for name in ('HF_KEY', 'WORD')])\n"
    )
    for refused, words in (
        ("not its value", ("run", "--secret", "HF_KEY=x", "shows.py")),
        ("has no secret `HF_KEY`", ("run", "--secret", "HF_KEY", "shows.py")),
    ):
        result = shell.hop(*words)
        assert (
            result.code == 2
            and refused in result.stderr_text
            and "`hop secret set HF_KEY`" in result.stderr_text
        )
    assert shell.hop("secret", "set", "HF_KEY").code == 2, "an empty value"
    stored = shell.hop("secret", "set", "HF_KEY", stdin="s3cr3t value\n")
    assert stored.code == 0 and "s3cr3t" not in stored.text + stored.stderr_text
    (shell.folder / "value").write_text("from a file")
    assert shell.hop("secret", "set", "OTHER", "--from-file", "value").code == 0
    result = shell.hop("run", "-n", "secretive", "--secret", "HF_KEY", "-e", "WORD=w0rd", "shows.py")
    assert result.text == "['s3cr3t value', 'w0rd']\n"
    assert (
        "s3cr3t" not in shell.hop("info", "secretive", "--json").text
        and "env         WORD=w0rd" in shell.hop("info", "secretive").text
    )
    assert [row["name"] for row in shell.hop("secret", "ls", "--json").json] == ["HF_KEY", "OTHER"]
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
        and "not copied from the other user's run: WORD, HF_KEY" in fork.stderr_text
        and "hint: " in fork.stderr_text
    )
    assert dave.hop("fork", "secretive", "-e", "WORD=own", "-e", "HF_KEY=own").text == "['own', 'own']\n"
    data = shell.folder / "data"
    data.mkdir()
    for user, content in ((shell, "a"), (dave, "b")):
        (data / "x").write_text(content)
        assert user.hop("dataset", "push", "shared-set", str(data)).code == 0
    assert (
        "note: shared-set version 2, pushed by dave "
        in shell.hop("run", "-d", "shared-set", "shows.py").stderr_text
    )
    assert "pushed by" not in shell.hop("run", "-d", "shared-set:2", "shows.py").stderr_text
    for name in ("HF_KEY", "OTHER"):
        assert shell.hop("secret", "rm", name).code == 0
