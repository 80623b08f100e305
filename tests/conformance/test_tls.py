"""Pickers with certificates that nobody has signed, as they come by default."""

from __future__ import annotations

import grpc
import pytest
import trustme

from ballast_conformance import finding
from ballast_conformance.verdicts import Verdict
from tests.conformance.asking import PLAN, ask
from tests.conformance.pickers import ENDPOINTS, Honest, running

pytestmark = pytest.mark.rotating(4, each=True)


@pytest.fixture(scope="module")
def unknown() -> grpc.ServerCredentials:
    """Of an authority that nobody trusts, for a name that is not the address."""
    made = trustme.CA().issue_cert("inference.example")
    return grpc.ssl_server_credentials([(made.private_key_pem.bytes(), made.cert_chain_pems[0].bytes())])


async def test_tls_with_a_certificate_of_nobody_known_is_found_out(unknown: grpc.ServerCredentials) -> None:
    """Every case runs over it, that of ALPN too."""
    async with running(Honest, unknown) as picker:
        results = await ask(picker.port, ENDPOINTS)
    assert {result.verdict for result in results} == {Verdict.PASS}, results


async def test_plaintext_may_be_insisted_on(unknown: grpc.ServerCredentials) -> None:
    """A picker with TLS is not found then, and the message says why."""
    async with running(Honest, unknown) as picker:
        with pytest.raises(finding.NotFound, match=r"no HTTP/2 server at .*without TLS"):
            await finding.with_transport("127.0.0.1", picker.port, False, PLAN.timeout_s)
