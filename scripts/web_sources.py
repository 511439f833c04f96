"""Record in the built web UI from which sources it was built, or check that it is of today's sources.

python scripts/web_sources.py           write src/hopyard/web_ui/sources.json
python scripts/web_sources.py --check   exit with 1 if the built files are missing or older than web/
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WEB, BUILT = ROOT / "web", ROOT / "src" / "hopyard" / "web_ui"
RECORD = BUILT / "sources.json"
# what decides the built files; the typed client has no code, so docs/openapi.json does not
_SOURCES = (
    "index.html",
    "package.json",
    "package-lock.json",
    "vite.config.ts",
    "tsconfig.json",
    "src/**/*",
)
_OTHERS = (".test.ts", ".test.tsx", ".d.ts", "schema.ts")


def digest_of_sources() -> str:
    """Returns the SHA-256 of the paths and contents of the sources."""
    found = hashlib.sha256()
    paths = {path for pattern in _SOURCES for path in WEB.glob(pattern) if path.is_file()}
    for path in sorted(paths):
        if not path.name.endswith(_OTHERS):
            content = path.read_bytes()
            found.update(f"{path.relative_to(WEB).as_posix()} {len(content)}\n".encode())
            found.update(content)
    return found.hexdigest()


def problem_of_built_files() -> str:
    """Returns what is wrong with the built files, "" if nothing is."""
    if not RECORD.exists():
        return f"{BUILT.relative_to(ROOT)} has no built web UI"
    if json.loads(RECORD.read_text())["sha256"] != digest_of_sources():
        return f"{BUILT.relative_to(ROOT)} is not built from today's web/"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    if not parser.parse_args().check:
        RECORD.write_text(json.dumps({"sha256": digest_of_sources()}) + "\n")
        return 0
    if problem := problem_of_built_files():
        print(f"error: {problem}\nhint: run `make web` (needs Node)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
