"""Blobs in a folder: small ones together in packs, large ones as files of their own, found through an index.

```text
<root>/packs/<16 hex digits>    immutable; see `packs`
<root>/large/<2>/<64 hex>       one blob each
<root>/damaged/                 what did not match its digest when it was read
<root>/index.db                 SQLite: digest -> where; can be rebuilt from the rest
```
A name in `packs/` or `large/` is given only to a file that is complete and on disk; whatever a crash left
unfinished has a name that begins with `.tmp-` and is removed at the next start.
"""
