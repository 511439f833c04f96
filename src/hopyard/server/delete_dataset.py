"""Computes what the deletion of versions of a dataset frees."""

from __future__ import annotations

from hopyard.controller.manifests import ManifestDecoder
from hopyard.domain.ids import Digest
from hopyard.errors import IntegrityError, NotFound
from hopyard.server.services import Services

# Versions of one dataset share most of their files. More of them are not compared, since each is read.
MAX_COMPARED_VERSIONS = 100


async def freed_bytes(services: Services, name: str, number: int | None) -> int:
    """Returns about how many bytes the deletion of a version (None: of the dataset) frees: the files of the
    deleted versions that no run has, without those of the dataset's other newest versions. Files that other
    datasets share are included. Raises NotFound."""
    freed = set(await services.datasets.freed_manifests(name, number))
    if not freed:
        return 0
    versions = await services.datasets.versions(name, limit=MAX_COMPARED_VERSIONS)
    decoder = ManifestDecoder()
    sizes: dict[Digest, int] = {}
    for manifest in freed:
        sizes |= await _blob_sizes(services, decoder, manifest)
    for manifest in {version.manifest for version in versions} - freed:
        for digest in await _blob_sizes(services, decoder, manifest):
            sizes.pop(digest, None)
    return sum(sizes.values())


async def _blob_sizes(services: Services, decoder: ManifestDecoder, manifest: Digest) -> dict[Digest, int]:
    """Returns nothing for a tree with a manifest that is damaged or on another server."""
    try:
        tree = await decoder.measure(await services.blobs.get(manifest))
    except (IntegrityError, NotFound):
        return {}
    return dict(tree.blob_sizes)
