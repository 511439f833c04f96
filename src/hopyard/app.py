"""The server as a program, and the only module that names concrete engines and stores.

    python -m hopyard.app --home HOME [--port N]

One server per home folder: a second one exits at once with a message and exit code 0.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # the imports create hardly any garbage; main() enables it again

import argparse
import asyncio
import fcntl
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import uvloop

from hopyard import __version__
from hopyard.api_client.home_socket import HOST, loopback_port
from hopyard.config.descriptor_limit import descriptor_limit, raise_descriptor_limit
from hopyard.config.glibc_malloc import configure_malloc
from hopyard.config.home import ROOT_ERROR, Home, user_name
from hopyard.config.home_identity import (
    folder_identity,
    identity_proof,
)
from hopyard.config.node_checks import find_gpu_problem, find_home_problem
from hopyard.config.quotas import QuotaSettings
from hopyard.config.settings import HomeSettings, read_settings
from hopyard.config.settings import NodeSettings as DeclaredNode
from hopyard.controller.audit_retention import run_audit_retention
from hopyard.controller.clock import SystemClock
from hopyard.controller.gc_schedule import collect_young, run_full_collections
from hopyard.controller.heartbeat import HEARTBEAT_TIMEOUT, run_heartbeat
from hopyard.controller.notification_sender import TargetSender
from hopyard.controller.notifier import Notifier
from hopyard.controller.orphan_cleanup import run_orphan_cleanup
from hopyard.controller.restored_home import cordon_restored
from hopyard.domain.cluster import Node, ServerRecord
from hopyard.domain.ids import DEFAULT_POOL
from hopyard.domain.resources import UNKNOWN_GPU_MODEL, Gpu
from hopyard.domain.stream_limits import StreamLimits
from hopyard.engines.local.engine import LocalEngine
from hopyard.engines.local.node_detection import LocalNodeSettings, find_nodes
from hopyard.engines.local.node_health import HealthChecks
from hopyard.errors import HopyardError, SpecError, StorageFull, is_disk_full
from hopyard.interfaces.cluster_store import ClusterStore
from hopyard.private_files import GROUP_AND_OTHERS_BITS, make_folder, open_file, remove_tree
from hopyard.scheduler.cycle.planner import Planner
from hopyard.server.api import create_api
from hopyard.server.build_services import build_services
from hopyard.server.connections import backlog_for
from hopyard.server.discovery_files import DiscoveryFiles
from hopyard.server.home_records import (
    SECRET_BYTES,
    ensure_home_id,
    ensure_identity,
    ensure_token,
    other_database_warning,
)
from hopyard.server.http_server import HttpServer
from hopyard.server.idle_watch import IdleWatch
from hopyard.server.signing_keys import load_signing_keys
from hopyard.server.unix_socket import listener_uid
from hopyard.stores.blobs.folder import FolderBlobs
from hopyard.stores.disk_reserve import DiskReserves
from hopyard.stores.sql.access import SqlAccessStore
from hopyard.stores.sql.audit import SqlAuditStore
from hopyard.stores.sql.change_feed import SqlChangeFeed
from hopyard.stores.sql.cluster import SqlClusterStore
from hopyard.stores.sql.commands import SqlCommandStore
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.datasets import SqlDatasetStore
from hopyard.stores.sql.notifications import SqlNotificationStore
from hopyard.stores.sql.queues import SqlQueueStore
from hopyard.stores.sql.reports import SqlReportStore
from hopyard.stores.sql.reservations import SqlReservationStore
from hopyard.stores.sql.runs import SqlRunStore
from hopyard.stores.sql.saved_views import SqlSavedViewStore
from hopyard.stores.sql.sessions import SqlSessionStore
from hopyard.stores.sql.storage import SqlStorageStore
from hopyard.stores.sql.usage import SqlUsageStore
from hopyard.stores.stream_files import FolderStreams

SPAWNER = (sys.executable, "-m", "hopyard.replica.spawner")
# files of an old home whose modes are fixed before the server starts; the others are fixed in the background
PERMISSION_FIX_BATCH = 10_000
FIRST_RECONCILE_TIMEOUT_S = 5.0  # a start waits so long for the engine's first observation
log = logging.getLogger("hopyard.app")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until stopped. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m hopyard.app", description="Serve one Hopyard home folder."
    )
    parser.add_argument("--home", type=Path, help="the home folder (default: $HOPYARD_HOME, or ~/.hopyard)")
    parser.add_argument(
        "--port", type=int, help="the port on loopback (default: the previous port, else a free one)"
    )
    parser.add_argument(
        "--web-ui", type=Path, help="a folder of built files of the web UI (default: that of the package)"
    )
    options = parser.parse_args(arguments)
    home = Home(options.home.expanduser().absolute()) if options.home else Home.default()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    raise_descriptor_limit()
    return_freed_memory_to_os()
    collect_young()
    scripts_umask = os.umask(GROUP_AND_OTHERS_BITS)
    try:
        lock = acquire_server_lock(home.create())
        if lock is None:
            log_message(f"a server already runs for {home.root}")
            return 0
        permission_fixes = home.make_entries_private()
        for _ in islice(permission_fixes, PERMISSION_FIX_BATCH):
            pass
        settings = read_settings(home.settings_file)
        reserves = make_reserves(home)
        listen_socket, warning = bind_listen_socket(home, settings, options.port)
        with listen_socket:
            uvloop.run(
                serve(
                    home,
                    settings,
                    listen_socket,
                    reserves,
                    warning=warning,
                    scripts_umask=scripts_umask,
                    permission_fixes=permission_fixes,
                    web_folder=options.web_ui and options.web_ui.expanduser().absolute(),
                )
            )
    except (HopyardError, OSError, ExceptionGroup) as caught:
        error = caught
        while isinstance(error, ExceptionGroup):  # the first loop that fails ends the others
            error = error.exceptions[0]
        if is_disk_full(error):
            error = StorageFull(
                f"no space left on the disk of {home.root}",
                hints=("free some space: the server needs a few hundred kilobytes to start",),
            )
        if not isinstance(error, (HopyardError, OSError)):
            raise
        log_message(
            "\n".join([f"error: {error}", *(f"hint: {hint}" for hint in getattr(error, "hints", ()))])
        )
        return 1
    return 0


def log_message(text: str) -> None:
    """Writes to the log; an error, such as a full disk, is ignored."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def return_freed_memory_to_os() -> None:
    """Configures malloc to return large freed blocks to the system. Streams arrive in pieces of megabytes,
    and without this an idle server would keep the memory of its busiest moment."""
    configure_malloc(mmap_bytes=256 * 1024, arenas=2)


def acquire_server_lock(home: Home) -> int | None:
    """Locks `server.lock` for the lifetime of this process and writes the pid to it. Returns None when
    another process holds the lock."""
    descriptor = open_file(home.server_lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    return descriptor


def bind_listen_socket(home: Home, settings: HomeSettings, port: int | None) -> tuple[socket.socket, str]:
    """Returns a listening socket on loopback, and a warning for the owner ("" for none). A requested port
    must be free; the previous port is only preferred.

    Raises SpecError.
    """
    requested_port = port if port is not None else settings.server.port
    if requested_port:
        try:
            return _listen_on(requested_port), ""
        except OSError as error:
            hint = (
                f"stop the program that listens there, or set another port: `server: {{port: …}}` in "
                f"{home.settings_file}"
            )
            raise SpecError(
                f"port {requested_port} cannot be used: {error.strerror}", hints=(hint,)
            ) from error
    previous_port = loopback_port((home.read_server() or {}).get("url"))
    try:
        return _listen_on(previous_port), ""
    except OSError:
        listen_socket = _listen_on(0)
    uid = listener_uid(previous_port)
    holder = "another program" if uid is None else f"a program of user {user_name(uid)} (uid {uid})"
    return listen_socket, (
        f"port {previous_port} of the last server of this home is taken by {holder}. This server listens on "
        f"port {listen_socket.getsockname()[1]}. Users who still connect to port {previous_port} send their "
        f"tokens to that program: notify them, and end it or set `server: {{port: …}}` in config.yaml"
    )


def _listen_on(port: int) -> socket.socket:
    listen_socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listen_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listen_socket.bind((HOST, port))
        listen_socket.listen(backlog_for(descriptor_limit()))
        listen_socket.setblocking(False)
    except BaseException:
        listen_socket.close()
        raise
    return listen_socket


def make_reserves(home: Home) -> DiskReserves:
    """Reserves disk space for operations that must succeed on a full disk. If the disk is already full,
    existing reserves are released for this start."""
    folders = (home.root, home.streams, home.attempts)
    reserves = DiskReserves([home.root, *(folder for folder in folders if folder.exists())])
    reserves.release_until_writable()
    for folder in folders:
        make_folder(folder)
    return DiskReserves(folders)


async def serve(
    home: Home,
    settings: HomeSettings,
    listen_socket: socket.socket,
    reserves: DiskReserves,
    *,
    warning: str,
    scripts_umask: int,
    permission_fixes: Iterator[str],
    web_folder: Path | None = None,
) -> None:
    """Opens everything, serves until SIGTERM, SIGINT or `POST /shutdown`, closes everything. Runs continue
    without the server.

    warning: shown to the owner. scripts_umask: the umask of the runs' scripts. permission_fixes: the
    remaining steps of `Home.make_entries_private`, carried out in the background. web_folder: of the built
    files of the web UI; None: those of the package.
    """
    end_event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, end_event.set)
    url = f"http://{HOST}:{listen_socket.getsockname()[1]}"
    clock, started_at = SystemClock(), datetime.now(UTC)
    async with AsyncExitStack() as exit_stack:
        database = Database.open(
            settings.database or home.database, release_space=lambda: reserves.release_slice(home.root)
        )
        exit_stack.push_async_callback(database.close)
        database.open_readers()
        blobs, streams = FolderBlobs(home.blobs), FolderStreams(home.streams)
        exit_stack.push_async_callback(blobs.close)
        exit_stack.push_async_callback(streams.close)
        access = SqlAccessStore(database)
        home_id = ensure_home_id(home)
        name = "local" if settings.database is None else f"local-{home_id}"
        server_key = "" if settings.database is None else secrets.token_hex(SECRET_BYTES)
        engine = LocalEngine(
            home,
            server_url=lambda: url,
            spawner_command=SPAWNER,
            nodes=[node_settings(node, settings.quotas) for node in settings.nodes or (settings.node,)],
            name=name,
            umask=scripts_umask,
            free_disk_space=reserves.release_slice,
            checks=HealthChecks(find_home_problem, find_gpu_problem),
            pass_environment=settings.runs.pass_environment,
            max_output_bytes=settings.runs.max_output_bytes,
            max_metrics_bytes=settings.runs.max_metrics_bytes,
            max_media_bytes=settings.runs.max_media_bytes,
            namespaces=settings.runs.namespaces,
        )
        exit_stack.push_async_callback(engine.close)
        cluster = SqlClusterStore(database)
        if settings.database is not None:
            await check_node_unclaimed(home, cluster, engine)
        database_warning = await other_database_warning(home, access)
        await check_live_runs(home, cluster, engine, clock.now(), other=bool(database_warning))
        remove_tree(home.scratch)  # of a server that was killed
        # all checks have passed: from here on, the server may write to the database
        identity = await ensure_identity(home, access)
        await ensure_token(home, access, identity.owner, home_id, now=clock.now())
        notifications = SqlNotificationStore(database)
        services = await build_services(
            runs=SqlRunStore(database),
            commands=SqlCommandStore(database),
            notifications=notifications,
            cluster=cluster,
            datasets=SqlDatasetStore(database),
            queues=SqlQueueStore(database),
            reservations=SqlReservationStore(database),
            usage=SqlUsageStore(database),
            saved_views=SqlSavedViewStore(database),
            reports=SqlReportStore(database),
            audit=SqlAuditStore(database),
            changes=SqlChangeFeed(database),
            storage=SqlStorageStore(database),
            storage_quota_bytes=settings.quotas.storage_bytes,
            stream_limits=StreamLimits(
                settings.runs.max_output_bytes,
                settings.runs.max_metrics_bytes,
                media_bytes=settings.runs.max_media_bytes,
            ),
            access=access,
            sessions=SqlSessionStore(database),
            blobs=blobs,
            streams=streams,
            engine=engine,
            policy=Planner(),
            clock=clock,
            url=url,
            home=str(home.root),
            owner=identity.owner,
            version=__version__,
            request_shutdown=end_event.set,
            started_at=started_at,
            warnings=tuple(
                filter(None, (warning, database_warning, ROOT_ERROR if os.geteuid() == 0 else ""))
            ),
            keys=await load_signing_keys(home.signing_file, access, now=clock.now),
            prove=lambda nonce: identity_proof(
                identity, nonce=nonce, port=loopback_port(url), folder_identity=folder_identity(home)
            ),
            server_key=server_key,
            keep_checkpoints=settings.retention.checkpoints,
            preempt_grace=timedelta(seconds=settings.scheduler.preempt_grace_s),
            # an earlier holder has certainly ended, since this process holds the lock of the home
            holder=f"{socket.gethostname()} {home_id}",
            check_targets=settings.notifications.check,
            base_image=settings.containers.base_image,
            git=settings.git,
        )
        exit_stack.push_async_callback(services.tokens.close)
        exit_stack.push_async_callback(services.ingest.flush_all)
        exit_stack.push_async_callback(services.controller.release_leadership)
        if (restored := home.read_restored()) is not None:
            await cordon_restored(services.cluster, engine, clock, created_at=restored)
            log.warning("this home was restored from the backup of %s: its nodes are cordoned", restored)
            home.restored_file.unlink()
        discovery_files = DiscoveryFiles(home, url, started_at, warning, reserves.retry_with_reserve)
        server = HttpServer(
            create_api(services, settings.server.limits, web_folder=web_folder),
            services,
            end_event,
            settings=settings.server,
            withdraw=discovery_files.withdraw,
        )
        async with asyncio.TaskGroup() as loops:
            server_task = loops.create_task(server.serve(sockets=[listen_socket]))
            await server.accepting_requests.wait()
            audit_retention = (
                timedelta(days=settings.retention.audit_days) if settings.retention.audit_days else None
            )
            audit, permissions = (
                run_audit_retention(services.audit, clock, retention=audit_retention),
                asyncio.to_thread(run_in_background, permission_fixes, end_event.is_set),
            )
            cleanups = (
                ()
                if database_warning
                else (
                    services.blob_collector.run(clock),
                    run_orphan_cleanup(services.runs, streams, clock, run_folders=home.retained),
                )
            )
            notifier = Notifier(
                notifications,
                services.runs,
                TargetSender(settings.notifications),
                clock,
                latest_metrics=services.latest_metrics,
                run_url=lambda run: f"{settings.server.url or url}/runs/{run.id}",
            )
            background = [
                services.controller.run(),
                notifier.run(),
                services.events.run(),
                IdleWatch(services, clock).run(),
                *cleanups,
                run_full_collections(clock),
                audit,
                permissions,
                reserves.run(),
            ]
            if settings.database is not None:
                own_url = settings.server.url or url
                background.append(
                    run_heartbeat(
                        cluster,
                        clock,
                        server_record=lambda at: ServerRecord(
                            name, server_location(home), at, own_url, server_key
                        ),
                    )
                )
            tasks = [loops.create_task(coroutine) for coroutine in background]
            with suppress(TimeoutError):  # a first request may ask for the nodes
                async with asyncio.timeout(FIRST_RECONCILE_TIMEOUT_S):
                    await services.controller.first_reconcile_done.wait()
            await discovery_files.publish(server.add_unix_socket)
            tasks.append(loops.create_task(discovery_files.restore_missing_files(server.add_unix_socket)))
            for text in services.warnings:
                log.warning("%s", text)
            log.info("hopyard %s serves at %s, home %s", __version__, url, home.root)
            try:
                await engine.start()
            except HopyardError as error:  # the first launch retries, and its run records the error
                log.warning("%s", error.message)
            await server_task
            for task in tasks:
                task.cancel()
    log.info("ended")


def run_in_background(steps: Iterator[str], ended: Callable[[], bool]) -> None:
    """Runs the remaining `steps`, or until the server has ended. An error does not end the server."""
    try:
        for _ in steps:
            if ended():
                return
    except (HopyardError, OSError) as error:
        log.error("some files of an older home are still readable by other users: %s", error)


def declared_nodes(home: Home) -> tuple[list[Node], bool]:
    """Returns the nodes of this machine as the settings declare them, and whether the driver reported their
    GPUs. Raises SpecError for settings that cannot be read."""
    settings = read_settings(home.settings_file)
    return find_nodes([node_settings(node, settings.quotas) for node in settings.nodes or (settings.node,)])


def node_settings(node: DeclaredNode, quotas: QuotaSettings) -> LocalNodeSettings:
    """Converts the settings of this machine to the settings of the engine."""
    gpus = (
        None
        if node.gpus is None
        else tuple(
            Gpu(index, node.gpu_model or UNKNOWN_GPU_MODEL, node.gpu_memory_bytes)
            for index in range(node.gpus)
        )
    )
    return LocalNodeSettings(
        id=node.id,
        cpu_milli=node.cpu_milli,
        memory_bytes=node.memory_bytes,
        gpus=gpus,
        pool=node.pool or DEFAULT_POOL,
        labels=node.labels,
        extras=node.extras,
        processes=quotas.processes,
    )


def server_location(home: Home) -> str:
    """Returns the machine and folder of a server, for users and for other servers of its database."""
    return f"{socket.gethostname()}:{home.root}"


async def check_node_unclaimed(home: Home, cluster: ClusterStore, engine: LocalEngine) -> None:
    """Raises SpecError if runs of one server could be attributed to another.

    That is the case when another home on the same database has a node of this name, or when this home is a
    copy of the home of a running server.
    """
    location, now = server_location(home), datetime.now(UTC)
    for server in await cluster.servers():
        if (
            server.engine == engine.name
            and server.place != location
            and now - server.seen_at <= HEARTBEAT_TIMEOUT
        ):
            raise SpecError(
                f"the server of {server.place} is up, and this home is a copy of its home",
                hints=(
                    (
                        f"stop that server first, or remove {home.mark_file} and {home.token_file} to "
                        "make this home a separate server of the database"
                    ),
                ),
            )
    names = {node.id for node in engine.nodes}
    taken = [node.id for node in await cluster.nodes() if node.id in names and node.engine != engine.name]
    for name in taken[:1]:
        raise SpecError(
            f"another server of this database has a node `{name}`",
            hints=(
                f"set a unique name for this machine: `node: {{id: NAME}}` in {home.settings_file}",
                f"if that server is gone for good, run `hop node rm {name}` on a live server",
            ),
        )


async def check_live_runs(
    home: Home, cluster: ClusterStore, engine: LocalEngine, now: datetime, *, other: bool
) -> None:
    """Raises SpecError when starting this server would harm runs that an earlier server of the home left
    alive.

    If the database is another one (other), it does not know the runs and would end them. If the node has
    another name than theirs, their GPUs would be allocated twice.
    """
    leftover = await asyncio.to_thread(engine.leftover_attempts)
    if not leftover:
        return
    live = await cluster.live_attempts()
    unknown = sorted(leftover.keys() - live.keys())
    if other and unknown:
        raise SpecError(
            f"{len(unknown)} run{'s' * (len(unknown) > 1)} of this home ({_join_some(unknown)}) belong to "
            "another database than the configured one, which would end them",
            hints=(
                (
                    f"configure that database: see `database:` in {home.settings_file}, or restore "
                    f"{home.database} if that was the database"
                ),
                (
                    "to abandon these runs and all blobs and streams of the home, remove "
                    f"{home.database_id_file}"
                ),
            ),
        )
    if not any(leftover.values()):
        return
    for running in (await cluster.snapshot(now=now)).running:
        nodes = {assignment.node for assignment in running.placement.assignments}
        names = [node.id for node in engine.nodes]
        if leftover.get(running.attempt) and not nodes.issubset(names):
            old_node = min(nodes.difference(names))
            raise SpecError(
                f"runs of this home are live on node `{old_node}` ({running.attempt}), and its node is "
                f"named `{names[0]}` now: their resources would be allocated twice",
                hints=(
                    (
                        f"keep the old name until these runs end: `node: {{id: {old_node}}}` in "
                        f"{home.settings_file}; without it, the node has the name of the machine"
                    ),
                ),
            )


def _join_some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


if __name__ == "__main__":
    sys.exit(main())
