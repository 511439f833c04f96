"""The number of descriptors that a process may have open."""

from __future__ import annotations

import resource

TARGET_LIMIT = 65_536


def raise_descriptor_limit() -> None:
    """Raises the soft limit of this process as far as the hard limit allows. Shells and service managers
    start with 1024, which is too few for a server with many connections, and for data loaders."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = TARGET_LIMIT if hard == resource.RLIM_INFINITY else min(TARGET_LIMIT, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def descriptor_limit() -> int:
    """Returns the number of descriptors that this process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return TARGET_LIMIT if soft == resource.RLIM_INFINITY else soft
