"""The link's ear, and the thread that trains."""

from __future__ import annotations

import logging
import os
import resource
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopyard.domain.ids import WorkerId
from hopyard.errors import ServerUnavailable, SpecError
from hopyard.studies.link.line import Line
from hopyard.studies.link.listener import Listener
from hopyard.studies.link.wire import Broken, Wire, join_address, split_address
from hopyard.studies.messages import (
    Acknowledge,
    Beat,
    Cancel,
    Drop,
    End,
    Evaluate,
    FromWorker,
    Hello,
    Lend,
    Named,
    Open,
    Prefetch,
    Progress,
    Ready,
    Train,
    from_head,
    to_head,
)
from hopyard.studies.states.serve import Server, lend
from hopyard.studies.states.shelf import Shelf
from hopyard.studies.trainable.load import load
from hopyard.studies.trainable.protocol import Trainable, TrainsTogether
from hopyard.studies.worker import process
from hopyard.studies.worker.ahead import Ahead, Aside, Namer
from hopyard.studies.worker.bench import Bench
from hopyard.studies.worker.failure import Cancelled, Leaving, failed
from hopyard.studies.worker.group import Meetings
from hopyard.studies.worker.inbox import Inbox
from hopyard.studies.worker.opening import Data, Opened

log = logging.getLogger("hopyard.studies.worker")

_LAST_WORDS_S = 5.0  # for the driver to acknowledge at the end
_PROGRESS_S = 1.0


class Worker:
    """The link's ear, and the thread that trains. All it knows at a time: its partitions, one unit, what it
    has to tell."""

    def __init__(
        self,
        address: str,
        secret: bytes,
        shelf: Shelf,
        data: Data,
        worker: WorkerId,
        code: Path,
        host: str,
        patience_s: float,
        *,
        foreign: bool = False,
    ) -> None:
        self._id, self._shelf, self._code, self._host = worker, shelf, code, host
        self._address, self._secret = address, secret
        self._trainable: Trainable | None = None
        self._trainable_of = ""
        self._opened = Opened(data)
        self._inbox = Inbox()
        self._meetings = Meetings()
        self._lending: set[str] = set()
        self._server = Server(shelf)
        self._fetcher, self._tidier, self._lender = (
            Aside("worker-fetch"),
            Aside("worker-tidy"),
            Aside("worker-lend"),
        )
        self._ahead = Ahead(shelf, secret, self._fetcher)
        self._listener = Listener(secret, self._serve, host=_listens_on(address))
        self._line = Line(address, secret, self, patience_s=patience_s)
        self._bench = Bench(
            shelf,
            self._ahead,
            self._tidier,
            self._meetings,
            secret,
            self._stop,
            self._progressed,
            foreign=foreign,
        )
        self._namer = Namer(shelf, self._named, self._bench.at_work)
        self._seen: set[str] = set()  # trials
        self._done: set[type[Train | Evaluate]] = set()  # kinds of units
        self._last_progress = 0.0
        self._lost = ""

    def work(self) -> str:
        """Until the end; returns its reason."""
        self._line.start()
        while True:
            order = self._inbox.next()
            match order:
                case End():
                    if self._lost:
                        raise ServerUnavailable(self._lost)
                    self._line.wait_until_acknowledged(_LAST_WORDS_S)
                    return order.reason
                case Open():
                    self._open(order)
                case Train() | Evaluate():
                    self._do(order)

    def close(self) -> None:
        self._line.close()
        self._listener.close()
        for thread in (self._fetcher, self._tidier, self._lender, self._namer):
            thread.close()

    # -- opening
    # -----------------------------------------------------------------------------------------------------

    def _open(self, order: Open) -> None:
        began = time.monotonic()
        try:
            process.settle(order.deterministic, order.threads)
            if order.trainable != self._trainable_of:
                self._trainable = load(order.trainable, self._code)
                self._trainable_of = order.trainable
                process.settle(order.deterministic, order.threads)
                process.keep_what_is_there()
            self._opened.change(order.plan, order.train, order.validation)
        except (Exception, SystemExit) as bad:
            log.warning("partitions could not be opened: %s", bad)
            self._tell(failed("", bad, self._code, kind="open"))
            return
        train, validation = self._opened.of("train"), self._opened.of("validation")
        rows = self._opened.rows("train", train), self._opened.rows("validation", validation)
        together = isinstance(self._trainable, TrainsTogether)
        self._tell(Ready(train, validation, *rows, seconds=time.monotonic() - began, together=together))

    # -- units
    # -------------------------------------------------------------------------------------------------------

    def _do(self, order: Train | Evaluate) -> None:
        """Whatever the user's code does, the worker goes on."""
        if order.trial not in self._seen:
            self._seen.add(order.trial)
            log.info("trial %s for the first time: %s", order.trial, dict(order.params))
        try:
            if self._trainable is None:
                raise SpecError("the worker was told to train before it was told what")
            if isinstance(order, Train):
                finished = self._bench.train(self._trainable, order, self._id, self._opened)
                name = self._namer.hold(order.unit, finished.state)
                self._tell(finished, key=("news", order.unit))
                name()
            else:
                self._tell(
                    self._bench.evaluate(self._trainable, order, self._opened), key=("news", order.unit)
                )
        except Leaving:
            raise
        except Cancelled:
            log.info("unit %s was cancelled", order.unit)
        except (Exception, SystemExit) as bad:
            self._failed(order.unit, bad)
        finally:
            self._meetings.end(order.unit)
        if type(order) not in self._done:  # libraries import a part of themselves when they are first used
            self._done.add(type(order))
            process.keep_what_is_there()

    def _failed(self, unit: str, bad: BaseException) -> None:
        if self._inbox.is_cancelled:
            return  # by the cancellation, most likely; of no interest anyway
        news = failed(unit, bad, self._code)
        log.warning("unit %s failed: %s", unit, news.error)
        self._tell(news, key=("news", unit))
        if news.kind == "memory":
            bad.__traceback__ = None  # its frames hold what there was too much of
            self._bench.free_memory()

    def _stop(self, unit: str) -> None:
        if self._inbox.is_cancelled:
            raise Cancelled(unit)

    def _progressed(self, unit: str, seconds: float, done: float) -> None:
        """Called again and again while a unit reads its partition."""
        now = time.monotonic()
        if now - self._last_progress >= _PROGRESS_S:
            self._last_progress = now
            self._tell(Progress(unit, seconds, done))

    def _tell(self, message: FromWorker, *, key: tuple[str, str] | None = None) -> None:
        self._line.tell(to_head(message), key=key)

    def _named(self, unit: str, state: str, digest: str) -> None:
        self._server.know(state, digest)
        self._tell(Named(unit, state, digest), key=("named", unit))

    # -- what the driver says (on the link's thread)
    # ---------------------------------------------------------------------

    def hello(self, local_host: str) -> Mapping[str, Any]:
        said = Hello(
            worker=self._id,
            pid=os.getpid(),
            host=socket.gethostname(),
            shelf=self._shelf.id,
            address=join_address(self._host or local_host, self._listener.port),
            train=self._opened.of("train"),
            validation=self._opened.of("validation"),
            states=tuple(self._shelf.names()),
            doing=self._inbox.doing(),
            together=self._trainable is None or isinstance(self._trainable, TrainsTogether),
        )
        return to_head(said)

    def beat(self) -> Mapping[str, Any]:
        return to_head(Beat(rss_bytes=_rss_bytes()))

    def hear(self, head: Mapping[str, Any]) -> None:
        try:
            message = from_head(head)
        except SpecError as bad:
            raise Broken(f"the driver said something that is no message: {bad}") from bad
        match message:
            case End(reason, now=True):
                process.die(reason)
            case Open() | Train() | Evaluate() | End():
                self._inbox.put(message)
            case Cancel(unit):
                if self._inbox.cancel(unit):
                    self._meetings.end(unit)
                    self._bench.leave_group()
                self._line.acknowledge([("news", unit), ("named", unit)])
            case Prefetch(state, sources):
                self._ahead.prefetch(state, sources)
            case Drop(states):
                self._ahead.forget(states)
                self._server.forget(states)
                self._tidier.do(lambda: self._shelf.drop(states))
            case Lend(state):
                if state not in self._lending:  # the driver asks again while it takes long
                    self._lending.add(state)
                    self._lender.do(lambda: self._lend(state))
            case Acknowledge(units, named):
                self._line.acknowledge(
                    [*(("news", unit) for unit in units), *(("named", unit) for unit in named)]
                )
            case _:
                log.warning("the driver said `%s`, which is a worker's word", head.get("kind"))

    def _lend(self, state: str) -> None:
        try:
            lend(state, self._address, self._secret, self._server)
        finally:
            self._lending.discard(state)

    def lost(self, why: str) -> None:
        self._lost = why
        self._inbox.put(End(why))

    # -- what other workers want (on threads of their connections)
    # ----------------------------------------------------------

    def _serve(self, wire: Wire) -> None:
        while True:
            head, size = wire.receive_head()
            match head:
                case {"kind": "fetch"} if not size:
                    self._server.answer(wire, head)
                case {"kind": "join", "unit": str(unit), "index": int(index)} if not size:
                    self._meetings.wait_in(unit, index, wire)
                    return
                case _:
                    raise Broken(f"{str(head.get('kind'))[:40]!r} is not served here")


def _listens_on(driver: str) -> str:
    """Where the driver is on this host only, nobody else can be elsewhere."""
    host = split_address(driver)[0]
    return host if host in ("127.0.0.1", "localhost", "::1") else ""


def _rss_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
