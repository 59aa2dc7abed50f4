"""What the coordinator had when a log server read it last, for everything that surveys a cluster."""

from __future__ import annotations

from waltz_log.core.ports import Node
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["ClusterValues"]


class ClusterValues:
    """`age_s`: since the server read them; the coordinator has not answered it since."""

    reachable = True

    def __init__(self, answer: pb.ClusterResponse) -> None:
        self.age_s = answer.age_ms / 1000
        self._nodes = {each.path: Node(each.data, 0, each.changed) for each in answer.values}

    async def get(self, path: str, *, latest: bool = False) -> Node | None:
        return self._nodes.get(path)

    async def children(self, path: str, *, latest: bool = False) -> list[str]:
        return sorted(name.removeprefix(f"{path}/") for name in self._nodes if name.startswith(f"{path}/"))
