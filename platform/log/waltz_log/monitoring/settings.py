"""Where a serving process answers `/livez`, `/readyz` and `/metrics`: the block `http` in the settings of log servers and storage nodes."""

from __future__ import annotations

from pydantic import Field

from waltz_log.settings import Settings

__all__ = ["OFF", "HttpSettings"]

OFF = -1
"""As a port: nothing is served."""


class HttpSettings(Settings):
    """The endpoint gives no payloads, lock keys or secrets. It names partitions, storage nodes and errors. Without `tls` it has no authentication."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address of this machine that the endpoint listens at. If other machines can reach it, the node needs `http.tls`, or `insecure`.",
    )
    port: int = Field(
        default=OFF,
        ge=OFF,
        le=65_535,
        description="Port of the endpoint; 0: a free one, which `waltz cluster status` shows; -1: no endpoint. A node with several workers has one "
        "endpoint, which shows all of them.",
    )
    probe_port: int = Field(
        default=OFF,
        ge=OFF,
        le=65_535,
        description="Another port for `/livez` and `/readyz` alone, in plain text, at 127.0.0.1: no other machine can keep a probe waiting there. 0: "
        "a free one; -1: none. Set it where a failed probe restarts the process, and let the probe run a command on this machine.",
    )
    tls: bool = Field(
        default=False,
        description="Serve HTTPS, with the files of the block `tls` of the node. Set it where other machines reach the endpoint. Probes need no "
        "certificate; they must trust the node's authority or not verify it.",
    )
    clients: tuple[str, ...] = Field(
        default=(),
        description="Names in the certificates of clients that can read `/metrics`, with `*` for any text without a slash. Empty: all clients. It "
        "needs `http.tls`. `/livez` and `/readyz` answer other clients without reasons. Choose the names of your Prometheus servers.",
    )

    @property
    def address(self) -> str | None:
        """`host:port`, None without an endpoint."""
        if self.port == OFF:
            return None
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
