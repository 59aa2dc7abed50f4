"""What a scan of ports reports as wrong, from reports as the two programs write them."""

from __future__ import annotations

from typing import Any

import pytest

from verification.tls_scan.judging import OLD_PROTOCOLS, OLD_SUITES, WEAK_CIPHERS, judge_sslyze, judge_testssl


def _sslyze(**results: Any) -> dict[str, Any]:
    suites: dict[str, Any] = {f"{version}_cipher_suites": {"accepted_cipher_suites": []} for version in OLD_SUITES}
    modern = {"tls_1_3_cipher_suites": {"accepted_cipher_suites": [{"cipher_suite": {"name": "TLS_AES_128_GCM_SHA256"}}]}}
    faults = {
        "heartbleed": {"is_vulnerable_to_heartbleed": False},
        "openssl_ccs_injection": {"is_vulnerable_to_ccs_injection": False},
        "tls_compression": {"supports_compression": False},
        "session_renegotiation": {"is_vulnerable_to_client_renegotiation_dos": False},
        "tls_1_3_early_data": {"supports_early_data": False},
    }
    found = suites | modern | faults | results
    return {"server_scan_results": [{"scan_status": "COMPLETED", "scan_result": {name: {"result": each} for name, each in found.items()}}]}


def _testssl(**changed: tuple[str, str]) -> list[dict[str, str]]:
    right = dict.fromkeys((*OLD_PROTOCOLS, *WEAK_CIPHERS), ("OK", "not offered")) | {"TLS1_3": ("OK", "offered with final")}
    return [{"id": name, "severity": severity, "finding": finding} for name, (severity, finding) in (right | changed).items() if severity]


def test_a_port_of_tls_1_3_alone_is_right() -> None:
    assert [*judge_sslyze(_sslyze())] == [*judge_testssl(_testssl(cert_revocation=("HIGH", "neither CRL nor OCSP")))] == []


@pytest.mark.parametrize(
    ("results", "complaint"),
    [
        ({"tls_1_2_cipher_suites": {"accepted_cipher_suites": [{"cipher_suite": {"name": "X"}}]}}, "tls_1_2 is offered: X"),
        ({"tls_1_3_cipher_suites": {"accepted_cipher_suites": []}}, "TLS 1.3 is not offered"),
        ({"ssl_3_0_cipher_suites": None}, "ssl_3_0 was not tried"),
        ({"heartbleed": None}, "heartbleed was not tried"),
        ({"tls_1_3_early_data": {"supports_early_data": True}}, "tls_1_3_early_data: supports_early_data is True"),
    ],
)
def test_sslyze_finds(results: dict[str, Any], complaint: str) -> None:
    assert [*judge_sslyze(_sslyze(**results))] == [complaint]


def test_a_port_that_sslyze_could_not_scan_is_wrong() -> None:
    scan = {"scan_status": "ERROR_NO_CONNECTIVITY", "connectivity_error_trace": None, "connectivity_status": "ERROR"}
    assert [*judge_sslyze({"server_scan_results": [scan]})] == ["sslyze did not scan it: ERROR"]


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"TLS1_2": ("OK", "offered")}, "TLS1_2 is offered"),
        ({"TLS1_3": ("INFO", "not offered")}, "TLS 1.3 is not offered"),
        ({"cipherlist_NULL": ("", "")}, "testssl.sh did not try cipherlist_NULL"),
        ({"cipherlist_AVERAGE": ("LOW", "offered")}, "cipherlist_AVERAGE is offered"),
        ({"cert_keySize": ("HIGH", "RSA 1024 bits")}, "cert_keySize: RSA 1024 bits"),
    ],
)
def test_testssl_finds(changed: dict[str, tuple[str, str]], complaint: str) -> None:
    assert [*judge_testssl(_testssl(**changed))] == [complaint]
