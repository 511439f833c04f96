"""Datasets and their versions. (Their leaderboards are in `leaderboards`.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta, Struct

from hopyard.config.run_request import parse_dataset
from hopyard.config.schemas.fields import LINE, TEXT, Hex, LongText, RequestModel
from hopyard.domain.dataset import MAX_DESCRIPTION_LENGTH, Dataset, DatasetVersion
from hopyard.domain.ids import Digest, check_name
from hopyard.domain.spec_summary import truncate_text
from hopyard.errors import Forbidden, NotFound
from hopyard.server.delete_dataset import freed_bytes
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.pages import MAX_ROWS, Limit, PageQuery
from hopyard.server.services import Services

Metric = Annotated[str, Meta(max_length=1024, pattern=LINE)]


class PushIn(RequestModel):
    """manifest: of a tree, with all blobs on the server. metric: by which the leaderboard ranks.
    derived_from: the version that the data was made from, as `NAME:VERSION`, or `NAME` for its newest
    version."""

    manifest: Hex
    message: LongText = ""
    derived_from: Annotated[str, Meta(max_length=256, pattern=LINE)] | None = None
    metric: Metric | None = None


class PushOut(Struct, frozen=True):
    """created: false when the newest version already has this manifest; `version` is then that version."""

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
    """metric: "" for the metric that most runs have in their summary. higher_is_better: null derives it from
    the metric's name."""

    metric: Metric = ""
    higher_is_better: bool | None = None


class DescriptionIn(RequestModel):
    """description: Markdown; "" removes it. revision: the `description_revision` that it replaces; null for
    any."""

    description: Annotated[str, Meta(max_length=MAX_DESCRIPTION_LENGTH, pattern=TEXT)]
    revision: Annotated[int, Meta(ge=0, le=2**53)] | None = None


class DeleteVersionsQuery(RequestModel):
    version: (
        Annotated[
            int, Meta(ge=1, le=10**9, description="one version; default: the dataset with all its versions")
        ]
        | None
    ) = None


class DeletedOut(Struct, frozen=True):
    """deleted: the number of deleted versions. frees_bytes: about how many bytes the next garbage collection
    frees. Files that a run or another version of the dataset uses stay."""

    deleted: int
    frees_bytes: int


def dataset_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def list_datasets(request: ApiRequest[PageQuery, Empty]) -> DatasetsOut:
        """List datasets with their newest versions. Long messages and descriptions are truncated; a single
        version has the full message, a single dataset the full description."""
        datasets = await services.datasets.list(after=request.query.after, limit=request.query.limit + 1)
        page = datasets[: request.query.limit]
        rows = [
            replace(
                dataset,
                newest=None if dataset.newest is None else _with_truncated_message(dataset.newest),
                description=truncate_text(dataset.description),
            )
            for dataset in page
        ]
        counts = await services.datasets.count_runs([row.name for row in rows])
        return DatasetsOut(
            [replace(row, runs=counts.get(row.name, 0)) for row in rows],
            page[-1].name if len(datasets) > len(page) else None,
        )

    async def get(request: ApiRequest[Empty, Empty]) -> Dataset:
        """Get a dataset."""
        return await _with_run_count(services, await _get_dataset(services, request.path["name"]))

    async def versions(request: ApiRequest[VersionsQuery, Empty]) -> VersionsOut:
        """List the versions of a dataset. Long messages are truncated; a single version has the full
        message."""
        rows = await services.datasets.versions(
            request.path["name"], before=request.query.before, limit=request.query.limit + 1
        )
        page = rows[: request.query.limit]
        return VersionsOut(
            [_with_truncated_message(version) for version in page],
            page[-1].number if len(rows) > len(page) else None,
        )

    async def version(request: ApiRequest[Empty, Empty]) -> DatasetVersion:
        """Get one version."""
        number = request.path["version"]
        dataset_version = await services.datasets.version(
            request.path["name"], 0 if number == "newest" else int(number)
        )
        return replace(
            dataset_version, damaged=await services.manifests.known_damage(dataset_version.manifest)
        )

    async def push(request: ApiRequest[Empty, PushIn]) -> PushOut:
        """Create a version of a tree, and the dataset if it is new. Nothing changes if the newest version has
        this manifest. 409 `missing_blobs` lists the blobs to upload first."""
        name, body = check_name(request.path["name"], subject="dataset"), request.body
        manifest = Digest(body.manifest)
        origin = "" if body.derived_from is None else await _find_origin(services, body.derived_from)
        dataset = await services.datasets.find(name) if body.metric is not None else None
        changes_metric = body.metric is not None and (dataset is None or dataset.metric != body.metric)
        if changes_metric:
            await _check_may_set_metric(services, request.caller.user, name)
        async with services.blob_collector.paused():
            tree = await services.manifests.require_complete(manifest, subject="dataset")
            uploads = (
                await services.manifests.referenced_blobs(manifest)
                if services.storage.has_uploads(request.caller.user)
                else set()
            )
            await services.storage.check_quota(
                request.caller.user, added_bytes=tree.size_bytes, excluded_uploads=uploads
            )
            new_version, created = await services.datasets.push(
                name,
                manifest,
                size_bytes=tree.size_bytes,
                files=tree.files,
                user=request.caller.user,
                message=body.message,
                now=services.now(),
                derived_from=origin,
            )
        await services.storage.mark_referenced(request.caller.user, uploads)
        if changes_metric and body.metric is not None:
            await services.datasets.set_metric(name, body.metric, None)
        return PushOut(new_version, created)

    async def set_metric(request: ApiRequest[Empty, MetricIn]) -> Dataset:
        """Set the metric and direction of the dataset's leaderboard. 403 unless the caller pushed the
        dataset's first version, or owns the server."""
        await _get_dataset(services, request.path["name"])
        await _check_may_set_metric(services, request.caller.require_user(), request.path["name"])
        await services.datasets.set_metric(
            request.path["name"], request.body.metric, request.body.higher_is_better
        )
        return await _with_run_count(services, await _get_dataset(services, request.path["name"]))

    async def describe(request: ApiRequest[Empty, DescriptionIn]) -> Dataset:
        """Set the description of a dataset. 403 unless the caller pushed one of its versions, or owns the
        server. 409 if the description is at another revision than `revision`: another user has changed
        it."""
        name, body = request.path["name"], request.body
        await _check_may_describe(services, request.caller.require_user(), name)
        await services.datasets.set_description(name, body.description, base=body.revision)
        return await _with_run_count(services, await _get_dataset(services, name))

    async def delete(request: ApiRequest[DeleteVersionsQuery, Empty]) -> DeletedOut:
        """Delete one version, or the dataset with all its versions; 409 while a live run uses it.
        The next garbage collection frees the bytes.

        403 unless the caller pushed all deleted versions or owns the server.
        """
        name, number = request.path["name"], request.query.version
        await _check_pushed(services, request.caller.require_user(), name, number)
        frees_bytes = await freed_bytes(services, name, number)
        deleted = await services.datasets.delete(name, number)
        services.storage.invalidate_all()
        return DeletedOut(deleted, frees_bytes)

    async def preview_deletion(request: ApiRequest[DeleteVersionsQuery, Empty]) -> DeletedOut:
        """Return what the deletion of a version, or of the dataset with all its versions, would do. 403 as
        for the deletion."""
        name, number = request.path["name"], request.query.version
        await _check_pushed(services, request.caller.require_user(), name, number)
        dataset = await _get_dataset(services, name)
        return DeletedOut(1 if number else dataset.versions, await freed_bytes(services, name, number))

    return [
        Endpoint("GET", "/datasets", list_datasets, PageQuery, returns=DatasetsOut),
        Endpoint("GET", "/datasets/{name}", get, returns=Dataset),
        Endpoint("PATCH", "/datasets/{name}", set_metric, body=MetricIn, returns=Dataset),
        Endpoint(
            "PUT",
            "/datasets/{name}/description",
            describe,
            body=DescriptionIn,
            returns=Dataset,
            errors=(403, 409),
            audit="dataset.describe",
        ),
        Endpoint(
            "DELETE", "/datasets/{name}", delete, DeleteVersionsQuery, returns=DeletedOut, errors=(409,)
        ),
        Endpoint(
            "GET",
            "/datasets/{name}/deletion",
            preview_deletion,
            DeleteVersionsQuery,
            returns=DeletedOut,
            is_heavy=True,
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


async def _with_run_count(services: Services, dataset: Dataset) -> Dataset:
    counts = await services.datasets.count_runs([dataset.name])
    return replace(dataset, runs=counts.get(dataset.name, 0))


async def _find_origin(services: Services, text: str) -> str:
    """Returns `NAME:VERSION` of the version that `text` names. Raises SpecError, NotFound."""
    name, number = parse_dataset(text, what="derived_from")
    return f"{name}:{(await services.datasets.version(name, number)).number}"


def _with_truncated_message(version: DatasetVersion) -> DatasetVersion:
    return replace(version, message=truncate_text(version.message))


async def _check_pushed(services: Services, user: str, name: str, number: int | None) -> None:
    """Raises Forbidden unless the user pushed the version (None: all versions), or owns the server. Raises
    NotFound."""
    if user == services.queue_cache.owner:
        return
    versions = (
        [await services.datasets.version(name, number)] if number else await services.datasets.versions(name)
    )
    pushed_by_others = {
        version.created_by: version.number for version in versions if version.created_by != user
    }
    for creator, number_pushed in pushed_by_others.items():
        allowed_users = (
            f"{creator}, {services.queue_cache.owner}" if creator != services.queue_cache.owner else creator
        )
        raise Forbidden(
            f"version {number_pushed} of `{name}` was pushed by {creator}; users allowed to delete it: "
            f"{allowed_users}",
            hints=("ask one of them",),
        )


async def _check_may_set_metric(services: Services, user: str, name: str) -> None:
    """Raises Forbidden unless the user may set the metric of the leaderboard, since another metric changes
    the ranks of all runs."""
    first = await services.datasets.first_version(name)
    if first is None or user in (first.created_by, services.queue_cache.owner):
        return
    hint = f"ask one of them, or rank by another metric for yourself: `hop board {name} --metric METRIC`"
    raise Forbidden(
        f"`{user}` cannot change the metric of `{name}`; allowed users: {first.created_by}, "
        f"{services.queue_cache.owner}",
        hints=(hint,),
    )


async def _check_may_describe(services: Services, user: str, name: str) -> None:
    """Raises Forbidden unless the user pushed a version of the dataset, or owns the server. Raises
    NotFound."""
    owner = services.queue_cache.owner
    users = {version.created_by for version in await services.datasets.versions(name)}
    if users and user not in users | {owner}:
        raise Forbidden(
            f"`{user}` cannot describe `{name}`; allowed users: {', '.join(sorted(users | {owner}))}",
            hints=("ask one of them",),
        )


async def _get_dataset(services: Services, name: str) -> Dataset:
    dataset = await services.datasets.find(name)
    if dataset is None:
        await services.datasets.versions(name, limit=1)  # raises NotFound with close names
        raise NotFound(f"there is no dataset `{name}`", hints=("list the datasets with `hop dataset ls`",))
    return dataset
