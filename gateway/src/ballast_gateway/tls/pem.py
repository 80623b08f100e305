"""Certificates as text: when one expires, and one that nobody has signed, as GIE's pickers show it by default.

Gateways do not verify the latter. `cryptography` costs 11 MB and 90 ms to import: only a gateway whose clients ask for
TLS pays that.
"""

from __future__ import annotations

import datetime
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_YEARS: Final = 10
"""As llm-d's: it lives as long as its process."""
_NAME: Final = "ballast-gateway"


def make() -> tuple[bytes, float]:
    """A certificate and its key (ECDSA, P-256) in PEM, and when it expires, in seconds since 1970."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    now = datetime.datetime.now(datetime.UTC)
    expires = now + datetime.timedelta(days=365 * _YEARS)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(expires)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME), x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return encoded + made.public_bytes(serialization.Encoding.PEM), expires.timestamp()


def expires_unix_s(pem: bytes) -> float:
    """When the first certificate in this text expires. Raises `ValueError`."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    except x509.InvalidVersion as error:
        raise ValueError(str(error)) from error


@contextmanager
def as_file(content: bytes) -> Iterator[str]:
    """The path of a file with this content for as long as it is needed, in memory where the system has such files:
    OpenSSL reads keys from files only, and a pod's disk may be read-only."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("certificate")
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name
