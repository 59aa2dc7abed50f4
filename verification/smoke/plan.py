"""How large a smoke run is. The defaults are the original's test at twice its size and more clients; its schedule is in `schedule`."""

from __future__ import annotations

from pydantic import Field

from waltz_log.settings import Settings

__all__ = ["SmokePlan"]


class SmokePlan(Settings):
    seed: int = Field(default=0, description="Of outages and of what clients draw. What the machine makes of it differs from run to run.")
    transactions: int = Field(default=2_000_000, ge=0, description="To be committed. 0: as many as go in the time.")
    seconds: float = Field(default=1200.0, gt=0, description="How long the most seconds of load; a run that has committed less by then has failed.")
    partitions: int = Field(default=4, ge=1, le=255, description="Each client appends to all of them and follows one.")
    servers: int = Field(default=3, ge=1, description="Log servers.")
    storages: int = Field(default=3, ge=1, description="Storage nodes; a partition has three replicas where there are as many.")
    clients: int = Field(default=16, ge=1, le=60_000, description="Clients, each with connections of its own.")
    workers: int = Field(default=4, ge=1, description="Processes that the clients are shared out over.")
    locks: int = Field(default=10_000, ge=1, description="Names in each partition, all alike.")
    hot_locks: int = Field(default=100, ge=1, description="Names that one transaction in ten uses besides.")
    pipeline: int = Field(default=256, ge=1, description="Appends that a client has under way at once. More conflicts the more there are.")
    payload_bytes: int = Field(default=200, ge=64, description="Data of each transaction.")
    rate: float = Field(default=2.0, gt=0, description="How much more often than in the original something goes wrong.")
    pace: float = Field(default=1.0, gt=0, description="Everything so much faster, outages shorter too: for a run that has little time.")
    session_timeout_s: float = Field(default=4.0, gt=0, description="Of a server's coordinator session, after which its partitions move.")
    heal_s: float = Field(default=120.0, gt=0, description="How long the recovery of everything may last after the last outage.")
