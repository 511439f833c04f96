"""Blobs in a folder: small ones together in packs, large ones as separate files, found through an index.

```text <root>/packs/<16 hex digits> immutable; see `packs` <root>/large/<2>/<64 hex> one blob each
<root>/damaged/ blobs that did not match their digest when they were read <root>/index.db SQLite: digest ->
location; can be rebuilt from the rest ```

Only complete files that are flushed to disk get a name in `packs/` or `large/`. Files that a crash left
unfinished have a name that starts with `.tmp-`, and are removed at the next start.
"""
