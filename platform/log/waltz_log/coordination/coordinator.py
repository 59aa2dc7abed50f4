"""The coordinator port over ZooKeeper. The only module that uses kazoo, its threads and its callbacks.

A coordinator is one session. While the connection is lost the session continues and calls wait. Once the ensemble reports that the session has ended,
every call and wait raises `ClusterUnavailable` and `wait_session_lost` returns. kazoo would continue with a new session; this never does, because a
client that held an ephemeral node must notice that it is gone.

After a broken connection the outcome of a call can be unknown. A `create`, `set` or `delete` that may have taken effect is repeated. If it then meets
what may be its own effect, it returns False or None (an ephemeral node is recognized by its session). Callers read again and continue, as they do
when another client was faster.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self  # Any: kazoo has no types

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler

from waltz_log.background_tasks import end_tasks, start_task
from waltz_log.coordination.access_lists import access_lists, open_to_everyone
from waltz_log.coordination.secure_connection import SecureConnections
from waltz_log.core.cluster_address import parse_coordinator
from waltz_log.core.metadata import CLUSTER, expect_fits
from waltz_log.core.ports import Coordinator, Node
from waltz_log.errors import ClusterUnavailable, InvalidRequest, PermissionDenied
from waltz_log.loggers import get_logger
from waltz_log.security.certificates import Certificates
from waltz_log.security.settings import TlsSettings, chosen_tls

__all__ = ["ZooKeeperCoordinator"]

UNFIT = "if it answers others, its authorities and this certificate do not fit"

RETRY_PAUSE_S = 0.05
"""Between two tries of a call whose connection broke. kazoo reconnects by itself; the pause only prevents a busy loop meanwhile."""

log = get_logger(__name__)

# Errors and waits report outages; kazoo's own log lines appear only if its log level is set.
_kazoo_log = logging.getLogger("waltz_log.coordination.kazoo")
_kazoo_log.addHandler(logging.NullHandler())


def _denied(action: str, path: str) -> PermissionDenied:
    return PermissionDenied(principal="this process", operation=f"{action} {path} in ZooKeeper", roles="node, operator")


class _Answer(NamedTuple):
    """The ensemble's answer; `retried`: an earlier try may have taken effect without an answer."""

    value: Any
    refusal: KazooException | None
    retried: bool


class ZooKeeperCoordinator:
    """Created by `connect`. All methods must be called on the event loop of `connect`."""

    def __init__(self, address: str, session_timeout_s: float, timeout_s: float, tls: TlsSettings | None) -> None:
        hosts, self._root = parse_coordinator(address)
        self._address = address
        self._tls = tls
        self._hosts = hosts
        self._timeout_s = self._call_timeout_s = timeout_s
        self._session_timeout_s = session_timeout_s
        self._suspended: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._watches: dict[tuple[str, str], asyncio.Event] = {}
        self._connected = asyncio.Event()
        self._ended = asyncio.Event()
        self._over = threading.Event()  # the same as `_ended`, seen at once by all threads
        self._answers = self._closed = False
        self._secure = None if tls is None else SecureConnections(Certificates(tls))
        self._client = self._new_client()
        self._lists = access_lists(tls)
        self._lists.authenticate(self._client)
        self._client.add_listener(self._state_changed)

    def _new_client(self) -> Any:
        handler: Any = SequentialThreadingHandler()  # kazoo has no types
        if self._secure is not None:
            handler.create_connection = self._secure.create
        return KazooClient(
            hosts=self._hosts,
            handler=handler,
            timeout=self._session_timeout_s,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0, "max_jitter": 0.5},
            logger=_kazoo_log,
            use_ssl=self._tls is not None,
        )

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        session_timeout_s: float = 10.0,
        timeout_s: float = 10.0,
        join_timeout_s: float | None = None,
        new: bool = False,
        tls: TlsSettings | None = None,
    ) -> Self:
        """Opens a session. Raises `ClusterUnavailable` if no ensemble opens one within `timeout_s`, or if no cluster is at the root (`new`: there may
        be none yet). `timeout_s` is also that of each call, but until `joined` that of a node is `join_timeout_s`. `tls`: mutual TLS, with
        certificates that are read at each connection; None: what the environment says (`security.settings`), or plain text."""
        self = cls(address, session_timeout_s, timeout_s, chosen_tls(tls))
        self._call_timeout_s = timeout_s if join_timeout_s is None else join_timeout_s
        self._client.start_async()
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
            if not new and await self.get(CLUSTER, latest=True) is None:
                raise ClusterUnavailable(address=address, reason="no cluster there, `waltz cluster create` makes one")
        except TimeoutError:
            self._end()
            hint = "" if self._secure is None else f" over TLS; {self._secure.refusal or UNFIT}"
            raise ClusterUnavailable(address=address, reason=f"no answer within {timeout_s:g} s{hint}") from None
        except BaseException:
            self._end()
            raise
        return self

    def joined(self) -> None:
        """From now on a call gives up after `timeout_s`, because callers of this node wait for it. While it joined, none did. The ensemble had
        opened a session, so it is the right one, and its disk may stand still for ten seconds and more."""
        self._call_timeout_s = self._timeout_s

    @property
    def address(self) -> str:
        return self._address

    @property
    def root(self) -> str:
        """The path in ZooKeeper under which the cluster is."""
        return self._root

    @property
    def protects(self) -> bool:
        """Whether what this session creates is closed to strangers: it has a certificate of a listed subject, or the shared secret."""
        return bool(self._lists.writers)

    @property
    def reachable(self) -> bool:
        """Whether the ensemble answers now. Calls wait while it does not."""
        return self._answers

    @property
    def ended(self) -> bool:
        """Whether the session has ended."""
        return self._over.is_set()

    @property
    def lost(self) -> bool:
        """Whether the session ended without `close`."""
        return self._over.is_set() and not self._closed

    @property
    def session(self) -> tuple[int, bytes] | None:
        """ZooKeeper's id and password of the session, for tests that attach to the session to end it."""
        session: tuple[int, bytes] | None = self._client.client_id
        return session

    # ---- kazoo's threads -----------------------------------------------------------------------------------------------------------------------

    def _state_changed(self, state: str) -> None:
        """In kazoo's thread."""
        self._answers = state == KazooState.CONNECTED
        if state == KazooState.LOST:
            self._over.set()
            self._from_thread(self._end)
        elif state == KazooState.CONNECTED:
            self._from_thread(self._connected.set)
        else:
            self._from_thread(self._doubt)

    def _doubt(self) -> None:
        if self._suspended is None or self._suspended.done():
            self._suspended = start_task(self._end_if_refused())

    async def _end_if_refused(self) -> None:
        """An ensemble that was put back to an earlier state refuses this session for good and never reports that it ended, because the session has
        seen later changes. Its sign is that a new session connects while this one does not for the whole session timeout."""
        while not (self._ended.is_set() or self.reachable):
            await asyncio.sleep(self._session_timeout_s)
            if not (self._ended.is_set() or self.reachable) and await asyncio.to_thread(self._others_connect) and not self.reachable:
                log.warning("coordinator refuses the session, which ends", address=self._address)
                self._end()

    def _others_connect(self) -> bool:
        """Blocks."""
        client = self._new_client()
        try:
            client.start(self._session_timeout_s)
            return True
        except KazooTimeoutError:
            return False
        finally:
            client.stop()
            client.close()

    def _from_thread(self, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            # The event loop is closed: no call waits any more.
            _kazoo_log.debug("event loop closed")

    def _end(self, *, stop: bool = True) -> None:
        """Runs once: wakes all waiting calls, and stops kazoo without waiting for it, because its threads may hang in a connect that is not
        answered."""
        self._over.set()
        self._answers = False
        if not self._ended.is_set():
            self._ended.set()
            for fired in self._watches.values():
                fired.set()
            if stop:
                threading.Thread(target=self._stop, name="zookeeper-stop", daemon=True).start()

    def _stop(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except (KazooException, OSError, AttributeError) as error:
            # AttributeError: kazoo's wake-up pipe is gone already, which is what was wanted.
            _kazoo_log.debug("stopped with %r", error)

    # ---- calls ---------------------------------------------------------------------------------------------------------------------------------

    def _full(self, path: str) -> str:
        if not path.startswith("/") or (path != "/" and path.endswith("/")) or "//" in path:
            raise InvalidRequest(reason=f"not a path: {path!r}")
        return self._root if path == "/" else self._root + path

    def _check(self) -> None:
        if self._over.is_set():
            raise ClusterUnavailable(address=self._address, reason="session ended")

    async def _once(self, start: Callable[[], Any]) -> Any:
        """One kazoo call as a future of this loop."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def settle(result: Any) -> None:
            if not future.done():
                if result.exception is not None:
                    future.set_exception(result.exception)
                else:
                    future.set_result(result.value)

        start().rawlink(lambda result: self._from_thread(settle, result))
        return await future

    async def _call(self, start: Callable[[], Any], *refusals: type[KazooException], patient: bool = False) -> _Answer:
        """The ensemble's answer, or one of `refusals`. A patient call outlasts any outage."""
        retried = False
        try:
            async with asyncio.timeout(None if patient else self._call_timeout_s):
                while True:
                    self._check()
                    try:
                        answer = _Answer(await self._once(start), None, retried)
                    except refusals as refusal:
                        answer = _Answer(None, refusal, retried)
                    except (ConnectionLoss, ConnectionClosedError, OperationTimeoutError, SessionExpiredError):
                        retried = True
                        self._check()
                        await asyncio.sleep(RETRY_PAUSE_S)
                        continue
                    self._check()
                    return answer
        except TimeoutError:
            raise ClusterUnavailable(address=self._address, reason=f"no answer within {self._call_timeout_s:g} s") from None

    async def _sync(self, full: str) -> None:
        """Returns once the server this session is connected to has applied what the leader had when this began."""
        await self._call(lambda: self._client.sync_async(full))

    async def get(self, path: str, *, latest: bool = False) -> Node | None:
        full = self._full(path)
        if latest:
            await self._sync(full)
        answer = await self._call(lambda: self._client.get_async(full), NoNodeError, NoAuthError)
        if isinstance(answer.refusal, NoAuthError):
            raise _denied("read", path)
        return None if answer.refusal else Node(answer.value[0], answer.value[1].version, answer.value[1].mzxid)

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> bool:
        full = self._full(path)
        expect_fits(path, data)
        answer = await self._call(
            lambda: self._client.create_async(full, data, acl=self._lists.of_nodes(), ephemeral=ephemeral, makepath=True),
            NodeExistsError,
            NoChildrenForEphemeralsError,
            NoAuthError,
        )
        if isinstance(answer.refusal, NoAuthError):
            # ZooKeeper asks whether this client may create something there before it checks whether it is there.
            if (await self._call(lambda: self._client.exists_async(full))).value is not None:
                return False
            raise _denied("create", path)
        if isinstance(answer.refusal, NoChildrenForEphemeralsError):
            raise InvalidRequest(reason=f"ephemeral node cannot have children: path={path.rpartition('/')[0]}")
        return answer.refusal is None or (ephemeral and answer.retried and await self._is_mine(full))

    async def _is_mine(self, full: str) -> bool:
        stat = (await self._call(lambda: self._client.exists_async(full))).value
        session = self.session
        return stat is not None and session is not None and bool(stat.ephemeralOwner == session[0])

    async def set(self, path: str, data: bytes, version: int) -> int | None:
        full = self._full(path)
        expect_fits(path, data)
        answer = await self._call(lambda: self._client.set_async(full, data, version), NoNodeError, BadVersionError, NoAuthError)
        if isinstance(answer.refusal, NoAuthError):
            raise _denied("change", path)
        return None if answer.refusal else int(answer.value.version)

    async def delete(self, path: str, version: int = -1) -> bool:
        full = self._full(path)
        answer = await self._call(lambda: self._client.delete_async(full, version), NoNodeError, BadVersionError, NotEmptyError, NoAuthError)
        if isinstance(answer.refusal, NoAuthError):
            raise _denied("delete", path)
        return answer.refusal is None

    async def children(self, path: str, *, latest: bool = False) -> list[str]:
        full = self._full(path)
        if latest:
            await self._sync(full)
        answer = await self._call(lambda: self._client.get_children_async(full), NoNodeError, NoAuthError)
        if isinstance(answer.refusal, NoAuthError):
            raise _denied("read", path)
        return [] if answer.refusal else sorted(answer.value)

    # ---- the ensemble's own nodes, by absolute paths -----------------------------------------------------------------------------------------------

    async def children_of_root(self) -> frozenset[str]:
        answer = await self._call(lambda: self._client.get_children_async("/"))
        return frozenset(answer.value)

    async def is_open(self, path: str) -> bool:
        """Whether everyone may do more than read there. False for a node that is not there, and where this session may not see it."""
        answer = await self._call(lambda: self._client.get_acls_async(path), NoNodeError, NoAuthError)
        return answer.refusal is None and open_to_everyone(answer.value[0])

    async def close_node(self, path: str) -> None:
        """Only nodes and operators may change it and create children from now on; everyone may read. Raises `PermissionDenied`."""
        answer = await self._call(lambda: self._client.set_acls_async(path, self._lists.of_ensemble()), NoNodeError, NoAuthError)
        if isinstance(answer.refusal, NoAuthError):
            raise _denied("close", path)

    # ---- waits ---------------------------------------------------------------------------------------------------------------------------------

    async def _watched(self, kind: str, full: str, read: Callable[[Any], Any]) -> tuple[_Answer, asyncio.Event]:
        """A read, and the event that fires at the next change after it. One watch for each kind and path, however many callers wait."""
        key = (kind, full)
        fired = self._watches.get(key)
        watch = None
        if fired is None or fired.is_set():
            fired = self._watches[key] = asyncio.Event()
            watch = partial(self._watch_fired, fired)
        try:
            answer = await self._call(lambda: read(watch), NoNodeError, NoAuthError, patient=True)
        except BaseException:
            fired.set()  # the watch may never have been set: make the callers read again
            raise
        if answer.refusal:
            fired.set()  # ZooKeeper leaves no watch on what it refuses
        if isinstance(answer.refusal, NoAuthError):
            raise _denied("read", full.removeprefix(self._root))
        return answer, fired

    def _watch_fired(self, fired: asyncio.Event, _event: object) -> None:
        """In kazoo's thread; also when the connection broke, as kazoo drops its watches then."""
        self._from_thread(fired.set)

    async def wait_changed(self, path: str, version: int | None) -> None:
        full = self._full(path)
        while True:
            answer, fired = await self._watched("node", full, lambda watch: self._client.exists_async(full, watch))
            if (None if answer.value is None else answer.value.version) != version:
                return
            await fired.wait()

    async def wait_children(self, path: str, known: list[str]) -> None:
        full = self._full(path)
        while True:
            answer, fired = await self._watched("children", full, lambda watch: self._client.get_children_async(full, watch))
            if ([] if answer.refusal else sorted(answer.value)) != known:
                return
            if answer.refusal:
                await self.wait_changed(path, None)
            else:
                await fired.wait()

    async def wait_session_lost(self) -> None:
        await self._ended.wait()

    async def close(self) -> None:
        self._closed = True
        if self._suspended is not None:
            await end_tasks([self._suspended])
        if not self._ended.is_set():
            self._end(stop=False)
            await asyncio.to_thread(self._stop)


def _typed(coordinator: ZooKeeperCoordinator) -> Coordinator:
    """mypy checks here that the class implements the port."""
    return coordinator
