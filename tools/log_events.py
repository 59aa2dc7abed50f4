"""The log events of the platform: what each means, and what an operator does about it. Level, fields and place are read from the source.

Names of events are an interface: operators match on them. A test compares these names with the calls in the source.
"""

from __future__ import annotations

__all__ = ["MEANINGS"]

MEANINGS: dict[str, str] = {
    # ---- processes
    "certificate expires soon": "The process's certificate expires within 14 days. Replace it; the process reads the new files by itself.",
    "new token keys refused, the previous ones stay in use": "The file `tls.tokens.keys` changed, and cannot be used. Correct it.",
    "token file not read, the previous token stays in use": "A client cannot read its file `tls.token`. Correct it before the token expires.",
    "token keys left out": (
        "Some keys in `tls.tokens.keys` cannot be used, or have the id of an earlier one. The node accepts no token that they sign. Correct the file "
        "if one is needed."
    ),
    "call ended with its token": "The token of a call expired, or its key left the node's keys, so the call ended. The client connects again.",
    "peer refused": (
        "The process at `address` is not the node or ZooKeeper that should be there, so nothing was sent to it. `reason` says what its certificate "
        "lacks. If the address is right, issue the certificate again; if not, another process serves there, which may be an attack. Logged once a "
        "minute for each address; see [security](../guides/security.md)."
    ),
    "certificate reloaded": "New certificate files are in use. Connections that were open continue.",
    "new certificate refused, the previous one stays in use": (
        "The certificate files changed, and cannot be used: `reason` names the file. Correct it before the previous certificate expires."
    ),
    "connections are not protected": (
        "The process serves other machines in plain text, because `insecure` is set. Set `tls`, or `--metrics-client` for the metrics of pipelines; "
        "see [security](../guides/security.md)."
    ),
    "request denied": (
        "A peer has no role for the operation, no rule permits it, or a topic names other principals. If it should be permitted, extend the "
        "patterns in `tls`, use `waltz access grant`, or change the topic. `stated_by`: without TLS, the principal that the client states. "
        "`left_out`: denials of the same principal that were not logged before this one."
    ),
    "cluster administered": "The rules of access were changed. With the setting `audit` the line is in the audit log instead.",
    "administrative actions are not recorded": "The audit log has no more lines of administrative actions, because of a defect. Restart the node.",
    "audit line not written": "The file of the audit log cannot be written. The node goes on without the line, which this event repeats. Free space.",
    "denied principal not written": (
        "The file of a denied principal, beside the audit log, cannot be written. The node goes on, and writes the file again with the "
        "principal's next denied calls. Free space."
    ),
    "file of a denied principal ignored": (
        "A file in the folder FILE.denied of the audit log was not written by a node. Remove it while the node is stopped."
    ),
    "rules of access are not followed, retrying": (
        "The storage node does not reach the coordinator. It permits what it did before, and hears of no changes. Act if it repeats."
    ),
    "no log server answers yet, retrying": "The client waits for a cluster that starts. The reason may show a wrong address.",
    "no log server can be followed, retrying": (
        "A client reaches no log server that knows the cluster. It goes on with the owners that it knows. Check the servers and the addresses."
    ),
    "clock is ahead of the storage nodes": (
        "The clock of this log server is more than a minute ahead of what at least half of the clocks show. Until it is corrected, appends have the "
        "nodes' time. See [a clock is a day off](../guides/disaster_recovery.md#a-clock-is-a-day-off)."
    ),
    "clock agrees with the storage nodes again": "The clock of this log server was corrected.",
    "control file has damaged structs, their other copies are used": (
        "Of the two structs of a partition, one is not valid. After a crash this is expected. Otherwise run `waltz storage verify`, and examine the "
        "disk."
    ),
    "zookeeper does not serve yet": (
        "`waltz zookeeper` waits for its ZooKeeper, which reads its snapshot and its log. Act if the disk is idle meanwhile."
    ),
    "topic found in the map alone": (
        "A client looked up a topic while the log servers did not reach the coordinator. The topic may have been deleted in the meantime."
    ),
    "knowledge of the cluster not confirmed": (
        "The coordinator did not answer. Clients go on with what the server knows, and hear its age. Act if it repeats."
    ),
    "coordinator session ended, starting over": (
        "The process lost its ZooKeeper session. It starts again with a new one; its partitions may move meanwhile."
    ),
    "in use, waiting for the process to end": (
        "Another process still holds the address or the directory `what`, as workers of a node that was killed do for a moment. Refused after "
        "`timeout_s`."
    ),
    "http request failed": "A request to the endpoint of metrics and health failed because of a defect; the log has the trace. The process goes on.",
    "no coordinator, retrying": "ZooKeeper does not answer. The process tries again until it does.",
    "storage node closed": "The storage node has stopped in order.",
    "no replica is assigned to this storage node": (
        "The node runs and stores nothing. If that is unexpected, compare its `--name` with `waltz cluster status`."
    ),
    "directory is behind and treated as restored": (
        "The directory is older than the coordinator's record of it, and `--replace` was given. The node copies from its peers and does not vote "
        "until then."
    ),
    "worker ended and is restarted": "A worker process ended. Its partitions continue after the restart. Investigate if `restarts` keeps rising.",
    "workers killed, stop timed out": "Workers did not stop in time and were killed. Nothing that was acknowledged is lost.",
    "worker serves": "A worker is ready.",
    "supervisor ended": "The supervisor of a node disappeared, so its worker stops too. Restart the node.",
    # ---- client
    "connection to the owner lost": (
        "A client's connection for appends ended. The client mounts again and settles what was in flight. Act if it repeats: see `left_out`, the "
        "lines of the same kind that were not written since the last one."
    ),
    "connection to the owner restored": "The client appends again; `without_s` is how long it could not.",
    "most appends conflict": (
        "At least half of the appends of a client to a partition were rejected for a lock conflict. Use fewer or finer locks, or fewer clients that "
        "change the same thing."
    ),
    # ---- console
    "action done": "A person changed the cluster in the console; `change` says what.",
    "action failed": "A person tried to change the cluster in the console, and it was refused; `error` says why.",
    "cluster surveyed in part": "The console shows subscribers, or owners and topics, as they were: its log servers do not answer, or do not "
    "reach the coordinator. The page says which.",
    "cluster not surveyed": "The console could not read the state of the cluster. Pages show the last state that they know, with its age.",
    "page failed": "A page of the console could not be made because of a defect; the log has the trace. The console goes on.",
    "pages left out": "Pages of another package are not shown, because what it needs is not installed.",
    "replay ended": "A replay of dead letters that the console ran ended. The page of the pipeline's dead letters shows the end of its output.",
    "survey failed": "The console could not read what the cluster reported, because of a defect or a newer version; the log has the trace.",
    # ---- log server: ownership
    "server started": "The log server is registered and can own partitions.",
    "cluster manager elected": "This log server assigns partitions to owners from now on.",
    "assigning partitions": "The manager distributes partitions over these log servers.",
    "no more client ids": (
        "The server gives no client ids to new clients: `reason` says why. The counter in the coordinator is unreadable, was set back, or is at its "
        "end. Clients that have an id continue. Run `waltz cluster repair`."
    ),
    "storage node keeps no client ids": "One storage node did not answer while the server reserved client ids. A majority suffices.",
    "ticket key unreadable": (
        "The key in the coordinator that signs tickets of client ids cannot be read. With TLS no client appends at this server. Run `waltz cluster "
        "repair`, and restart the log servers."
    ),
    "coordinator entry unreadable": (
        "An entry in the coordinator cannot be parsed. It is skipped as if it were missing, and the rest goes on. Run `waltz cluster "
        "repair`; for a subscriber, `waltz subscriber remove`."
    ),
    "closing partition": "The partition moves to another owner, or the server stops.",
    "partition closed": "The owner ended its work on the partition because of an error. The partition opens again, here or elsewhere.",
    "partition is owned by a newer generation": "Another server became the owner, and this one stopped. Normal after a failover.",
    "partition handed over to a server that reaches a majority of its replicas": (
        "The owner could not reach a majority of the replicas, so the partition moved. Check the network of the previous owner."
    ),
    "partition handed over before all outcomes were sent": "Clients did not read their outcomes in time. They resolve them with the next owner.",
    "partition handed over with appends in flight": (
        "Some appends were undecided at the hand-over. The next owner recovers them; clients resolve them."
    ),
    "closing mark not recorded": "The session ended without a recorded mark, so the next owner holds a vote. No data is lost.",
    "partitions without a majority of their replicas": (
        "A majority of the replicas of these partitions does not answer this server. Appends to them wait. An empty list means that all answer again."
    ),
    "partitions without a majority not published": "The coordinator did not accept this server's list of such partitions. It is sent again.",
    "reachable replicas not published": "The coordinator did not accept this server's list of reachable replicas. It is sent again.",
    "removing the entry of the previous process at this address": "A server that was killed left its registration; its successor removes it.",
    "left without notifying the coordinator": (
        "The server stopped while the coordinator did not answer. Its partitions move when its session expires."
    ),
    "withdrawing an unfinished topic": (
        "The creator of a topic disappeared before it finished, so the manager undoes the creation. Create the topic again."
    ),
    "task failed and is restarted": "An unexpected error ended a background task; it starts again. Report the stack trace as a defect.",
    "task was cancelled by others and is restarted": "Code outside the platform cancelled the task, such as all of its loop. It starts again.",
    "task interrupted and is restarted": "A background task lost its connection and starts again.",
    # ---- log server: store sessions and replicas
    "opening store session": "A new owner starts recovery of the partition.",
    "high-water mark resolved": "Recovery has decided up to where the log is committed: by a vote, or from the closing mark.",
    "store session open": "A majority of the replicas is clean, and the partition accepts appends.",
    "store session renewed": "The owner started a new session without interrupting appends for longer than `took_ms`.",
    "store session ended": "The session failed. The partition recovers in a new one.",
    "store session closed in order": "The session ended with a closing mark; the next owner needs no vote.",
    "raising the session number above the fence": (
        "A storage node has seen a newer session than the coordinator has recorded. The next session uses a number above it."
    ),
    "coordinator is behind the replicas": (
        "The coordinator was restored to an older state. Appends stop; follow the [operations guide](../guides/operations.md) to adopt the replicas."
    ),
    "waiting for absent replicas after a loss of memory": (
        "A partition of a `quorum_memory` topic opens after its replicas died together. The owner waits `memory_wait_s` for others, which may "
        "hold more."
    ),
    "replica assignment not read": "The coordinator did not return the partition's replicas. The owner keeps those that it knows and tries again.",
    "replica failed": "The connection to a replica failed. The owner reconnects; appends continue while a majority answers.",
    "replica session ended": "The owner's work with one replica ended with the store session.",
    "replica session failed unexpectedly": "An unexpected error ended the work with a replica and the session. Report the stack trace as a defect.",
    "truncating replica": "Recovery removes transactions from a replica that were never committed.",
    "replica lost acknowledged data": "It holds less than it acknowledged. It counts as restored until it has caught up.",
    "replica lost data": "A replica has less than in the same session before: it was emptied or restored. It copies everything from its peers.",
    "replica starts empty at a new first id": (
        "Retention removed what the replica lacks, so it drops what it has and starts at the first retained id."
    ),
    "copy interrupted": "Copying between replicas failed. It continues after a pause.",
    "appends arrive faster than a replica is filled": (
        "The fill of a new replica does not finish at this rate. Lower the load, or give the node more bandwidth."
    ),
    "replica not asked for free space": "A full replica did not answer the question whether it has space again. It is asked again.",
    "replica not informed of its topic": "A replica did not receive the topic of its partition. It receives it after the next connect.",
    "replicas are full, appends are refused": "No majority of the replicas has free disk space. Add space, or shorten the retention.",
    "replicas have room again": "Appends are accepted again.",
    "replica does not serve a read in time": "A replica is slow to read. The owner reads from another one.",
    # ---- log server: upkeep
    "log trimmed": "Retention removed transactions before `first`. `held_by` names what kept the rest.",
    "upkeep failed and is retried": "A round of retention and compaction failed. The next round repeats it.",
    "upkeep failed unexpectedly": "An unexpected error ended a round of upkeep. The next round repeats it. Report the stack trace as a defect.",
    "upkeep call to a replica failed": "A replica did not trim or compact. The next round asks it again.",
    "copying compacted view to a replica": "A replica cannot build its view from the log any more and receives it from another replica.",
    "compacted view not copied, retried later": "The copy of a view to a replica failed. The next round repeats it.",
    # ---- storage node
    "storage node open": "The node has read its control file and serves.",
    "room for more partitions": "The control file was extended after `waltz cluster grow`.",
    "opening a partition failed unexpectedly": "An unexpected error; the next request tries again. Report the stack trace as a defect.",
    "partition open": "The node has opened a partition and knows where its log ends.",
    "partition does not open": "The files of a partition cannot be used. The node serves the others; `waltz storage verify` shows what is damaged.",
    "partition did not close": "Files of a partition were not closed cleanly. The next start recovers them.",
    "partition stopped": "A disk error ended the service of the partition on this node. Repair or replace the disk, then restart the node.",
    "partition task failed unexpectedly": "An unexpected error ended the service of the partition on this node. Report the stack trace as a defect.",
    "session admitted": "The node accepted a new store session and fenced older ones.",
    "session clean": "The replica holds everything that was committed before this session, and acknowledges from now on.",
    "truncated": "The replica removed transactions after `last` at the owner's request.",
    "read failed": "A read failed. The reader gets it from another replica.",
    "disk space": (
        "The free space crossed a limit: `low` is below `disk_warn_free_bytes`, `refusing` below `disk_refuse_free_bytes`. Add space or trim."
    ),
    # ---- segments
    "closed segment is damaged": "A segment that was complete has an unreadable part. The node repairs it from its peers.",
    "index of a closed segment rebuilt": "The index file was missing or damaged and was made again from the records.",
    "side file rebuilt": "An index or time file was unusable and was made again.",
    "removing an incomplete segment": "A crash interrupted the creation of a segment. The rest is removed.",
    "dropping a torn tail": "A crash interrupted a write. The incomplete end is removed; it was never acknowledged.",
    "failed write truncated": "The remains of a write that found the disk full were removed. The partition accepts appends when there is space.",
    "a full disk cannot truncate the failed write": (
        "The remains of a failed write could not be removed yet. This is tried again before the next write."
    ),
    "log starts empty at a new first id": "The partition on this node starts again, empty, at the first retained id.",
    "segment trimmed": "Retention removed a segment.",
    "checkpoint at closing failed": "The last sync at close failed. The next start verifies more of the log.",
    # ---- corruption
    "corruption reported": "A reader or a check found damage. The segment is checked and repaired.",
    "corruption found": "Stored bytes do not match their checksum. Repair starts by itself.",
    "corruption repaired": "The damaged range was replaced from other replicas. If it happens again on this node, replace its disk.",
    "corruption not repaired": "No other replica could supply the range yet. Repair is tried again; start the other replicas.",
    "segment intact": "A reported segment was checked and has no damage.",
    "scrub pass done": "All stored data was read once. `damaged` counts segments that are not repaired yet.",
    "scrub of a partition ended early": "The scrub of a partition failed; the next pass includes it.",
    "scrub of a compacted view ended early": "The scrub of a view failed; the next pass includes it.",
    "scrub pass failed and is retried": "An unexpected error ended a pass. Report the stack trace as a defect.",
    "segment repair failed and is retried": "An unexpected error ended a repair. Report the stack trace as a defect.",
    "peer could not repair a range": "One peer could not supply the range. The next peer is asked.",
    "copying the rest of a range from peers": "Only a part of a damaged range was readable. The rest comes from peers.",
    # ---- compacted views
    "topic not recorded, retried later": "The file `metadata` of a topic was not written or removed, for example because the disk is full. The next "
    "round of upkeep repeats it.",
    "compacted view removed": "The topic was deleted, or its type changed; its view was removed.",
    "compacted view does not open": "The files of a view cannot be used. The view is made again from another replica or the log.",
    "compacted view replaced by another replica's": "The view was copied from another replica, up to transaction `bound`.",
    "replacing a compacted view that does not open": "A damaged view is replaced by a copy from another replica.",
    "compaction failed": "A step of compaction failed. The view stays as it was and is tried again.",
    "compaction failed unexpectedly": "An unexpected error ended a step of compaction. Report the stack trace as a defect.",
    "metadata of a compacted view cannot be read": "The description of a view is damaged. The view is made again.",
    "index of a compacted view damaged, reading its records": (
        "Compaction reads the records instead of the index. It is slower, and the result is the same."
    ),
    # ---- traces
    "collector does not accept spans": (
        "The collector of `tracing.endpoint` refused spans or did not answer in time. Spans are dropped and counted until it accepts them again; "
        "appends are not slower."
    ),
    "collector accepts spans again": "The collector answers again.",
    # ---- transport and coordination
    "call failed": "A handler raised an unexpected error; the caller gets an error. Report the stack trace as a defect.",
    "request refused as malformed": (
        "A peer sent what is no message of the procedure, a name that is too long or not printable, or a message out of turn. Its cause is a peer of "
        "another version, or an attack. `left_out`: lines about the same peer that were not logged before this one."
    ),
    "coordinator is not protected": "The subject of the certificate is in none of the `tls.coordinator_` lists, so what this process creates in "
    "ZooKeeper is open to every certificate. Name it there.",
    "value of the coordinator refused, the known one stays in use": (
        "A value in ZooKeeper is missing, cannot be read or is older: `reason`. The process uses what it knew. `waltz cluster repair` restores it."
    ),
    "coordinator refuses the session, which ends": "ZooKeeper was put back to an earlier state, so the process begins a new session. Follow "
    "[ZooKeeper was restored](../guides/disaster_recovery.md#zookeeper-was-restored-from-an-old-snapshot).",
    "value of the coordinator accepted again": "The value at `path` is as it should be.",
    "remembered value cannot be read, without it nothing is permitted": (
        "A storage node's file of rules or topics is damaged. The value of ZooKeeper, or of another node, replaces it."
    ),
    "value that decides access is not remembered": "A storage node cannot write its rules or topics. It uses them until a restart.",
    "too few storage nodes say which rules they know": (
        "A node that starts decides nothing before a majority of the storage nodes has answered. Until then applications and readers get "
        "`Unavailable`. Start the storage nodes that are down."
    ),
    "value of another process cannot be read": "A node answered with bytes that are no value of this kind. They are not used.",
    "administrative action not recorded, the value cannot be read": (
        "The value at `path` in ZooKeeper cannot be read, so the audit log cannot say what changed."
    ),
    "zookeeper is open to everyone": "ZooKeeper also serves other applications, so its root was left as it is: everyone may create nodes at `paths`. "
    "Give the cluster an ensemble of its own, or close them.",
    "node of zookeeper is closed to this process": "Another access control list is on the node at `path`, and this process may not replace it.",
    "authorities changed, zookeeper restarts": "ZooKeeper reads the authorities that it trusts only at its start. Sessions continue.",
    "renewed certificate not served, retrying": "The directory of ZooKeeper cannot be written to: `reason`. It serves the previous certificate.",
    "certificate of the coordinator not seen": "A host of ZooKeeper does not answer, or its certificate is not trusted or has expired: `reason`.",
    "too many direct connections without an admitted peer, the oldest ends": "Connections arrive at the direct port faster than their peers show who "
    "they are. The oldest is closed. Keep strangers out with a firewall.",
    "worker stands still and is killed": "The event loop of a worker did not run for `worker_silence_s`, so the node restarts the worker. Search "
    "for a disk that does not answer, or for a signal that stopped it.",
    "connection not accepted": (
        "The system accepts no connections at the direct port, the HTTP port or the console. If too many files are open, `reason` says what "
        "to raise. Logged once, until connections are accepted again."
    ),
    "too many handshakes, the oldest ends": (
        "More connections than the limit have not finished their TLS handshake at this direct port or console. The oldest is closed. Keep strangers "
        "out with a firewall."
    ),
    "peer cannot be reached directly": (
        "The direct port of a node does not answer. For a minute, new streams of appends or blocks to it use gRPC, which is slower. Check firewalls "
        "for `direct_port`, or set it to -1 at the node."
    ),
    "worker does not answer": "A call that was forwarded to another worker of the node failed. The caller tries again.",
    "status of a node cannot be read": "A node did not answer `waltz cluster status`.",
    "event loop closed": "A ZooKeeper notification arrived after the application's event loop ended. Harmless.",
    "stopped with %r": "The ZooKeeper client reported an error while it stopped. Harmless.",
    "handler failed": "A handler of the in-memory test cluster raised an unexpected error.",
    # ---- client
    "producer failed": "An unexpected error ended appends to a partition; pending appends fail. Report the stack trace as a defect.",
    "received transactions not confirmed on disk": (
        "`flush` cannot confirm transactions of a `quorum_memory` topic after a change of owner. Read the log from `known_mark` to see which exist."
    ),
    "feed restarted after an error": "The feed of a partition failed. It continues after a pause, without a gap.",
    "on_completion holds up apply": "A completion callback is slow and delays the application of later transactions.",
    "context hook failed": "A method of the application's context raised an error. The transaction is not affected.",
    "bulk append callback failed": "The application's callback raised an error. The append is not affected.",
    "log trimmed before it was read, reading the compacted view": (
        "Retention removed what the reader needed next, so it reads the compacted view first."
    ),
    "no replica has the compacted view, reading the log alone": "No view exists yet, and the log still holds everything.",
    "poller woke for another loop": "gRPC woke the wrong event loop of the process. Harmless.",
    "part applied by another process": "Another process of the application applied these transactions to the database first. Normal.",
    "database call failed and is retried": "The SQL database is locked or does not answer. It is tried again for `retry_s`.",
    # ---- outbox and journal
    "disk full, reserved space released": "The service's disk is full. The outbox used its reserve so that it can record outcomes. Free some space.",
    "space not reserved": "The disk has no space for the reserve that the outbox needs on a full disk.",
    "intent given up": "An intent became a dead letter. `waltz outbox list` shows it.",
    "outbox journal failed": "The disk of the outbox failed. Intents are refused until the service is restarted on a good disk.",
    "outbox closed on a failed disk": "The outbox closed, but could not write its last records. Its next start settles what is in doubt.",
    "outbox fenced by a newer epoch": "Another process opened a copy of this outbox, so this one stopped. Only one may run.",
    "outbox session ended": "The outbox lost the cluster and connects again. Intents are kept.",
    "outbox session failed": "An unexpected error ended the connection of the outbox; it connects again. Report the stack trace as a defect.",
    "statistics file not written": "`waltz outbox status` shows old numbers until the file can be written again.",
    "log end not read": (
        "A job could not read how far the log is, for `reason`. The lag of the pipeline counts what the log had before, and "
        "`waltz_pipeline_log_age_seconds` grows until the log servers answer."
    ),
    "metrics file not written": (
        "The disk of `--metrics-file` is full or cannot be written to. The pipeline runs on, and the file keeps its last contents until then."
    ),
    "outbox may not append": (
        "The cluster refuses the outbox: the topic restricts access, or the settings do not name it. Intents wait until that is corrected."
    ),
    "outbox follower ended": "The application's `apply` failed. The feed continues after a pause from transaction `applied`.",
    "journal callback failed": "The application's callback raised an error. The record is not affected.",
    "journal record damaged": "Compaction of the journal found a damaged record. `waltz journal verify` lists the damage.",
    "journal file without a header set aside": "A crash interrupted the creation of a file. It is kept beside the journal and holds no records.",
    "journal file header corrected": "A file header did not match the file name and was corrected from the name.",
    "incomplete journal transaction ignored": "A crash interrupted a transaction of the journal; its records do not count.",
    "journal file damaged": "A file has damaged records. The readable ones are used, and the file is set aside when they are no longer needed.",
    # ---- Spark source and Delta sink
    "corrupt data from %s, reading from another replica: %s": "An executor received damaged bytes and reads them from another replica.",
    "reading on at another replica than %s: %s": "A storage node failed while an executor read from it. The executor continues at another replica.",
    "reading the view on at another replica than %s: %s": "The same, for a compacted view.",
    "batch not traced": "A batch landed, and the traces of its appends were not completed: owners did not answer, or many batches waited.",
    "probe of the store not removed": (
        "The small table by which the sink asked an object store whether it honors conditions stays in the folder `place`. Delete the folder."
    ),
    "compaction planned again": "Another commit changed what a compaction had read, so it reads the table again. `reason`: what came first.",
    "file not compacted": "The Arrow engine would not write this small file in its present form, so it is left as it is.",
    "files compacted": "A commit replaced `removed` small files by `added` larger ones. No row has changed.",
    "columns are added by Spark's engine": "The rows have a field or a type that the Arrow engine cannot add to the table. Spark has added it.",
    "table engine chosen": (
        "Which engine writes a table from now on, `arrow` or `spark`, and why. Logged when a query starts, and when the table, or the size of a "
        "batch, needs the other engine."
    ),
    "table checkpoint not written": "Delta's checkpoint of the table's log failed. The table is complete; the next checkpoint includes everything.",
    "table locked by another process": (
        "A commit to a table in a local directory waits for the process `holder`, which commits to it. `None`: unknown. After `limit_s` the job ends."
    ),
    "table restricted to a single driver": (
        "The file system of the table cannot prevent two writers, or the table is local and not locked, and the configuration confirms that there is "
        "only one."
    ),
    "table inherited": "The table continues with the cluster that replaces the one that filled it. Ids of the former cluster are below 0 now.",
}
