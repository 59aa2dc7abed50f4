"""Fuzz targets for the ports: the parsers of everything that a peer can send before and after it is admitted (as in `parser_targets.py`).

gRPC's own framing and protobuf are others' parsers. Ours are the frames of direct connections, the two messages that are read by hand, the
names in certificates, tokens, and the rules of access.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from base64 import urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import DecodeError

from waltz_log.core.formats.block import Block
from waltz_log.errors import InvalidSetting, PermissionDenied, ProtocolViolation
from waltz_log.security.identity import Identity, Role, identify, matches
from waltz_log.security.permits import attribute
from waltz_log.security.rules import CLUSTER_RESOURCE, AccessRules, Operation, Resource, Rule, decide, parse_resource
from waltz_log.security.settings import TokenSettings
from waltz_log.security.tokens import LEEWAY_S, Tokens
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.direct.codec import CONTROL_BYTES_MAX, GREETING, GREETING_BYTES_MAX, HEAD, OPENING_BYTES_MAX, UNTRUSTED_BYTES, VERSION, Wire
from waltz_log.transport.large_messages import (
    AppendColumns,
    ReceivedAppend,
    ReceivedBlock,
    append_message,
    received_append,
    received_block,
    replicate_message,
)
from waltz_log.transport.methods import MAX_FRAME_BYTES

__all__ = ["PORT_SEEDS", "PORT_TARGETS"]

MESSAGE, END, STATUS, PING, PONG = range(5)

NOW_S: Final = 1_700_000_000.0
CLAIMS: Final = b'{"iss": "https://issuer", "aud": "waltz", "sub": "jobs/a", "exp": 1700000060}'

PEER: Final = Identity("spiffe://waltz/reader/fuzz", frozenset({Role.READER}))


def append_frame(data: bytes) -> None:
    """Read by hand as protobuf reads it, and attributed to the peer whatever it says."""
    try:
        plain = pb.ClientMessage.FromString(data)
    except DecodeError:
        plain = None
    try:
        found = received_append(data)
    except DecodeError:
        assert plain is None
        return
    except ProtocolViolation:
        assert plain is not None  # a name in it is too long or not printable, or the message is large and no frame
        return
    assert plain is not None
    if isinstance(found, ReceivedAppend):
        fields = found.append._asdict() | {"records": bytes(found.append.records)}
        assert pb.ClientMessage(append=pb.AppendFrame(**fields)) == plain
    else:
        assert found == plain
        attribute(found, PEER)
        assert not found.HasField("mount") or found.mount.principal == PEER.principal


def replicated_block(data: bytes) -> None:
    try:
        plain = pb.ReplicateRequest.FromString(data)
    except DecodeError:
        plain = None
    try:
        found = received_block(data)
    except DecodeError:
        assert plain is None
        return
    assert plain is not None
    if isinstance(found, ReceivedBlock):
        block = found.block
        assert plain.block == pb.Block(
            first_transaction_id=block.first_transaction_id,
            lengths=block.lengths,
            records=block.records,
            append_time_ms=block.append_time_ms,
            traces=block.traces,
            checksum=block.checksum,
        )
    else:
        assert found == plain


class _Transport(asyncio.Transport):
    """Keeps nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def write(self, data: Any) -> None: ...
    def write_eof(self) -> None: ...
    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True


def _plain_messages(data: bytes) -> tuple[list[bytes], bool]:
    """The frames in a stream of these bytes, and whether all of the bytes are valid."""
    messages: list[bytes] = []
    at, greeted, ended = 0, False, False
    while len(data) - at >= HEAD.size:
        kind, length = HEAD.unpack_from(data, at)
        later = MAX_FRAME_BYTES if kind == MESSAGE else CONTROL_BYTES_MAX
        limit = GREETING_BYTES_MAX if not greeted else OPENING_BYTES_MAX if not messages else later
        if length > limit or (kind > PONG if greeted else kind != GREETING) or (ended and kind in (MESSAGE, END)):
            return messages, False
        body = data[at + HEAD.size : at + HEAD.size + length]
        if len(body) < length:
            break
        at += HEAD.size + length
        if not greeted:
            if body[:1] != VERSION:
                return messages, False
            greeted = True
        elif kind == MESSAGE:
            messages.append(body)
        elif kind == END:
            ended = True
        elif kind == STATUS:
            break
    return messages, True


def direct_frames(data: bytes) -> None:
    """In pieces of any size, as a server receives them after the opening."""
    messages, right = _plain_messages(data[1:])
    received = asyncio.run(_receive(data[1:], 1 + (data[0] if data else 0)))
    assert received == messages[: len(received)]
    assert not right or received == messages


async def _receive(data: bytes, piece: int) -> list[bytes]:
    wire, found = Wire(lambda _wire, _name: None), list[bytes]()
    wire.connection_made(_Transport())
    assert len(wire.get_buffer(-1)) <= UNTRUSTED_BYTES

    async def consume() -> None:
        while (message := await wire.next()) is not None:
            found.append(bytes(message))

    consuming = asyncio.ensure_future(consume())
    at = 0
    while at < len(data) and not consuming.done():
        buffer = wire.get_buffer(-1)
        if not len(buffer):  # it reads no more until the handler has accepted the opening
            await asyncio.sleep(0)
            continue
        part = data[at : at + min(piece, len(buffer))]
        buffer[: len(part)] = part
        wire.buffer_updated(len(part))
        at += len(part)
        await asyncio.sleep(0)
    for _ in range(4):
        await asyncio.sleep(0)
    wire.connection_lost(None)
    await consuming
    return found


def peer_name(data: bytes) -> None:
    """A name matches the patterns of roles exactly as a plain comparison of its parts does, and never those of another role."""
    name = data.decode("utf-8", "replace")
    patterns = {role: (f"spiffe://*/{role}/*",) for role in Role}
    found = identify([name], [], patterns)
    if not name.startswith("spiffe://"):
        assert found is None
        return
    assert found is not None
    assert found.principal == name
    parts = name.removeprefix("spiffe://").split("/")
    plain = {role for role in Role if len(parts) == 3 and parts[1] == role and all(part and not any(c.isspace() for c in part) for part in parts)}
    assert found.roles == plain
    assert matches(name, name) or "*" in name


def access_rules(data: bytes) -> None:
    """Rules as the coordinator keeps them, and each as an operator writes its resource."""
    try:
        found = AccessRules.from_bytes(data)
    except InvalidSetting:
        return
    assert AccessRules.from_bytes(found.to_bytes()) == found
    for rule in found.rules:
        with suppress(InvalidSetting):  # a pattern of several
            assert rule.covers(parse_resource(rule.resource)) or rule.resource == "*"
        for resource in (Resource("shop/orders", 2), Resource("", 2), CLUSTER_RESOURCE):
            assert not decide(found, Identity(rule.principal, frozenset()), Operation.APPEND, resource)


@cache
def _issuer() -> tuple[Ed25519PrivateKey, Tokens]:
    """Made when it is first asked for, because it needs a file."""
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": _segment(public), "kid": "fuzz", "alg": "EdDSA"}
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(json.dumps({"keys": [jwk]}).encode())
        file.flush()
        settings = TokenSettings(issuer="https://issuer", audience="waltz", keys=Path(file.name), applications=("jobs/*",))
        return key, Tokens(settings, now_s=lambda: NOW_S)


def _segment(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def token(data: bytes) -> None:
    """The bytes as a token, as the head of a token, and as the claims of a token that the issuer signed. Only the last one may be accepted, and only
    with what it claims."""
    key, tokens = _issuer()
    head = _segment(b'{"alg": "EdDSA", "kid": "fuzz"}')
    signed = f"{head}.{_segment(data)}"
    signed += "." + _segment(key.sign(signed.encode()))
    for text in (data.decode("utf-8", "replace"), f"{_segment(data)}.{_segment(CLAIMS)}.{_segment(bytes(64))}"):
        with suppress(PermissionDenied):
            raise AssertionError(f"accepted {tokens.identify(text)}")
    try:
        found = tokens.identify(signed).identity
    except PermissionDenied:
        return
    claims = json.loads(data)
    assert (claims["iss"], claims["sub"]) == ("https://issuer", found.principal)
    assert claims["aud"] == "waltz" or "waltz" in claims["aud"]
    assert claims["exp"] > NOW_S - LEEWAY_S
    assert found.roles <= {Role.APPLICATION}


PORT_TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    target.__name__: target for target in (append_frame, replicated_block, direct_frames, peer_name, access_rules, token)
}


def _frame(kind: int, body: bytes) -> bytes:
    return HEAD.pack(kind, len(body)) + body


_GREETED = b"\x05" + _frame(GREETING, VERSION + b"/waltz.Storage/Replicate")

PORT_SEEDS: Final[dict[str, list[bytes]]] = {
    "append_frame": [
        append_message(AppendColumns(1, b"\0\0\0\1", bytes(8), b"\1\0\0", bytes(8), b"records", b"\1", 3)).data,
        pb.ClientMessage(mount=pb.MountRequest(principal="spiffe://waltz/node/a", partition=3)).SerializeToString(),
    ],
    "replicated_block": [
        replicate_message(Block(7, b"\0\0\0\1", b"r", 5)).data,
        replicate_message(Block(7, b"", b"", 5, b"traces")).data,
        pb.ReplicateRequest(flush=pb.Flush()).SerializeToString(),
    ],
    "direct_frames": [
        _GREETED + _frame(MESSAGE, b"opening") + _frame(PING, b"") + _frame(MESSAGE, b"x" * 300) + _frame(END, b""),
        _GREETED + _frame(MESSAGE, b"") + _frame(STATUS, b"{}"),
    ],
    "access_rules": [
        AccessRules(rules=(Rule(principal="spiffe://waltz/application/*", operations=(Operation.APPEND,), resource="shop/ord*:0-3"),)).to_bytes(),
        AccessRules(enforced=False).to_bytes(),
    ],
    "token": [CLAIMS, b'{"alg": "EdDSA", "kid": "fuzz"}', b'{"alg": "none"}', f"{_segment(b'{}')}.{_segment(CLAIMS)}.".encode(), b"[" * 3000],
    "peer_name": [b"spiffe://waltz/node/a", b"spiffe://waltz/node/a/b", b"spiffe:///node/", b"host.example"],
}
