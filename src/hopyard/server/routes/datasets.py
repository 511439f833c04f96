"""Datasets and their versions. (Their leaderboards are in `boards`.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import LINE, Hex, LongText, RequestModel
from hopyard.domain.dataset import Dataset, DatasetVersion
from hopyard.domain.ids import Digest, check_name
from hopyard.domain.spec_summary import truncate_text
from hopyard.errors import Forbidden, NotFound
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.pages import MAX_ROWS, Limit, PageQuery
from hopyard.server.services import Services

Metric = Annotated[str, Meta(max_length=1024, pattern=LINE)]


class PushIn(RequestModel):
    """manifest: of a tree whose blobs are all on the server. metric: what the leaderboard is to rank by."""

    manifest: Hex
    message: LongText = ""
    metric: Metric | None = None


class PushOut(Struct, frozen=True):
    """created: false when the newest version has this very manifest; then it is that version."""

    version: DatasetVersion
    created: bool


class DatasetsOut(Struct, frozen=True):
    """By name. next: `after` of the next page; null at the end."""

    datasets: Sequence[Dataset]
    next: str | None


class VersionsQuery(RequestModel):
    limit: Limit = MAX_ROWS
    before: (
        Annotated[int, Meta(ge=1, le=10**9, description="only versions older than this version")] | None
    ) = None


class VersionsOut(Struct, frozen=True):
    """Newest first. next: `before` of the next page; null at the end."""

    versions: Sequence[DatasetVersion]
    next: int | None


class MetricIn(RequestModel):
    """metric: "" leaves it to what most runs summarise.
    higher_is_better: null tells it from the metric's name."""

    metric: Metric = ""
    higher_is_better: bool | None = None


class DeleteVersionsQuery(RequestModel):
    version: (
        Annotated[
            int, Meta(ge=1, le=10**9, description="one version; default: the dataset with all its versions")
        ]
        | None
    ) = None


class DeletedOut(Struct, frozen=True):
    """How many versions went."""

    deleted: int


def dataset_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def list_datasets(ask: ApiRequest[PageQuery, Empty]) -> DatasetsOut:
        """List datasets with their newest versions. Long messages are cut; a version by itself has all of
        it."""
        found = await services.datasets.list(after=ask.query.after, limit=ask.query.limit + 1)
        page = found[: ask.query.limit]
        rows = [
            replace(one, newest=None if one.newest is None else _without_damage_detail(one.newest))
            for one in page
        ]
        return DatasetsOut(rows, page[-1].name if len(found) > len(page) else None)

    async def get(ask: ApiRequest[Empty, Empty]) -> Dataset:
        """Get a dataset."""
        return await _get_dataset(services, ask.path["name"])

    async def versions(ask: ApiRequest[VersionsQuery, Empty]) -> VersionsOut:
        """List the versions of a dataset. Long messages are cut; a version by itself has all of it."""
        found = await services.datasets.versions(
            ask.path["name"], before=ask.query.before, limit=ask.query.limit + 1
        )
        page = found[: ask.query.limit]
        return VersionsOut(
            [_without_damage_detail(one) for one in page], page[-1].number if len(found) > len(page) else None
        )

    async def version(ask: ApiRequest[Empty, Empty]) -> DatasetVersion:
        """Get one version."""
        number = ask.path["version"]
        found = await services.datasets.version(ask.path["name"], 0 if number == "newest" else int(number))
        return replace(found, damaged=await services.manifests.known_damage(found.manifest))

    async def push(ask: ApiRequest[Empty, PushIn]) -> PushOut:
        """Make a version of a tree, and the dataset if it is new.

        Pushing what the newest version holds changes nothing. 409 `missing_blobs` names what has to be
        uploaded first.
        """
        name, body = check_name(ask.path["name"], subject="dataset"), ask.body
        manifest = Digest(body.manifest)
        known = await services.datasets.find(name) if body.metric is not None else None
        ranks_anew = body.metric is not None and (known is None or known.metric != body.metric)
        if ranks_anew:
            await _check_may_set_metric(services, ask.caller.user, name)
        async with services.blob_collector.paused():
            tree = await services.manifests.require_complete(manifest, subject="dataset")
            uploads = (
                await services.manifests.referenced_blobs(manifest)
                if services.storage.has_uploads(ask.caller.user)
                else set()
            )
            await services.storage.check_quota(
                ask.caller.user, added_bytes=tree.size_bytes, excluded_uploads=uploads
            )
            made, created = await services.datasets.push(
                name,
                manifest,
                size_bytes=tree.size_bytes,
                files=tree.files,
                user=ask.caller.user,
                message=body.message,
                now=services.now(),
            )
        await services.storage.mark_referenced(ask.caller.user, uploads)
        if ranks_anew and body.metric is not None:
            await services.datasets.set_metric(name, body.metric, None)
        return PushOut(made, created)

    async def set_metric(ask: ApiRequest[Empty, MetricIn]) -> Dataset:
        """Say what the dataset's leaderboard ranks by, and in which direction.
        403 unless the caller pushed the dataset's first version, or owns the server."""
        await _get_dataset(services, ask.path["name"])
        await _check_may_set_metric(services, ask.caller.require_user(), ask.path["name"])
        await services.datasets.set_metric(ask.path["name"], ask.body.metric, ask.body.higher_is_better)
        return await _get_dataset(services, ask.path["name"])

    async def delete(ask: ApiRequest[DeleteVersionsQuery, Empty]) -> DeletedOut:
        """Delete one version, or the dataset with all its versions; 409 while a live run uses it.
        The next garbage collection frees the bytes.

        403 unless the caller pushed all deleted versions or owns the server.
        """
        await _check_pushed(services, ask.caller.require_user(), ask.path["name"], ask.query.version)
        gone = await services.datasets.delete(ask.path["name"], ask.query.version)
        services.storage.invalidate_all()
        return DeletedOut(gone)

    return [
        Endpoint("GET", "/datasets", list_datasets, PageQuery, returns=DatasetsOut),
        Endpoint("GET", "/datasets/{name}", get, returns=Dataset),
        Endpoint("PATCH", "/datasets/{name}", set_metric, body=MetricIn, returns=Dataset),
        Endpoint(
            "DELETE", "/datasets/{name}", delete, DeleteVersionsQuery, returns=DeletedOut, errors=(409,)
        ),
        Endpoint("GET", "/datasets/{name}/versions", versions, VersionsQuery, returns=VersionsOut),
        Endpoint(
            "POST",
            "/datasets/{name}/versions",
            push,
            body=PushIn,
            returns=PushOut,
            status=201,
            errors=(400, 409, 507),
            audit="dataset.push",
        ),
        Endpoint("GET", "/datasets/{name}/versions/{version}", version, returns=DatasetVersion),
    ]


def _without_damage_detail(version: DatasetVersion) -> DatasetVersion:
    return replace(version, message=truncate_text(version.message))


async def _check_pushed(services: Services, user: str, name: str, number: int | None) -> None:
    """Raises Forbidden unless the user pushed the version (None: all of them), or owns the server;
    NotFound."""
    if user == services.queue_cache.owner:
        return
    found = (
        [await services.datasets.version(name, number)] if number else await services.datasets.versions(name)
    )
    others = {version.created_by: version.number for version in found if version.created_by != user}
    for other, pushed in others.items():
        who = f"{other}, {services.queue_cache.owner}" if other != services.queue_cache.owner else other
        raise Forbidden(
            f"version {pushed} of `{name}` was pushed by {other}; users allowed to delete it: {who}",
            hints=("ask one of them",),
        )


async def _check_may_set_metric(services: Services, user: str, name: str) -> None:
    """Raises Forbidden unless the user may say what the dataset's leaderboard ranks by: another metric
    changes the ranks of all runs."""
    first = await services.datasets.first_version(name)
    if first is None or user in (first.created_by, services.queue_cache.owner):
        return
    hint = f"ask one of them, or rank by another metric for yourself: `hop board {name} --metric METRIC`"
    raise Forbidden(
        f"`{name}` was made by {first.created_by}, who says with {services.queue_cache.owner} what its "
        "leaderboard ranks by",
        hints=(hint,),
    )


async def _get_dataset(services: Services, name: str) -> Dataset:
    found = await services.datasets.find(name)
    if found is None:
        await services.datasets.versions(name, limit=1)  # raises NotFound with close names
        raise NotFound(f"there is no dataset `{name}`", hints=("list the datasets with `hop dataset ls`",))
    return found
