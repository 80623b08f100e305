"""`ballast` with grpc.aio under its picker face: what the gateway's own transport is measured against."""

from __future__ import annotations

from functools import partial

from ballast_cli.main import app
from ballast_gateway import picker
from tests.support import grpc_transport

if __name__ == "__main__":
    picker.serve = partial(picker.serve, listen=grpc_transport.listen)
    app()
