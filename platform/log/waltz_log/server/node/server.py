"""The log server: joins the cluster, owns what is assigned to it, answers clients (Waltz Server).

Stateless: everything it knows is in the coordinator or on storage nodes. `stop` hands partitions over in order; those of a killed server move
when its coordinator session ends. As one worker of a server it serves those of the server's partitions that fall to it, and its supervisor is the
member of the cluster: a worker that restarts continues with the generation of the server, in new store sessions. These fence what its predecessor
may have left.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import TypeVar

from waltz_log.background_tasks import BackgroundTask
from waltz_log.coordination.access import AccessFollower
from waltz_log.coordination.followed import ASSIGNMENT, KnownValues
from waltz_log.coordination.other_nodes import OtherNodes
from waltz_log.coordination.round_trips import measure_round_trips
from waltz_log.core import metadata as paths
from waltz_log.core.fill_pace import FillPace
from waltz_log.core.hand_over import Stranded
from waltz_log.core.metadata import Assignment, ClusterParameters
from waltz_log.core.ports import Clock, Coordinator, Listener, Network, Sender, Service
from waltz_log.core.status.server_statistics import QuotaStatistics, ServerStatistics
from waltz_log.core.topics.catalogue import TopicEpoch
from waltz_log.core.topics.sharding import WHOLE, Shard
from waltz_log.errors import ClusterKeyMismatch, Fenced, InvalidRequest, NotOwner, ProtocolViolation, Unavailable
from waltz_log.loggers import get_logger
from waltz_log.security.access import AccessControl
from waltz_log.security.certificates import earliest_expiry_s
from waltz_log.security.rules import Operation
from waltz_log.server.base.agreed_clock import AgreedClock
from waltz_log.server.base.caches import Caches
from waltz_log.server.base.node_probes import NodeProbes
from waltz_log.server.base.quotas import Quotas
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.base.topics import ServedTopics
from waltz_log.server.base.totals import Totals
from waltz_log.server.directory.cluster_calls import ClusterCalls
from waltz_log.server.directory.directory import Directory
from waltz_log.server.directory.followers import Followers
from waltz_log.server.directory.topic_calls import TopicCalls
from waltz_log.server.identities.client_ids import ClientIds
from waltz_log.server.identities.outbox_records import OutboxRecords
from waltz_log.server.identities.subscriber_calls import SubscriberCalls
from waltz_log.server.mounts.mount import expect_mount
from waltz_log.server.node.membership import Membership, read_cluster
from waltz_log.server.node.owner_history import OwnerHistory
from waltz_log.server.node.pending_topics import PendingTopics
from waltz_log.server.node.reachability import Reachability
from waltz_log.server.partition.partition import Partition
from waltz_log.statistics import to_json
from waltz_log.telemetry.tracer import Tracer
from waltz_log.transport import methods, versions
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.unread import Unread
from waltz_log.transport.versions import Versions, agreed

__all__ = ["LogServer"]

log = get_logger(__name__)

T = TypeVar("T")

PARTITIONS_A_TURN = 128
"""How many partitions of a request are checked before other tasks run: some milliseconds with many rules of access."""

UPKEEP_MAX = 64
"""Partitions whose upkeep one request asks for: some kilobytes each, with many replicas."""

OF_PARTITION = (Operation.READ, Operation.APPEND, Operation.RESOLVE)

HAND_OVER_TIMEOUT_S = 2.0
"""How long a stopping server waits for blocks in flight. What is not decided by then, the next owner's recovery decides."""


class LogServer:
    """`owner_secret`: 16 to 64 random bytes that no other process knows. Storage nodes recognize a session's owner by tokens made from it.
    `server_id`: of the server whose worker this is, -1: it is a server of its own. `access`: decides what callers may do; None: everything."""

    def __init__(
        self,
        settings: ServerSettings,
        coordinator: Coordinator,
        network: Network,
        clock: Clock,
        *,
        owner_secret: bytes,
        shard: Shard = WHOLE,
        server_id: int = -1,
        tracer: Tracer | None = None,
        access: AccessControl | None = None,
    ) -> None:
        self._tracer = tracer
        self._access = access or AccessControl(enforced=False)
        self._owner_secret = owner_secret
        self._settings = settings
        self._coordinator = coordinator
        self._network = network
        self._clock = clock
        self._append_clock = AgreedClock(clock, network)
        self._cluster: ClusterParameters | None = None
        self._probes: NodeProbes | None = None
        self._listener: Listener | None = None
        self._shard = shard
        self._in_office = False
        self._caches = Caches(settings)
        self._totals = Totals()
        self._quotas = Quotas(settings.quotas)
        self._known = KnownValues()
        self._known.coordinator = coordinator
        self._membership = Membership(settings, coordinator, self._known) if server_id < 0 else None
        self._topics = ServedTopics(coordinator, self._access, self._known)
        self._directory = Directory(coordinator, self._access, self._known)
        self._followers: Followers | None = None
        self._client_ids = ClientIds(coordinator, network, self._access)
        self._outboxes = OutboxRecords(coordinator, self._access, self._client_ids)
        self._subscribers = SubscriberCalls(coordinator, self._access, self._topics, self._client_ids, clock)
        self._topic_calls = TopicCalls(coordinator, network, self._topics, self._access, clock)
        self._cluster_calls = ClusterCalls(coordinator, self._access, self._known)
        self._fill_pace = FillPace()
        self._owner_history = OwnerHistory()
        self._partitions: dict[int, Partition] = {}
        self._running: dict[int, BackgroundTask] = {}
        self._tasks: list[BackgroundTask] = []
        self.server_id = server_id
        self.coordinator_expiry_s: Callable[[], float | None] = lambda: None
        """When the coordinator's certificate expires. Set by the process that starts the server, which knows the coordinator's hosts."""

    @property
    def address(self) -> str:
        if self._listener is None:
            raise Unavailable(reason="the server is not started")
        return self._listener.address

    # ---- life ----------------------------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Joins the cluster. Raises `ClusterUnavailable` if there is none at the address, `OSError` if it cannot listen."""
        self._cluster = await read_cluster(self._coordinator, self._settings.coordinator, self._known)
        follower = None
        if self._access.enforced:
            others = OtherNodes(self._network, self._known, learned=self._topics.read)
            await others.ask(self._coordinator)
            self._cluster = await read_cluster(self._coordinator, self._settings.coordinator, self._known)
            of_rules = (self._coordinator, self._access)
            follower = AccessFollower(*of_rules, topics=False, changed=self._access_changed, known=self._known, others=others)
        self._probes = NodeProbes(self._coordinator, self._network, self._cluster.key.bytes, self._known)
        await self._client_ids.open(self._cluster, self._owner_secret)
        await self._topics.read(latest=True)
        self._access.name_topics(self._topic_of)
        if follower is not None:
            await follower.read(latest=True)
        await self._directory.read()
        await self._cluster_calls.read()
        unread = Unread(self._settings.unread_bytes_per_principal)
        self._followers = Followers(self._directory, self._cluster.key.bytes, self._settings.followers_max, Random(self._owner_secret), unread)
        if self._membership is not None:
            self.server_id = await self._membership.register()
        self._listener = await self._network.serve(self._settings.listen, self.service())
        if self._membership is not None:
            await self._membership.announce(self._cluster, self._listener.address)
        work = {"assignment": self._follow, "directory": self._directory.run, "topics": self._topics.run, "topics of partitions": self._send_topics}
        of_cluster = (self._coordinator, self._network, self._cluster.key.bytes, self._settings.hand_over_after_s, self._lacking, self._known)
        reachability = Reachability(self.server_id, self._shard, *of_cluster)
        work |= {"partitions without a majority": reachability.report, "reachable replicas": reachability.scout}
        work["clock"] = partial(self._append_clock.run, self._cluster.key.bytes, self._directory.storage_addresses)
        if follower is not None:
            work["access"] = follower.run
        work["client ids"] = self._client_ids.run
        work["pending topics"] = PendingTopics(self._topics, self._coordinator).run
        if self._membership is None:
            work["office"] = self._watch_office
        self._tasks = [BackgroundTask(what, run) for what, run in work.items()]
        log.info("server started", server_id=self.server_id, address=self._listener.address, cluster=self._cluster.name)

    async def wait_lost(self) -> None:
        """Returns when the coordinator session has ended: other servers own the partitions now, and this server must be created again."""
        await self._coordinator.wait_session_lost()

    async def stop(self) -> None:
        """Finishes what is in flight, gives the partitions back, and leaves. The coordinator session is the caller's to close."""
        await asyncio.gather(*(partition.drain(HAND_OVER_TIMEOUT_S) for partition in self._partitions.values()))
        await self._halt()
        if self._membership is not None:
            await self._membership.leave()

    async def abort(self) -> None:
        """Ends immediately and does not notify the coordinator."""
        await self._halt()

    async def _halt(self) -> None:
        if self._membership is not None:
            await self._membership.end()
        await asyncio.gather(*(task.end() for task in [*self._tasks, *self._running.values()]))
        await self._directory.close()
        await self._cluster_calls.close()
        if self._listener is not None:
            await self._listener.close()

    # ---- ownership -----------------------------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Opens and closes partitions as the assignment says."""
        while True:
            node = await self._known.get(self._coordinator, ASSIGNMENT)
            assignment = self._known.accept(ASSIGNMENT, node)
            if assignment is not None:
                self._owner_history.observe(assignment, self._clock.now_ms())
                await self._own(assignment)
            await self._coordinator.wait_changed(paths.ASSIGNMENT, None if node is None else node.version)

    async def _watch_office(self) -> None:
        """For a worker: whether its server governs the cluster."""
        while True:
            node = await self._coordinator.get(paths.MANAGER)
            self._in_office = node is not None and node.data == str(self.server_id).encode()
            await self._coordinator.wait_changed(paths.MANAGER, None if node is None else node.version)

    async def _send_topics(self) -> None:
        """Informs the mounts and replicas of owned partitions of every change of the catalog."""
        sent = self._topics.version
        while True:
            await self._topics.wait_beyond(sent)
            version = self._topics.version
            self._access.topics_changed()
            if all(await asyncio.gather(*(partition.topics_changed() for partition in self._partitions.values()))):
                sent = version
            else:
                await asyncio.sleep(self._settings.replica_retry_max_s)

    def _access_changed(self) -> None:
        self._directory.rights_changed()
        for partition in self._partitions.values():
            partition.access_changed()

    def _topic_of(self, log_partition: int) -> tuple[str, int] | None:
        found = self._topics.of(log_partition)
        return None if found is None else (str(found[0].name), found[1])

    async def _own(self, assignment: Assignment) -> None:
        assert self._cluster is not None
        assert self._probes is not None
        # All partitions are assigned, so the assignment includes those that were added.
        count = max((*assignment.partitions, self._cluster.partitions - 1)) + 1
        self._cluster = replace(self._cluster, partitions=count)
        owned = {number: found.generation for number, found in assignment.partitions.items() if found.server_id == self.server_id}
        mine = {number: generation for number, generation in owned.items() if self._shard.owns(number)}
        leaving = [number for number, partition in self._partitions.items() if mine.get(number) != partition.generation]
        await asyncio.gather(*(self._close(number) for number in leaving))
        for number, generation in mine.items():
            if number not in self._partitions:
                reached = (self._coordinator, self._network, self._append_clock)
                shared = (self._cluster, *reached, self._settings, self._caches, self._topics, self._probes)
                own = (self._owner_secret, self._fill_pace, self._totals, self._quotas, self._access, self._tracer)
                partition = Partition(self.server_id, number, generation, *shared, *own)
                self._partitions[number] = partition
                self._running[number] = BackgroundTask(f"partition {number}", partition.run)

    async def _close(self, number: int) -> None:
        partition = self._partitions[number]
        log.info("closing partition", partition=number, generation=partition.generation)
        await partition.drain(HAND_OVER_TIMEOUT_S)
        await self._running[number].end()
        del self._running[number], self._partitions[number]

    def _lacking(self) -> dict[int, Stranded | None]:
        return {number: partition.lacks_majority() for number, partition in sorted(self._partitions.items())}

    # ---- service -------------------------------------------------------------------------------------------------------------------------------

    def service(self) -> Service:
        return [
            methods.MOUNT.served_by(self._mount),
            methods.BOUND.served_by(self._bound),
            methods.RESOLVE.served_by(self._resolve),
            methods.TRANSACTIONS.served_by(self._transactions),
            methods.TRACES.served_by(self._recent_traces),
            methods.FOLLOW.served_by(self._serve_follower),
            methods.CONFIRM.served_by(self._confirm),
            methods.CLIENT_ID.served_by(self._client_id),
            methods.OUTBOX.served_by(self._outbox),
            methods.SUBSCRIBERS.served_by(self._subscriber_calls),
            methods.TOPICS.served_by(self._topics_call),
            methods.CLUSTER.served_by(self._cluster_values),
            methods.PLACEMENT.served_by(self._placement),
            methods.SERVER_STATUS.served_by(self._status),
        ]

    def _owned(self, partition: int) -> Partition:
        found = self._partitions.get(partition)
        if found is None:
            raise NotOwner(partition=partition, reason="owned by another server")
        return found

    def _check_key(self, key: bytes) -> None:
        assert self._cluster is not None
        ClusterKeyMismatch.expect(self._cluster.key.bytes, key)

    async def _mount(self, stream: methods.ServedMountStream) -> None:
        message = await stream.receive()
        if message is None or message.WhichOneof("kind") != "mount":
            raise ProtocolViolation(reason="the first message of a stream must be a mount")
        request = message.mount
        client = Versions.named(highest=request.protocol_version, lowest=request.lowest_protocol_version)
        version = agreed(client, versions.SPOKEN)
        self._check_key(request.cluster_key)
        expect_mount(self._access, request.partition, request)
        if request.topic:  # first: whether the partition is another topic's, and which one, is not for a caller with a right to this topic alone
            self._topics.expect_addressed(request.partition, TopicEpoch(request.topic, request.topic_epoch), appends=False)
        foreign = False
        if request.client_id and request.appends_nothing:
            foreign = not self._client_ids.expect_resolvable(request.client_id, request.ticket, request.partition)
        elif request.client_id:
            self._client_ids.expect_owned(request.client_id, request.ticket)
        if request.client_id:
            self._topics.expect_allowed(request.partition, "append", request.principal)
        if request.feed != pb.FEED_NONE:
            self._topics.expect_allowed(request.partition, "read", request.principal)
        await _as_owner(self._owned(request.partition).mount(request, stream, version, foreign=foreign), request.partition)

    async def _bound(self, request: pb.BoundRequest) -> pb.BoundResponse:
        self._check_key(request.cluster_key)
        asked = await self._visible(request.partitions)
        if request.closed_in:
            return await self._closed_bounds([number for number in asked if number in self._partitions], request.closed_in - 1)
        bounds = (self._partitions[number].bound() for number in asked if number in self._partitions)
        found = [bound for bound in bounds if bound is not None]
        if request.upkeep:
            if not 0 < len(request.partitions) <= UPKEEP_MAX:
                raise InvalidRequest(reason=f"the upkeep of 1 to {UPKEEP_MAX} partitions is reported at once, not of {len(request.partitions)}")
            names_all = self._access.permits_cluster()
            for bound in found:
                upkeep = self._partitions[bound.partition].upkeep()
                bound.upkeep = json.dumps(to_json(upkeep if names_all else upkeep.without_names()))
        return pb.BoundResponse(bounds=found)

    async def _visible(self, named: Sequence[int]) -> list[int]:
        """The partitions that a request names, each once; if it names none, those of this server that the caller may read, append to or resolve.
        Raises `PermissionDenied` for a named one of which it may do nothing, and `InvalidRequest` for more than a log has."""
        if len(named) > paths.PARTITIONS_MAX:
            raise InvalidRequest(reason=f"a log has {paths.PARTITIONS_MAX} partitions at most, the request names {len(named)}")
        visible = []
        for place, number in enumerate(sorted({*named} or self._partitions), 1):
            if place % PARTITIONS_A_TURN == 0:
                await asyncio.sleep(0)
            if named:
                self._access.expect(number, *OF_PARTITION)
            if named or any(self._access.permits(operation, number) for operation in OF_PARTITION):
                visible.append(number)
        return visible

    async def _closed_bounds(self, partitions: list[int], version: int) -> pb.BoundResponse:
        try:
            async with asyncio.timeout(self._settings.mount_wait_s):
                await self._topics.wait_for(version)
        except TimeoutError:
            raise Unavailable(reason=f"the catalog of topics is not known to this server yet: version={version}") from None
        bounds = [await _as_owner(self._partitions[number].closed_bound(), number) for number in partitions]
        return pb.BoundResponse(bounds=bounds)

    async def _resolve(self, request: pb.ResolveRequest) -> pb.ResolveResponse:
        self._check_key(request.cluster_key)
        self._access.expect(request.partition, Operation.RESOLVE)
        self._client_ids.expect_resolvable(request.client_id, request.ticket, request.partition)
        return await _as_owner(self._owned(request.partition).resolve(request), request.partition)

    async def _transactions(self, request: pb.TransactionRequest) -> pb.TransactionResponse:
        self._check_key(request.cluster_key)
        self._access.expect(request.partition, Operation.READ, topic=request.topic)
        if request.topic:
            self._topics.expect_addressed(request.partition, TopicEpoch(request.topic, request.topic_epoch), appends=False)
        self._topics.expect_allowed(request.partition, "read", request.principal)
        return await _as_owner(self._owned(request.partition).transactions(request), request.partition)

    async def _recent_traces(self, request: pb.TracesRequest) -> pb.TracesResponse:
        self._check_key(request.cluster_key)
        self._access.expect(request.partition, Operation.READ)  # first: the topic's name is not for a caller without a right to it
        self._topics.expect_allowed(request.partition, "read", request.principal)
        return self._owned(request.partition).traces(request)

    async def _serve_follower(self, request: pb.FollowRequest, stream: Sender[pb.FollowResponse]) -> None:
        if request.cluster_key:
            self._check_key(request.cluster_key)
        assert self._followers is not None
        await self._followers.follow(request, stream)

    async def _confirm(self, request: pb.ConfirmRequest) -> pb.ConfirmResponse:
        self._check_key(request.cluster_key)
        assert self._followers is not None
        return await self._followers.confirm()

    async def _client_id(self, request: pb.ClientIdRequest) -> pb.ClientIdResponse:
        self._check_key(request.cluster_key)
        self._access.expect_anywhere(Operation.APPEND)
        return await self._client_ids.give()

    async def _outbox(self, request: pb.OutboxRequest) -> pb.OutboxResponse:
        self._check_key(request.cluster_key)
        self._access.expect_anywhere(Operation.APPEND)
        assert self._cluster is not None
        return await self._outboxes.serve(request, self._cluster)

    async def _subscriber_calls(self, request: pb.SubscribersRequest) -> pb.SubscribersResponse:
        self._check_key(request.cluster_key)
        self._access.expect_anywhere(Operation.READ)
        assert self._cluster is not None
        return await self._subscribers.serve(request, self._cluster)

    async def _topics_call(self, request: pb.TopicsRequest) -> pb.TopicsResponse:
        self._check_key(request.cluster_key)
        return await self._topic_calls.serve(request)

    async def _cluster_values(self, request: pb.ClusterRequest) -> pb.ClusterResponse:
        self._check_key(request.cluster_key)
        return await self._cluster_calls.values()

    async def _placement(self, request: pb.PlacementRequest) -> pb.PlacementResponse:
        self._check_key(request.cluster_key)
        return await self._cluster_calls.place(request)

    async def _status(self, request: pb.ServerStatusRequest) -> pb.ServerStatusResponse:
        self._access.expect_cluster()
        found = self.statistics()
        if request.known_values:
            self._access.expect_trusted("read values of the coordinator")
            found = replace(found, known_values=self._known.values())
        if request.round_trips and self._cluster is not None:
            found = replace(found, round_trips=await measure_round_trips(self._coordinator, self._network, self._cluster.key.bytes))
        return pb.ServerStatusResponse(json=json.dumps(to_json(found)))

    def statistics(self) -> ServerStatistics:
        return ServerStatistics(
            server_id=self.server_id,
            cluster_key=None if self._cluster is None else str(self._cluster.key),
            manager=self._in_office if self._membership is None else self._membership.in_office,
            caches=self._caches.statistics(),
            partitions={number: partition.statistics() for number, partition in sorted(self._partitions.items())},
            http=self._settings.http.address,
            totals=self._totals.statistics(),
            cluster_partitions=0 if self._cluster is None else self._cluster.partitions,
            owners=self._owner_history.statistics(),
            certificate_expires_s=earliest_expiry_s(),
            coordinator_certificate_expires_s=self.coordinator_expiry_s(),
            traces=None if self._tracer is None else self._tracer.statistics(),
            time_ms=self._clock.now_ms(),
            client_ids=None if self._cluster is None else self._client_ids.issuer.statistics(),
            followers=None if self._followers is None else self._followers.statistics(),
            rules=(self._access.label,) if self._access.enforced else (),
            refused_values=self._known.refused() or None,
            quotas=tuple(QuotaStatistics(**each.model_dump()) for each in self._settings.quotas),
        )


async def _as_owner(work: Awaitable[T], partition: int) -> T:
    """Reports a fenced owner as no owner, so that its clients search for the one that fenced it. Clients are informed only of a fenced mount."""
    try:
        return await work
    except Fenced as error:
        if error.what == "mount":
            raise
        raise NotOwner(partition=partition, reason=str(error)) from None
