"""`hop token …`: the address of the API, and tokens for it."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hopyard.api_client.client import Client
from hopyard.api_client.http_client import API
from hopyard.cli.options import json_option
from hopyard.cli.terminal import console
from hopyard.config.home import Home
from hopyard.domain.access import Scope
from hopyard.errors import NotFound, SpecError, is_disk_full
from hopyard.interfaces.access_store import TOKEN_ID_DIGITS
from hopyard.private_files import overwrite, write_atomically

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_expires_option = click.option(
    "--expires", metavar="30d", help="How long the token is valid.  [default: until it is revoked]"
)
_user_option = click.option(
    "--user", metavar="NAME", help="A token of another user; only for the owner of the server."
)


@click.group("token", no_args_is_help=False, invoke_without_command=True)
@json_option
@click.pass_context
def token(ctx: click.Context, as_json: bool) -> None:
    """Show the address of the API and the file of its token; list, make, replace and revoke tokens.

    Without a subcommand, the address and the file of the token are shown, but not the token.
    """
    if ctx.invoked_subcommand is not None:
        return
    from hopyard.api_client.local_server import TOKEN_VARIABLE, connect, read_login

    home = Home.default()
    client = connect()
    login = read_login(home)
    if client.token == home.read_token():
        file, shown = home.token_file, f"$(cat {shlex.quote(str(home.token_file))})"
    elif login is not None and client.token == login[1]:
        file, shown = (
            home.login_file,
            (
                "$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[\"token\"])' "
                f"{shlex.quote(str(home.login_file))})"
            ),
        )
    else:  # a token of this home would reach a server that it is not of
        file, shown = None, f"${TOKEN_VARIABLE}"
    if as_json:
        console.print_json({"url": client.url + API, "token_file": None if file is None else str(file)})
        return
    console.print_line(f"url         {client.url}{API}")
    console.print_line(f"token file  {file or f'none: the token is in {TOKEN_VARIABLE}'}")
    console.print_message(f'example: curl -H "Authorization: Bearer {shown}" {client.url}{API}/status')


@token.command("list")
@_user_option
@click.option(
    "--all", "everybody", is_flag=True, help="The tokens of all users; only for the owner of the server."
)
@json_option
def list_tokens(user: str | None, everybody: bool, as_json: bool) -> None:
    """List tokens with their scopes, expiry and last use. `*` marks the current token."""
    from hopyard.api_client.local_server import connect
    from hopyard.cli.terminal.times import format_clock

    tokens = list(connect().iterate_tokens(user=user, everybody=1 if everybody else None))
    if as_json:
        console.print_json(tokens)
        return
    rows = [
        [
            *([entry["user"]] if everybody else []),
            ("*" if entry["current"] else "") + (entry["name"] or "-"),
            entry["id"],
            ",".join(entry["scopes"]),
            format_clock(entry["created_at"]),
            "never"
            if entry["expires_at"] is None
            else format_clock(entry["expires_at"]) + (" (expired)" if entry["expired"] else ""),
            "never" if entry["used_at"] is None else format_clock(entry["used_at"]),
        ]
        for entry in tokens
    ]
    console.print_lines(
        console.format_table(
            [*(["USER"] if everybody else []), "NAME", "ID", "SCOPES", "CREATED", "EXPIRES", "LAST USED"],
            rows,
        )
    )


@token.command("create")
@click.argument("name", metavar="NAME")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice([scope.value for scope in Scope]),
    multiple=True,
    help=(
        "read: view and download; submit: also runs and data; admin: all rights of the user.  "
        "[default: submit]"
    ),
)
@_expires_option
@_user_option
@json_option
def create_token(
    name: str, scopes: tuple[api.Scope, ...], expires: str | None, user: str | None, as_json: bool
) -> None:
    """Make a token and print it once: the server stores only its hash."""
    from hopyard.api_client.local_server import connect
    from hopyard.domain.ids import check_name

    body: api.TokenIn = {
        "name": check_name(name, subject="NAME"),
        "expires_at": _parse_expiry(expires),
        "user": user,
    }
    if scopes:
        body["scopes"] = list(scopes)
    created = connect().create_token(body)
    if as_json:
        console.print_json({**created["token"], "token": created["secret"]})
        return
    console.print_line(created["secret"])
    console.print_message(
        f"token {name} of {created['token']['user']}, for "
        f"{', '.join(created['token']['scopes'])}{_expiry_text(created['token'])}. It is not shown again"
    )


@token.command("rotate")
@click.argument("which", metavar="[NAME|ID]", required=False)
@_expires_option
@_user_option
@json_option
def rotate_token(which: str | None, expires: str | None, user: str | None, as_json: bool) -> int:
    """Replace a token, by default the current one, by a new one of the same name and scopes.

    The old token is revoked. A token in this home's `token` or `login.json` is replaced there, and not
    printed.
    """
    from hopyard.api_client.local_server import connect

    client, home = connect(), Home.default()
    old = _find_token(client, which, user)
    replacement = client.rotate_token(old["id"], {"expires_at": _parse_expiry(expires)})
    code = 0
    try:
        file = _replace_stored_token(home, old["id"], replacement["secret"])
    except OSError as error:
        console.print_message(f"error: the new token could not be written into this home: {error.strerror}")
        console.print_message(
            "hint: write the token above into the file `token` of the home when the home is writable again"
        )
        file, code = None, 1
    if as_json:
        console.print_json(
            {
                **replacement["token"],
                **({"token": replacement["secret"]} if file is None else {"token_file": file}),
            }
        )
        return code
    if file is None:
        console.print_line(replacement["secret"])
    where = f"; the new one is in {file}" if file is not None else ". The new one is not shown again"
    console.print_message(
        f"token {old['name'] or old['id']} of {old['user']} is replaced{where}"
        f"{_expiry_text(replacement['token'])}"
    )
    return code


@token.command("revoke")
@click.argument("which", metavar="NAME|ID")
@_user_option
@json_option
def revoke_token(which: str, user: str | None, as_json: bool) -> None:
    """Revoke a token: at once on this server, within seconds on others that share its database."""
    from hopyard.api_client.local_server import connect

    client = connect()
    revoked = client.delete_token(_find_token(client, which, user)["id"])
    if as_json:
        console.print_json(revoked)
    else:
        console.print_message(f"token {revoked['name'] or revoked['id']} of {revoked['user']} is revoked")


@token.command("rotate-key")
@json_option
def rotate_signing_key(as_json: bool) -> None:
    """Sign the tokens of runs with a new key, if the earlier one may have leaked.
    Only for the owner of the server.

    Live runs continue: they renew their tokens within seconds. The earlier key stays valid for a day, for
    replicas without a connection.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.cli.terminal.times import format_clock

    client = connect()
    answer = client.rotate_key()
    if as_json:
        console.print_json(answer)
    else:
        console.print_message(
            f"the server at {client.url} signs with a new key; the earlier one is valid until "
            f"{format_clock(answer['until'])}"
        )


def _find_token(client: Client, which: str | None, user: str | None) -> api.TokenOut:
    """Returns the token of this name or id, or the current one. Raises NotFound."""
    from hopyard.config.suggest import closest_name

    tokens = list(client.iterate_tokens(user=user))
    for token in tokens:
        if (which is None and token["current"]) or which in (token["id"], token["name"]):
            return token
    if which is None:
        raise NotFound("the token is ambiguous", hints=("name it; run `hop token list` for the names",))
    closest = closest_name(which, [token["name"] for token in tokens])
    owner = f"{user} has" if user else "you have"
    raise NotFound(
        f"{owner} no token `{which}`",
        hints=(f"did you mean `{closest}`?" if closest else "run `hop token list` for the tokens",),
    )


def _replace_stored_token(home: Home, old: str, secret: str) -> str | None:
    """Writes the new token to the file of this home that holds the old one, known by its id.

    Returns the file, None if no file holds it. Raises OSError.
    """
    from hopyard.api_client.local_server import read_login

    held = home.read_token()
    if held is not None and _token_id(held) == old:
        _write_token(home.token_file, secret.encode() + b"\n")
        return str(home.token_file)
    login = read_login(home)
    if login is not None and _token_id(login[1]) == old:
        login_data = {"url": login[0], "token": secret}
        _write_token(home.login_file, json.dumps(login_data).encode() + b"\n")
        return str(home.login_file)
    return None


def _write_token(file: Path, text: bytes) -> None:
    """Overwrites the file in place, for a disk without room for a second file.

    The earlier token is revoked, and the new one has the same length. Raises OSError.
    """
    try:
        write_atomically(file, text, durable=True)
    except OSError as error:
        if not is_disk_full(error):
            raise
        overwrite(file, text)


def _token_id(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()[:TOKEN_ID_DIGITS]


def _parse_expiry(text: str | None) -> str | None:
    """Returns the expiry of a token that is valid for a time from now. Raises SpecError."""
    from hopyard.config.units import parse_time

    if text is None:
        return None
    try:
        return (datetime.now(UTC) + timedelta(seconds=parse_time(text, what="--expires"))).isoformat()
    except OverflowError as error:
        raise SpecError(
            f"--expires: `{text}` is too far away",
            hints=("leave it out: the token is then valid until it is revoked",),
        ) from error


def _expiry_text(token: api.TokenOut) -> str:
    from hopyard.cli.terminal.times import format_clock

    return "" if token["expires_at"] is None else f"; valid until {format_clock(token['expires_at'])}"
