"""What is wrong with a port, from the reports of sslyze and testssl.sh. Pure: a report that does not say what was asked for is wrong too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final  # reports of other programs

__all__ = ["judge_sslyze", "judge_testssl"]

OLD_SUITES: Final = ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1", "tls_1_2")

EARLY_DATA: Final = "tls_1_3_early_data"
"""A neighbor could send it again. sslyze cannot say of a port that ends the connection at what it sends."""

FAULTS: Final[Mapping[tuple[str, str], object]] = {
    ("heartbleed", "is_vulnerable_to_heartbleed"): False,
    ("openssl_ccs_injection", "is_vulnerable_to_ccs_injection"): False,
    ("tls_compression", "supports_compression"): False,
    ("session_renegotiation", "is_vulnerable_to_client_renegotiation_dos"): False,
    (EARLY_DATA, "supports_early_data"): False,
}
"""Attempts of sslyze, with the field that must have this value."""

OLD_PROTOCOLS: Final = ("SSLv2", "SSLv3", "TLS1", "TLS1_1", "TLS1_2")
WEAK_CIPHERS: Final = ("cipherlist_NULL", "cipherlist_aNULL", "cipherlist_EXPORT", "cipherlist_LOW", "cipherlist_3DES_IDEA", "cipherlist_AVERAGE")
SERIOUS: Final = frozenset({"HIGH", "CRITICAL", "FATAL"})

ACCEPTED: Final = frozenset({"cert_revocation", "cert_chain_of_trust", "cipher_order", "scanProblem"})
"""The authority of a cluster has no public lists of revoked certificates and is in no store of browsers; nodes check the chain themselves. The
client chooses the cipher: all that are offered are strong. A problem of the scan shows in what is missing."""


def judge_sslyze(report: Mapping[str, Any]) -> Iterator[str]:
    (scan,) = report["server_scan_results"]
    if scan["scan_status"] != "COMPLETED":
        yield f"sslyze did not scan it: {scan['connectivity_error_trace'] or scan['connectivity_status']}".strip().splitlines()[-1]
        return
    results = {name: (attempt or {}).get("result") for name, attempt in scan["scan_result"].items()}
    for version in (*OLD_SUITES, "tls_1_3"):
        found = results.get(f"{version}_cipher_suites")
        if found is None:
            yield f"{version} was not tried"
            continue
        names = sorted(each["cipher_suite"]["name"] for each in found["accepted_cipher_suites"])
        if version == "tls_1_3" and not names:
            yield "TLS 1.3 is not offered"
        elif version != "tls_1_3" and names:
            yield f"{version} is offered: {', '.join(names)}"
    for (attempt, name), right in FAULTS.items():
        result = results.get(attempt)
        if result is None and attempt == EARLY_DATA:
            continue
        if result is None:
            yield f"{attempt} was not tried"
        elif result[name] != right:
            yield f"{attempt}: {name} is {result[name]}"


def judge_testssl(report: Sequence[Mapping[str, str]]) -> Iterator[str]:
    found = {each["id"]: each for each in report}
    for name in (*OLD_PROTOCOLS, *WEAK_CIPHERS):
        if name not in found:
            yield f"testssl.sh did not try {name}"
        elif not found[name]["finding"].startswith("not offered"):
            yield f"{name} is {found[name]['finding']}"
    if not found.get("TLS1_3", {"finding": ""})["finding"].startswith("offered"):
        yield "TLS 1.3 is not offered"
    for name, each in found.items():
        if each["severity"] in SERIOUS and name not in (*OLD_PROTOCOLS, *WEAK_CIPHERS, *ACCEPTED):
            yield f"{name}: {each['finding']}"
