"""A Spark session that answers where a path is, and what is configured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any  # Any: objects of Hadoop

from py4j.protocol import Py4JJavaError

__all__ = ["Session"]


class _Path:
    """Hadoop's path of a local file, and its file system."""

    def __init__(self, path: str) -> None:
        self._path = path.removeprefix("file:")

    def getFileSystem(self, conf: Any) -> Any:
        return SimpleNamespace(makeQualified=lambda place: place)

    def toUri(self) -> Any:
        return SimpleNamespace(getPath=lambda: self._path)


class _Unknown(Py4JJavaError):  # type: ignore[misc]
    def __init__(self) -> None:
        """Without a JVM."""


class Session:
    """What is asked of Spark about the place of a table. `file_systems`: schemes whose connector it has. `conf`: Spark's settings, with `__` for a
    dot."""

    def __init__(self, application: str, default_fs: str = "file", **conf: str) -> None:
        self.file_systems: tuple[str, ...] = ()
        values = {name.replace("__", "."): value for name, value in conf.items()}
        self.conf = SimpleNamespace(get=lambda key, default=None: values.get(key, default), getAll=values)
        self.sparkContext = SimpleNamespace(applicationId=application, getConf=lambda: SimpleNamespace(get=values.get))
        uri = SimpleNamespace(getScheme=lambda: default_fs)

        def file_system_class(scheme: str, conf: Any) -> None:
            if scheme not in self.file_systems:
                raise _Unknown

        system = SimpleNamespace(getDefaultUri=lambda conf: uri, getFileSystemClass=file_system_class)
        hadoop = SimpleNamespace(FileSystem=system, Path=_Path)
        self._jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=SimpleNamespace(fs=hadoop))))
        self._jsparkSession = SimpleNamespace(sessionState=lambda: SimpleNamespace(newHadoopConf=lambda: None))
