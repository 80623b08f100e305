"""Pickers with certificates that nobody has signed, as they come by default."""

from __future__ import annotations

import subprocess
from pathlib import Path

import grpc
import pytest

from ballast_conformance import finding
from ballast_conformance.verdicts import Verdict
from tests.conformance.asking import PLAN, ask
from tests.conformance.pickers import ENDPOINTS, Honest, running


def self_signed(folder: Path) -> grpc.ServerCredentials:
    """For a name that is not the address."""
    key, certificate = folder / "tls.key", folder / "tls.crt"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/O=Inference Ext", "-days", "1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])


async def test_tls_with_a_self_signed_certificate_is_found_out(tmp_path: Path) -> None:
    """Every case runs over it, that of ALPN too."""
    async with running(Honest, self_signed(tmp_path)) as picker:
        results = await ask(picker.port, ENDPOINTS)
    assert {result.verdict for result in results} == {Verdict.PASS}, results


async def test_plaintext_may_be_insisted_on(tmp_path: Path) -> None:
    """A picker with TLS is not found then, and the message says why."""
    async with running(Honest, self_signed(tmp_path)) as picker:
        with pytest.raises(finding.NotFound, match=r"no HTTP/2 server at .*without TLS"):
            await finding.with_transport("127.0.0.1", picker.port, False, PLAN.timeout_s)
