"""How many descriptors a process may have open."""

from __future__ import annotations

import resource

TARGET_LIMIT = 65_536


def raise_descriptor_limit() -> None:
    """Raise this process's soft limit as far as the hard one allows. Shells and service managers begin with
    1024, which is few for a server with many connections, and for data loaders."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = TARGET_LIMIT if hard == resource.RLIM_INFINITY else min(TARGET_LIMIT, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptor_limit() -> int:
    """How many this process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return TARGET_LIMIT if soft == resource.RLIM_INFINITY else soft
