"""Blocks of client ids, the counter's content, tickets, and which mount sequences resolve for others."""

from __future__ import annotations

from itertools import count, islice
from uuid import UUID

import pytest

from waltz_log.core.client_ids import BLOCK_MAX, BLOCK_MIN, BUSY_S, CLIENT_ID_MAX, IdBlocks, format_counter, parse_counter
from waltz_log.core.mount_sequences import EPOCH_BITS, RESOLVING, may_resolve_at, recovering_above, resolving_above
from waltz_log.security.tickets import TicketKey, Tickets

KEY = TicketKey(bytes(range(32)))


def test_every_id_of_a_block_is_given_once_and_in_order() -> None:
    blocks = IdBlocks(0.0)
    assert blocks.give() is None
    assert blocks.add(11, 13, 0.0)
    assert blocks.add(20, 21, 0.0)
    assert blocks.left == 5
    assert [blocks.give() for _ in range(6)] == [11, 12, 13, 20, 21, None]


def test_the_next_block_is_reserved_at_half_and_larger_while_clients_are_many() -> None:
    blocks = IdBlocks(0.0)
    assert blocks.wanted(0.0) == BLOCK_MIN
    assert blocks.add(1, BLOCK_MIN, 0.0)
    for _ in range(BLOCK_MIN // 2 - 1):
        blocks.give()
        assert blocks.wanted(1.0) == 0
    blocks.give()
    assert blocks.wanted(1.0) == 2 * BLOCK_MIN
    assert blocks.wanted(BUSY_S) == BLOCK_MIN, "few clients come"
    sizes = []
    for _ in range(12):
        sizes.append(blocks.wanted(1.0))
        assert blocks.add(blocks.last + 1, blocks.last + sizes[-1], 1.0)
        while blocks.wanted(1.0) == 0:
            blocks.give()
    assert sizes[:3] == [2 * BLOCK_MIN, 4 * BLOCK_MIN, 8 * BLOCK_MIN]
    assert max(sizes) == BLOCK_MAX


def test_a_block_below_the_servers_own_last_end_is_refused() -> None:
    blocks = IdBlocks(0.0)
    assert blocks.add(1, 10, 0.0)
    assert not blocks.add(10, 20, 0.0)
    assert not blocks.add(5, 8, 0.0)
    blocks.discard()
    assert blocks.give() is None
    assert not blocks.add(10, 20, 0.0), "what it has reserved counts after it was discarded"
    assert blocks.add(11, 20, 0.0)


@pytest.mark.parametrize(
    "garbage", [b"", b"x", b"-1", b" 1", b"1\n", b"+1", b"1.5", b"1e3", b"\xff", "٣".encode(), b"2147483648", b"9" * 11, b"0x10", b"[" * 100_000]
)
def test_a_counter_that_is_none_is_recognized(garbage: bytes) -> None:
    assert parse_counter(garbage) is None


@pytest.mark.parametrize("value", [0, 1, 1000, CLIENT_ID_MAX])
def test_a_counter_reads_what_was_written(value: int) -> None:
    assert parse_counter(format_counter(value)) == value


def test_a_ticket_fits_one_principal_id_and_cluster() -> None:
    tickets = Tickets(UUID(int=1), 1, KEY)
    ticket = tickets.sign(7, "spiffe://waltz/application/a")
    assert tickets.proves(ticket, 7, "spiffe://waltz/application/a")
    others = [
        tickets.proves(ticket, 8, "spiffe://waltz/application/a"),
        tickets.proves(ticket, 7, "spiffe://waltz/application/b"),
        tickets.proves(ticket, 7, ""),
        Tickets(UUID(int=2), 1, KEY).proves(ticket, 7, "spiffe://waltz/application/a"),
        Tickets(UUID(int=1), 1, TicketKey(bytes(32))).proves(ticket, 7, "spiffe://waltz/application/a"),
    ]
    assert others == [False] * len(others)
    assert Tickets(UUID(int=1), 9, KEY).proves(ticket, 7, "spiffe://waltz/application/a"), "an older epoch's stays good"


def test_no_changed_ticket_proves_anything() -> None:
    tickets = Tickets(UUID(int=1), 1, KEY)
    ticket = tickets.sign(7, "a")
    for at in range(len(ticket)):
        for character in "0123456789abcdef.Gé":
            changed = ticket[:at] + character + ticket[at + 1 :]
            assert changed == ticket or not tickets.proves(changed, 7, "a")
    for wrong in ("", ".", ticket[:-1], ticket + "0", ticket.upper() + " ", "1." + "0" * 32, "f" * 1000):
        assert not tickets.proves(wrong, 7, "a")
    for number in (0, -1, -7, 2**31, 7 + 2**32):
        assert not tickets.proves(ticket, number, "a")


@pytest.mark.parametrize(
    "garbage",
    [b"", b"{}", b"[]", b"null", b"1", b'{"secret":1}', b'{"secret":"00"}', b'{"secret":"%s"}' % (b"zz" * 32), b"[" * 9999],
)
def test_a_key_that_is_none_is_recognized(garbage: bytes) -> None:
    assert TicketKey.from_bytes(garbage) is None
    assert TicketKey.from_bytes(KEY.to_bytes()) == KEY
    assert KEY.secret.hex() not in repr(KEY)


def test_a_process_resolves_for_another_only_within_the_clients_epoch() -> None:
    for newest in (-1, 0, 5, RESOLVING, RESOLVING | 3, 1 << EPOCH_BITS, (3 << EPOCH_BITS) + 9):
        wanted = resolving_above(max(0, newest))
        assert may_resolve_at(wanted, newest)
        for beyond in (wanted + 1, newest + 1 if newest + 1 < wanted and not (newest + 1) & RESOLVING else -1, 1 << 62 | RESOLVING, -5):
            assert not may_resolve_at(beyond, newest)
        assert recovering_above(wanted) > wanted
        again = islice((resolving_above(wanted + each) for each in count()), 3)
        assert [recovering_above(each) for each in again] == [recovering_above(wanted)] * 3, "the epoch is not used up"
