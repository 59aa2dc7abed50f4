"""`waltz cluster adopt`: a new cluster around storage directories that hold data, such as `waltz storage migrate` leaves.

Reads the directories, or for directories on other machines the output of `waltz storage describe`, and changes none of them. The command only records
the members. Recovery finds what is committed when the nodes start.
"""

from __future__ import annotations

from pathlib import Path

from waltz_log.cli.printing import print_result
from waltz_log.coordination.cluster import adopt_cluster
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.ensemble_root import close_ensemble
from waltz_log.core.adoption import DirectoryFacts, adopt
from waltz_log.errors import InvalidSetting
from waltz_log.exit_codes import OK
from waltz_log.storage.offline.describe import describe_directory
from waltz_log.untrusted_files import FACTS, read_text

__all__ = ["read_nodes", "run"]


async def run(address: str, *, name: str, nodes: list[str], missing: list[str], restored: bool = False, output: str, timeout_s: float) -> int:
    found = adopt(read_nodes(nodes), missing)
    coordinator = await ZooKeeperCoordinator.connect(address, timeout_s=timeout_s, new=True)
    try:
        made = await adopt_cluster(coordinator, name=name, found=found, restored=restored)
        await close_ensemble(coordinator)
    finally:
        await coordinator.close()
    lines = []
    for partition, metadata in found.metadata.items():
        members = ", ".join(f"{node} (session {state.session})" for node, state in metadata.replicas.items()) or "empty"
        lines.append(f"partition {partition}: {members}")
    lines.append(f"adopted coordinator={address} name={made.name} key={made.key} partitions={made.partitions}")
    sessions = {str(each): {node: state.session for node, state in metadata.replicas.items()} for each, metadata in found.metadata.items()}
    fields = {"coordinator": address, "name": made.name, "cluster_key": str(made.key), "partitions": made.partitions}
    print_result(fields | {"sessions": sessions}, lines, output)
    return OK


def read_nodes(nodes: list[str]) -> dict[str, DirectoryFacts]:
    """From `NAME=DIRECTORY` or `NAME=FILE`. Raises `InvalidSetting`."""
    found: dict[str, DirectoryFacts] = {}
    for given in nodes:
        name, equals, place = given.partition("=")
        if not equals or not name or not place:
            raise InvalidSetting(name="node", reason=f"must be NAME=DIRECTORY or NAME=FILE, not {given!r}", nearest=None)
        if name in found:
            raise InvalidSetting(name="node", reason=f"is named twice: {name}", nearest=None)
        found[name] = _facts(Path(place))
    return found


def _facts(place: Path) -> DirectoryFacts:
    if place.is_dir():
        return describe_directory(place)
    try:
        return DirectoryFacts.from_json(read_text(place, FACTS))
    except OSError as error:
        raise InvalidSetting(name="node", reason=f"cannot be read: {place}: {error.strerror}", nearest=None) from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        raise InvalidSetting(name="node", reason=f"is not what `waltz storage describe` prints: {place}", nearest=None) from None
