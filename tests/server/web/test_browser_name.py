from __future__ import annotations

import pytest

from hopyard.server.web.browser_name import MAX_NAME_LENGTH, browser_name

WEBKIT = "AppleWebKit/537.36 (KHTML, like Gecko)"
WINDOWS, MAC = "Mozilla/5.0 (Windows NT 10.0; Win64; x64)", "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7)"
ANDROID = "Mozilla/5.0 (Linux; Android 15; Pixel 9)"
IPHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X)"


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64; rv:130.0) Gecko/20100101 Firefox/130.0", "Firefox on Linux"),
        (f"{WINDOWS} {WEBKIT} Chrome/130.0.0.0 Safari/537.36", "Chrome on Windows"),
        (f"{WINDOWS} {WEBKIT} Chrome/130.0.0.0 Safari/537.36 Edg/130.0", "Edge on Windows"),
        (f"{ANDROID} {WEBKIT} Chrome/130.0 Mobile Safari/537.36", "Chrome on Android"),
        (f"{MAC} AppleWebKit/605.1.15 Version/18.0 Safari/605.1.15", "Safari on macOS"),
        (f"{IPHONE} AppleWebKit/605.1.15 FxiOS/130.0 Mobile/15E Safari/605.1.15", "Firefox on iOS"),
        (f"Mozilla/5.0 (X11; CrOS x86_64 14541) {WEBKIT} Chrome/130.0 Safari/537.36", "Chrome on ChromeOS"),
        ("curl/8.5.0", "curl"),
        ("Mozilla/5.0", ""),
        ("", ""),
        ("<img src=x onerror=alert(1)>", ""),
        ("x" * 500, "x" * MAX_NAME_LENGTH),
    ],
)
def test_browser_is_named_in_few_words(user_agent: str, name: str) -> None:
    assert browser_name(user_agent) == name
