"""h2spec, the conformance tests of HTTP/2 and HPACK, against the picker's transport: all of its cases, strict ones too.

`make h2spec` builds and runs it; elsewhere it runs where it has been built.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from ballast_gateway.driver import Driver
from ballast_gateway.picker import h2_transport
from ballast_gateway.picker.exchange import ExchangeSettings
from ballast_gateway.picker.face import PickerFace
from tests.support.core_builders import director

BINARY = Path(__file__).parents[2] / ".cache/h2spec/h2spec"
CASES = 146


@pytest.mark.skipif(not BINARY.exists(), reason="no h2spec: `make h2spec` builds it with Go")
async def test_all_of_h2spec_passes() -> None:
    face = PickerFace(Driver(director(("f0",))), ExchangeSettings(max_body_bytes=1000), new_id=lambda: "id")
    server = await h2_transport.listen(face.open, host="127.0.0.1", port=0, max_message_bytes=1 << 20)
    arguments = ["-h", "127.0.0.1", "-p", str(server.port), "-o", "5", "--strict"]
    run = await asyncio.create_subprocess_exec(
        BINARY, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await run.communicate()
    await server.aclose(0)
    said = out.decode("utf-8", "replace")
    passed = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", said)
    assert passed is not None, said
    assert [int(number) for number in passed.groups()] == [CASES, CASES, 0, 0], said.partition("Failures:")[2]
