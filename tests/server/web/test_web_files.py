"""The built files of the web UI, and the page of every other path."""

from __future__ import annotations

import gzip
import os
import stat
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
import pytest

from hopyard.server.web.web_files import PAGE_POLICY
from tests.server.api_server import TOKEN, ApiServer, run_scenario

INDEX = b"<!doctype html><title>Hopyard</title><script type=module src=/assets/app-1a2b.js></script>"
SCRIPT = b"document.title = 'loaded';\n" * 50
STYLE = b"body { margin: 0 }\n" * 50
ICON = b"<svg xmlns='http://www.w3.org/2000/svg'>" + b"<g></g>" * 50 + b"</svg>"
PAGE = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "Accept-Encoding": "identity"}


def build_files(folder: Path) -> Path:
    """Creates a folder of built files, beside a file that must not be served."""
    files = folder / "web"
    (files / "assets").mkdir(parents=True)
    (files / "index.html").write_bytes(INDEX)
    (files / "icon.svg").write_bytes(ICON)
    (files / ".hidden").write_bytes(b"hidden")
    (files / "assets" / "app-1a2b.js").write_bytes(SCRIPT)
    (files / "assets" / "app-1a2b.js.gz").write_bytes(gzip.compress(SCRIPT))
    (files / "assets" / "app-1a2b.js.br").write_bytes(b"brotli")
    (files / "assets" / "style-3c.css").write_bytes(STYLE)
    (folder / "secret.txt").write_bytes(b"secret")
    (files / "link.txt").symlink_to(folder / "secret.txt")
    return files


async def get(api: ApiServer, path: str, **headers: str) -> httpx.Response:
    headers.setdefault("Accept_Encoding", "identity")
    return await api.http.get(path, headers={name.replace("_", "-"): text for name, text in headers.items()})


def test_page_and_assets_are_served_with_their_headers(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        for path in ("/", "/index.html", "/runs", "/runs/alice.v1.5", "/compare?runs=a,b", "/login?link=x"):
            page = await api.http.get(path, headers=PAGE)
            assert (page.status_code, page.content) == (200, INDEX), path
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            assert page.headers["cache-control"] == "no-cache"
            assert page.headers["content-security-policy"] == PAGE_POLICY
            assert page.headers["cross-origin-opener-policy"] == "same-origin"
        same = await get(api, "/runs", **PAGE, If_None_Match=f'W/"x", {page.headers["etag"]}')
        assert (same.status_code, same.content) == (304, b"")
        assert same.headers["content-security-policy"] == PAGE_POLICY
        head = await api.http.head("/", headers=PAGE)
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(INDEX)))

        icon = await get(api, "/icon.svg")
        assert (icon.headers["content-type"], icon.headers["cache-control"]) == ("image/svg+xml", "no-cache")
        for encoding, stored in (
            ("identity", ""),
            ("gzip, deflate", "gzip"),
            ("gzip, br", "br"),
            ("gzip;q=1.0, br;q=0", "gzip"),
            ("br;q=x", ""),
        ):
            asset = await get(api, "/assets/app-1a2b.js", Accept_Encoding=encoding)
            assert asset.headers.get("content-encoding", "") == stored, encoding
            assert asset.headers["content-type"] == "text/javascript; charset=utf-8"
            assert asset.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert asset.headers["vary"] == "Accept-Encoding"
            if stored != "br":
                assert asset.content == SCRIPT
        for path, size in (("/assets/style-3c.css", len(STYLE)), ("/icon.svg", len(ICON))):
            small, plain = await get(api, path, Accept_Encoding="br, gzip"), await get(api, path)
            assert (small.headers["content-encoding"], len(plain.content)) == ("gzip", size)
            assert small.content == plain.content and int(small.headers["content-length"]) < size
            assert small.headers["etag"] != plain.headers["etag"]
            again = await get(api, path, Accept_Encoding="gzip", If_None_Match=small.headers["etag"])
            assert again.status_code == 304, "compressed to the same bytes each time"

    run_scenario(tmp_path, scenario, loops=False, web_folder=build_files(tmp_path))


def test_only_files_of_the_folder_are_served(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        for path in (
            "/../secret.txt",
            "/%2e%2e/secret.txt",
            "/..%2fsecret.txt",
            "/assets/../../secret.txt",
            "/assets//..%5c..%5csecret.txt",
            "/link.txt",
            "/.hidden",
            "/%00",
            "//secret.txt",
            f"/{tmp_path}/secret.txt",
            "/assets",
            "/unknown",
            "/" + "x" * 5000,
        ):
            # the path as sent: a client would resolve the dots
            url = httpx.URL("http://server").copy_with(raw_path=path.encode())
            unknown = await api.http.send(httpx.Request("GET", url, headers={"Accept": "*/*"}))
            assert unknown.status_code == 404, path
            assert unknown.json()["error"]["code"] == "not_found"
        missing = await api.http.get("/assets/app-old.js", headers=PAGE)
        assert (missing.status_code, missing.headers["cache-control"]) == (404, "no-store")
        for method in ("POST", "PUT", "DELETE"):
            assert (await api.http.request(method, "/runs", headers=PAGE)).status_code == 404

    run_scenario(tmp_path, scenario, loops=False, web_folder=build_files(tmp_path))


def test_api_paths_are_never_the_page(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        for path in ("/api", "/api/", "/api/v1/nothing", "/api/v1/runs/x", "/api/v2/runs"):
            response = await api.http.get(path, headers=PAGE | {"Authorization": f"Bearer {TOKEN}"})
            assert response.status_code == 404 and response.json()["error"]["code"] == "not_found", path
            assert response.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
            assert response.headers["cache-control"] == "private, no-cache"
            assert parsedate_to_datetime(response.headers["date"]).tzinfo is UTC

    run_scenario(tmp_path, scenario, loops=False, web_folder=build_files(tmp_path))


def test_changed_files_are_served_and_absent_ones_explained(tmp_path: Path) -> None:
    files = tmp_path / "web"

    async def scenario(api: ApiServer) -> None:
        absent = await api.http.get("/runs", headers=PAGE)
        assert absent.status_code == 503 and "make web" in absent.text
        assert (absent.headers["content-security-policy"], absent.headers["cache-control"]) == (
            PAGE_POLICY,
            "no-store",
        )
        build_files(tmp_path)
        first = await api.http.get("/", headers=PAGE)
        (files / "index.html").write_bytes(INDEX.replace(b"1a2b", b"9f8e"))
        second = await get(api, "/", **PAGE, If_None_Match=first.headers["etag"])
        assert (second.status_code, b"9f8e" in second.content) == (200, True)

    run_scenario(tmp_path, scenario, loops=False, web_folder=files)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads all files")
def test_unreadable_page_is_explained(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        (tmp_path / "web" / "index.html").chmod(stat.S_IWUSR)
        assert (await api.http.get("/", headers=PAGE)).status_code == 503

    run_scenario(tmp_path, scenario, loops=False, web_folder=build_files(tmp_path))
