"""gRPC's own log is switched off here, before any module imports gRPC, which reads the switch once: it prints lines about transports into the output
of whatever application has a connection that ends, and everything that matters is raised as a typed error. A value that is set already stays.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
