"""Finds corruption in the compacted views of a node, as the scrub does in its segments and at the same pace.

If a second check confirms a finding, it is repaired: an index is rebuilt from the records, `metadata` from the view in memory. Corrupt records
cannot be rebuilt here: the node reports them to the partition's owner (`Views.judge`), which sends the view of an intact replica; until then they
are not served. A view may change at any time. Each check covers one file of it, held open; a file that replaced it is checked in the next pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Final

from waltz_log.compaction import CompactedView
from waltz_log.compaction.manifest import ViewFile
from waltz_log.core.ports import Offload
from waltz_log.errors import CorruptData, Unavailable, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.storage.integrity.verify import Finding
from waltz_log.storage.integrity.view_check import ViewFileCheck
from waltz_log.storage.views.views import Views

__all__ = ["ViewScrub"]

log = get_logger(__name__)

REMAKE_ATTEMPTS: Final = 10
REMAKE_PAUSE_S: Final = 1.0
"""A view that is being changed cannot be repaired. The next pass may be a day away, so the repair is tried again in this one."""


class ViewScrub:
    """`read`: receives the number of bytes read and waits to limit the pace."""

    def __init__(self, views: Views, offload: Offload, read: Callable[[int], Awaitable[None]]) -> None:
        self._views = views
        self._offload = offload
        self._read = read
        self._waiting: dict[str, int] = {}
        """How many damaged places of a view wait for another replica's view."""
        self._repaired = 0
        self.found = 0

    def damages(self) -> dict[str, str]:
        """The folder of each view that is known to be damaged, and why it is not repaired."""
        return self._views.damages()

    @property
    def repaired(self) -> int:
        self._count_replaced()
        return self._repaired

    def _count_replaced(self) -> None:
        known = self._views.damages()
        for folder in [each for each in self._waiting if each not in known]:
            self._repaired += self._waiting.pop(folder)

    async def scrub_all(self) -> None:
        self._count_replaced()
        for partition, view in self._views.present().items():
            try:
                await self._scrub(partition, view)
            except (OSError, WaltzError) as error:
                log.warning("scrub of a compacted view ended early", view=view.folder, error=str(error))

    async def _scrub(self, partition: int, view: CompactedView) -> None:
        findings, files = await self._verify_view(view)
        if findings:
            again, files = await self._verify_view(view)
            findings = [finding for finding in again if finding in findings]
        if self._views.present().get(partition) is not view:
            return  # reopened meanwhile, or removed
        if findings and view.folder not in self._waiting:
            self.found += len(findings)
        for finding in findings:
            log.error("corruption found", **asdict(finding))
        if findings and all(finding.part != "data" for finding in findings):
            if not await self._remake(partition, view, files):
                return
            self._repaired += len(findings)
            log.warning("corruption repaired", view=view.folder, findings=len(findings))
            findings = []
        elif findings:
            self._waiting[view.folder] = len(findings)
        first = f"{findings[0].file} offset={findings[0].offset}: {findings[0].reason}" if findings else ""
        self._views.judge(partition, first and f"{first}; another replica's view takes its place, where one is whole")

    async def _remake(self, partition: int, view: CompactedView, files: list[ViewFile]) -> bool:
        """Tries again while the view is being changed. False if another view replaced it meanwhile. Raises `Unavailable` after the last attempt."""
        for attempt in range(1, REMAKE_ATTEMPTS + 1):
            try:
                await self._views.remake(partition, view, files)
                return True
            except Unavailable:
                if attempt == REMAKE_ATTEMPTS:
                    raise
                await asyncio.sleep(REMAKE_PAUSE_S)
                if self._views.present().get(partition) is not view:
                    return False
        return False

    async def _verify_view(self, view: CompactedView) -> tuple[list[Finding], list[ViewFile]]:
        """The findings, and the files whose index is wrong."""
        findings: list[Finding] = []
        files: list[ViewFile] = []
        try:
            await self._offload(view.expect_metadata)
        except CorruptData as error:
            findings.append(Finding("header", error.where, error.offset, -1, -1, error.reason))
        for file in view.manifest.files:
            found = await self._verify_file(view, file)
            findings += found
            if found:
                files.append(file)
        return findings, files

    async def _verify_file(self, view: CompactedView, file: ViewFile) -> list[Finding]:
        try:
            opened = await self._offload(view.open_file, file)
        except FileNotFoundError as error:
            name = str(error.filename or file.name).rpartition("/")[2]
            part = "index" if name == file.index_name else "data"
            return [Finding("index" if part == "index" else "data", f"{view.folder}/{name}", 0, -1, -1, "is not there")]
        if opened is None:
            return []
        check = ViewFileCheck(view.folder, file, *opened)
        steps = check.run()
        while (read := await self._offload(lambda: next(steps, None))) is not None:
            await self._read(read)
        return check.findings
