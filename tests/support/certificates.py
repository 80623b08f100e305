"""Certificates of an authority of the tests' own, on disk as a mounted Secret has them."""

from __future__ import annotations

import itertools
import ssl
from pathlib import Path
from typing import Any

import trustme

_NUMBERS = itertools.count()


class MountedSecret:
    """`tls.crt` and `tls.key`, which are links through `..data`: kubelet changes both at once, by a new link there."""

    def __init__(self, folder: Path, *, name: str = "localhost") -> None:
        self.authority = trustme.CA()
        self._folder = folder
        self._name = name
        folder.mkdir(exist_ok=True)
        self.rotate()
        for file in ("tls.crt", "tls.key"):
            (folder / file).symlink_to(Path("..data") / file)

    @property
    def settings(self) -> dict[str, str]:
        return {"certFile": str(self._folder / "tls.crt"), "keyFile": str(self._folder / "tls.key")}

    def rotate(self) -> bytes:
        """A new certificate of the same authority; returns it, in PEM."""
        made = self.authority.issue_cert(self._name, "127.0.0.1")
        certificate = made.cert_chain_pems[0].bytes()
        self.mount(certificate, made.private_key_pem.bytes())
        return certificate

    def mount(self, certificate: bytes, key: bytes) -> None:
        version = self._folder / f"..{next(_NUMBERS)}"
        version.mkdir()
        (version / "tls.crt").write_bytes(certificate)
        (version / "tls.key").write_bytes(key)
        new = self._folder / "..data_new"
        new.symlink_to(version.name)
        new.replace(self._folder / "..data")

    def client(self) -> ssl.SSLContext:
        """Of one who trusts this authority."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context


def trusting_all(*alpn: str) -> ssl.SSLContext:
    """A client that does not look at certificates, as Envoy by default."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def shown_by(writer: Any) -> bytes:
    """The certificate that a server has shown on this connection, in PEM with \\n at its end."""
    found: ssl.SSLObject = writer.get_extra_info("ssl_object")
    der = found.getpeercert(binary_form=True)
    assert der is not None
    return ssl.DER_cert_to_PEM_cert(der).encode()
