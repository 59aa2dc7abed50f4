"""Which roles the name in a certificate has."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_log.security.identity import Identity, Role, identify, matches

PATTERNS = {Role.NODE: ("spiffe://*/node/*",), Role.APPLICATION: ("spiffe://*/application/*", "orders.example.com"), Role.READER: ()}


@pytest.mark.parametrize(
    ("principal", "pattern", "fits"),
    [
        ("spiffe://waltz/node/storage-0", "spiffe://*/node/*", True),
        ("spiffe://waltz/node/storage-0", "spiffe://waltz/node/storage-0", True),
        ("spiffe://waltz/node/storage-0/more", "spiffe://*/node/*", False),
        ("spiffe://waltz/application/x/node/y", "spiffe://*/node/*", False),
        ("spiffe://waltz/node/", "spiffe://*/node/*", False),
        ("SPIFFE://waltz/node/a", "spiffe://*/node/*", False),
        ("spiffe://waltz/node/a\n", "spiffe://*/node/*", False),
        ("spiffe://waltz/nodeXa", "spiffe://*/node.a", False),
    ],
)
def test_a_star_fits_text_without_a_slash(principal: str, pattern: str, fits: bool) -> None:
    assert matches(principal, pattern) is fits


def test_the_spiffe_uri_is_the_principal_before_any_dns_name() -> None:
    found = identify(["https://example.com", "spiffe://waltz/node/a"], ["orders.example.com"], PATTERNS)
    assert found == Identity("spiffe://waltz/node/a", frozenset({Role.NODE}))


def test_a_certificate_without_a_uri_is_named_by_its_first_dns_name() -> None:
    assert identify([], ["orders.example.com", "other"], PATTERNS) == Identity("orders.example.com", frozenset({Role.APPLICATION}))


@pytest.mark.parametrize(
    "name",
    ["spiffe://waltz/node/a", "spiffe://waltz/application/x", "//waltz/node/a", "a b", "*.example.com", "-a", "a..b", "a\n", "a\0.b", "", "a@b"],
)
def test_a_dns_name_that_is_no_host_name_names_no_one(name: str) -> None:
    everyone = {Role.NODE: ("spiffe://*/node/*", "*", name or "*")}
    assert identify([], [name], everyone) is None
    assert identify([], [name, "orders.example.com"], PATTERNS) == Identity("orders.example.com", frozenset({Role.APPLICATION}))


def test_a_certificate_with_two_spiffe_uris_identifies_no_one() -> None:
    assert identify(["spiffe://waltz/application/x", "spiffe://waltz/node/a"], ["orders.example.com"], PATTERNS) is None


def test_a_name_that_no_pattern_fits_has_no_role() -> None:
    assert identify(["spiffe://waltz/guest/a"], [], PATTERNS) == Identity("spiffe://waltz/guest/a", frozenset())


def test_a_certificate_without_names_identifies_no_one() -> None:
    assert identify(["https://example.com"], [], PATTERNS) is None


@given(st.text("ab/ *", max_size=12), st.text("ab/ *", max_size=8))
def test_a_pattern_fits_what_a_regular_expression_fits(name: str, pattern: str) -> None:
    plain = r"[^/\s]+".join(re.escape(part) for part in pattern.split("*"))
    assert matches(name, pattern) == (re.fullmatch(plain, name) is not None)


@pytest.mark.timeout(10)
def test_a_pattern_of_many_stars_is_decided_at_once() -> None:
    """A regular expression needs longer than a day. An operator who writes such a rule would stop every node."""
    assert not matches("spiffe://waltz/" + "a" * 200 + "/", "spiffe://waltz/" + "*" * 100)
    assert not matches("a" * 2000, "*a" * 900 + "*b")
    assert matches("a" * 2000, "*a" * 900 + "*")
