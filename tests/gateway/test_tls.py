"""TLS of the gateway's own ports: one port for both kinds of clients, rotated certificates, and who is refused."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import ValidationError

from ballast_api.errors import InvalidInput
from ballast_api.gateway_settings import TlsSettings
from ballast_gateway.tls.certificates import Certificates, PairOfFiles, Tls
from ballast_gateway.tls.listener import TlsListener
from tests.support.certificates import MountedSecret, shown_by, trusting_all
from tests.support.gateway_kit import RunningGateway, post, raw_exchange, running_gateway, until
from tests.support.h2_client import Client
from tests.support.scripted_engine import SSE_HEAD, Asked, chunk, decode_script, scripted_engine, sse_events

PATH, BODY = "/v1/completions", {"model": "tiny", "prompt": "hello", "max_tokens": 3}
PICKER_PORTS = {"extProc": 0, "grpcHealth": 0}


class Echo(asyncio.Protocol):
    """Says back what it hears, and which kind of connection it is."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        kind = b"tls " if self.transport.get_extra_info("ssl_object") else b"plain "
        self.transport.write(kind + data)


@asynccontextmanager
async def echoing(certificates: Certificates, *, required: bool = False, **bounds: Any) -> AsyncIterator[int]:
    listener = TlsListener(Echo, Tls(certificates, required), **bounds)
    await listener.listen("127.0.0.1", 0, backlog=64)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        assert not listener._newcomers


def mounted(secret: MountedSecret, *alpn: str) -> Certificates:
    files = secret.settings
    return Certificates(PairOfFiles(Path(files["certFile"]), Path(files["keyFile"])), alpn=alpn or ("h2",))


async def say(port: int, context: ssl.SSLContext | None = None, said: bytes = b"hello") -> bytes:
    """What is answered, or b"" for a connection that is closed without a word."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        async with asyncio.timeout(20):
            writer.write(said)
            return await reader.read(100)
    except ConnectionError:
        return b""
    finally:
        writer.close()


# --- the first byte ---------------------------------------------------------------------------------------------------


async def test_one_port_serves_clients_with_tls_and_without() -> None:
    """The self-signed certificate is made for the first that asks, once for all."""
    certificates = Certificates(None, alpn=["h2"])
    async with echoing(certificates) as port:
        assert await say(port) == b"plain hello"
        assert [certificates.expires_unix_s] == [None]
        assert await asyncio.gather(*(say(port, trusting_all("h2")) for _ in range(10))) == [b"tls hello"] * 10
        shown = [await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port)) for _ in range(2)]
    assert shown[0] == shown[1]
    assert certificates.expires_unix_s is not None
    assert not any(certificates.refused.values())


async def test_where_tls_is_required_a_client_without_is_closed(tmp_path: Path) -> None:
    certificates = mounted(MountedSecret(tmp_path / "secret"))
    async with echoing(certificates, required=True) as port:
        assert await say(port) == b""
        assert await say(port, trusting_all()) == b"tls hello"
    assert certificates.refused["plaintext"] == 1


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
@pytest.mark.parametrize(
    ("version", "served"),
    [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, True)],
)
async def test_tls_1_2_is_the_least(version: ssl.TLSVersion, served: bool, tmp_path: Path) -> None:
    context = trusting_all("h2")
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, version
    certificates = mounted(MountedSecret(tmp_path / "secret"))
    async with echoing(certificates) as port:
        if served:
            assert await say(port, context) == b"tls hello"
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await say(port, context)
            await until(lambda: certificates.refused["tls"] == 1)


async def test_alpn_agrees_on_http_2(tmp_path: Path) -> None:
    async with echoing(mounted(MountedSecret(tmp_path / "secret"))) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting_all("http/1.1", "h2"))
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        writer.close()


# --- slow and broken clients ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "a byte", "half a hello"])
async def test_who_is_slow_is_closed(begun: bytes, tmp_path: Path) -> None:
    certificates = mounted(MountedSecret(tmp_path / "secret"))
    async with echoing(certificates, handshake_s=0.05) as port:
        assert await say(port, said=begun) == b""
    assert certificates.refused["timeout"] == 1


@pytest.mark.parametrize("said", [b"\x16" + bytes(3000), b"\x16\x03\x01\xff\xff" + b"x" * 70_000])
async def test_what_is_no_handshake_is_closed(said: bytes, tmp_path: Path) -> None:
    """At most an alert is said."""
    certificates = mounted(MountedSecret(tmp_path / "secret"))
    async with echoing(certificates) as port:
        assert (await say(port, said=said))[:1] in {b"", b"\x15"}
        await until(lambda: certificates.refused["tls"] + certificates.refused["gone"] == 1)
        assert await say(port, trusting_all()) == b"tls hello"


async def test_who_leaves_before_a_word_costs_nothing(tmp_path: Path) -> None:
    certificates = mounted(MountedSecret(tmp_path / "secret"))
    async with echoing(certificates) as port:
        for said in (b"", b"\x16\x03\x01"):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            writer.close()
        await until(lambda: certificates.refused["gone"] + certificates.refused["tls"] == 2)


async def test_of_too_many_newcomers_the_oldest_goes(tmp_path: Path) -> None:
    """A crowd that says nothing keeps nobody out."""
    certificates = mounted(MountedSecret(tmp_path / "secret"))
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(echoing(certificates, newcomers=8))
        for _ in range(40):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
        assert await say(port, trusting_all()) == b"tls hello"
        await until(lambda: certificates.refused["crowded"] == 33)


async def test_a_closed_listener_leaves_its_connections_alone(tmp_path: Path) -> None:
    certificates = mounted(MountedSecret(tmp_path / "secret"))
    listener = TlsListener(Echo, Tls(certificates, required=False))
    await listener.listen("127.0.0.1", 0, backlog=64)
    port = listener.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting_all())
    writer.write(b"one")
    assert await reader.read(100) == b"tls one"
    listener.close()
    writer.write(b"two")
    assert await reader.read(100) == b"tls two"
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    writer.close()


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    certificates = mounted(MountedSecret(tmp_path / "secret"))
    async with echoing(certificates) as port:
        with pytest.raises(OSError, match=f"{port}.*address already in use"):
            await TlsListener(Echo, Tls(certificates, required=False)).listen("127.0.0.1", port, backlog=1)


# --- rotation ---------------------------------------------------------------------------------------------------------


async def test_a_rotated_certificate_is_for_new_connections(tmp_path: Path) -> None:
    """A connection that lives goes on with the one that it has seen."""
    secret = MountedSecret(tmp_path / "secret")
    certificates = mounted(secret)
    before = certificates.expires_unix_s
    async with echoing(certificates) as port:
        reader, kept = await asyncio.open_connection("localhost", port, ssl=secret.client(), family=2)
        new = secret.rotate()
        await until(lambda: certificates.reloads["loaded"] == 1)
        _, fresh = await asyncio.open_connection("localhost", port, ssl=secret.client(), family=2)
        assert shown_by(fresh).split() == new.split()
        assert shown_by(kept).split() != new.split()
        kept.write(b"still")
        assert await reader.read(100) == b"tls still"
        kept.close()
        fresh.close()
    assert before is not None
    assert certificates.expires_unix_s is not None


def other_key() -> bytes:
    return trustme.CA().issue_cert("x").private_key_pem.bytes()


def encrypted(key: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization

    private = serialization.load_pem_private_key(key, None)
    return private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


def of_version_2(certificate: bytes) -> bytes:
    """X.509 knows 1 and 3."""
    der = ssl.PEM_cert_to_DER_cert(certificate.decode())
    return ssl.DER_cert_to_PEM_cert(der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x01", 1)).encode()


BAD = {
    "a version that is none": lambda certificate, key: (of_version_2(certificate), key),
    "another key": lambda certificate, key: (certificate, other_key()),
    "half a key": lambda certificate, key: (certificate, key[:100]),
    "half a certificate": lambda certificate, key: (certificate[:300], key),
    "an encrypted key": lambda certificate, key: (certificate, encrypted(key)),
    "nothing": lambda certificate, key: (b"", b""),
    "no text": lambda certificate, key: (b"\xff\xfe", key),
}


@pytest.mark.parametrize("spoil", BAD.values(), ids=BAD)
async def test_a_pair_that_cannot_be_used_keeps_the_one_before(spoil: Any, tmp_path: Path) -> None:
    """Counted, and mended by the next change."""
    secret = MountedSecret(tmp_path / "secret")
    good = (tmp_path / "secret/tls.crt").read_bytes()
    certificates = mounted(secret)
    made = secret.authority.issue_cert("localhost")
    secret.mount(*spoil(made.cert_chain_pems[0].bytes(), made.private_key_pem.bytes()))
    async with echoing(certificates) as port:
        certificates.refresh()
        assert certificates.reloads == {"loaded": 0, "failed": 1}
        certificates.refresh()
        assert certificates.reloads["failed"] == 1, "it says so once"
        _, writer = await asyncio.open_connection("localhost", port, ssl=secret.client(), family=2)
        assert shown_by(writer).split() == good.split()
        writer.close()
        secret.rotate()
        certificates.refresh()
    assert certificates.reloads == {"loaded": 1, "failed": 1}


@pytest.mark.parametrize("spoil", BAD.values(), ids=BAD)
def test_a_pair_that_cannot_be_used_at_the_start_is_an_error(spoil: Any, tmp_path: Path) -> None:
    """In one line that names a file, without a question at the terminal."""
    secret = MountedSecret(tmp_path / "secret")
    made = secret.authority.issue_cert("localhost")
    secret.mount(*spoil(made.cert_chain_pems[0].bytes(), made.private_key_pem.bytes()))
    with pytest.raises(InvalidInput, match=r"tls\.(crt|key)"):
        mounted(secret)
    with pytest.raises(InvalidInput, match="No such file"):
        Certificates(PairOfFiles(tmp_path / "none", tmp_path / "none"), alpn=["h2"])


@pytest.mark.parametrize("face", ["proxy", "picker"])
def test_one_file_without_the_other_is_refused(face: str) -> None:
    with pytest.raises(ValidationError, match="set both of certFile and keyFile, or neither"):
        TlsSettings.parse({face: {"certFile": "x"}})


# --- the proxy face ---------------------------------------------------------------------------------------------------


async def metrics(gateway: RunningGateway) -> str:
    async with httpx.AsyncClient() as client:
        return (await client.get(f"{gateway.admin_url}/metrics")).text


@pytest.mark.rotating(3)
async def test_the_proxy_face_serves_https_through_rotations_under_load(tmp_path: Path) -> None:
    """Each request over a new connection that verifies, and others over kept ones: none is lost, whole or streamed."""
    secret = MountedSecret(tmp_path / "secret")
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(
            tmp_path, {"d0": engine.address}, tls={"proxy": {"mode": "Required", **secret.settings}}
        ) as gateway,
    ):
        url = f"https://localhost:{gateway.port}{PATH}"
        going, answers = True, []
        certificates = set()

        async def load(*, kept: bool) -> None:
            async with httpx.AsyncClient(verify=secret.client(), timeout=30) as client:
                while going:
                    if kept:
                        answer = await client.post(url, json=BODY | {"stream": True})
                    else:
                        async with httpx.AsyncClient(verify=secret.client(), timeout=30) as fresh:
                            answer = await fresh.post(url, json=BODY)
                            shown = answer.extensions["network_stream"].get_extra_info("ssl_object")
                            certificates.add(shown.getpeercert(binary_form=True))
                    answers.append(answer.status_code)

        async with asyncio.TaskGroup() as loads:
            for n in range(4):
                loads.create_task(load(kept=bool(n % 2)))
            for count in range(1, 4):
                await until(lambda: len(certificates) == count)  # noqa: B023
                secret.rotate()
            await until(lambda: len(certificates) == 4)
            going = False
        assert 'tls_reloads_total{face="proxy",outcome="loaded"} 3.0' in await metrics(gateway)
        assert set(answers) == {200}
        assert len(answers) >= 12
        assert 'tls_certificate_expiry_timestamp_seconds{face="proxy"}' in await metrics(gateway)
        assert await raw_exchange(gateway.port, post(PATH, BODY)) == []
        assert 'tls_refused_total{face="proxy",reason="plaintext"} 1.0' in await metrics(gateway)


async def test_a_tls_client_that_reads_nothing_is_given_up(tmp_path: Path) -> None:
    """As one without TLS: what is written waits for it, the engine is not read meanwhile, and after
    `limits.clientStallTimeoutS` both are left."""
    secret = MountedSecret(tmp_path / "secret")
    [event, *_] = sse_events(["x" * 60_000])
    written, left = 0, asyncio.Event()

    async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        try:
            writer.write(SSE_HEAD)
            while True:
                writer.write(chunk(event))
                await writer.drain()
                written += 1
        except ConnectionError:
            left.set()

    async with (
        scripted_engine(endless) as engine,
        running_gateway(
            tmp_path,
            {"d0": engine.address},
            tls={"proxy": {"mode": "Required", **secret.settings}},
            limits={"clientStallTimeoutS": 0.3},
        ) as gateway,
    ):
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=trusting_all())
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(post(PATH, BODY | {"stream": True}))
        async with asyncio.timeout(20):
            await left.wait()
        assert written < 2_000, "some 120 MB"
        await until(lambda: len(gateway.requests()) == 1)
        assert gateway.request()["outcome"] == "cancelled"
        writer.transport.abort()


async def test_the_proxy_face_is_plaintext_by_default(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}) as gateway:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await say(gateway.port, trusting_all())
        assert "ballast_gateway_tls" not in await metrics(gateway)


# --- the picker face --------------------------------------------------------------------------------------------------


async def health(channel: grpc.aio.Channel) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service="readiness"), timeout=20)
    return int(answer.status)


def secure(port: int, certificate: str) -> grpc.aio.Channel:
    """Of grpc's own runtime, which insists on ALPN and on a certificate that it is given."""
    credentials = grpc.ssl_channel_credentials(certificate.encode())
    options = [("grpc.ssl_target_name_override", "localhost")]
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options)


async def test_the_picker_speaks_tls_by_default_beside_plaintext(tmp_path: Path) -> None:
    """ext_proc and health, to grpc's runtime; a certificate that nobody has signed."""
    async with running_gateway(tmp_path, {}, face="Picker", listeners=PICKER_PORTS) as gateway:
        ports = gateway.gateway.ports
        shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", ports["grpc_health"]))
        async with secure(ports["grpc_health"], shown) as channel:
            assert await health(channel) == health_pb2.HealthCheckResponse.SERVING
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports['grpc_health']}") as channel:
            assert await health(channel) == health_pb2.HealthCheckResponse.SERVING
        async with secure(ports["ext_proc"], shown) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await health(channel)
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED, "another service than health listens there"
        assert 'tls_certificate_expiry_timestamp_seconds{face="picker"}' in await metrics(gateway)


async def test_health_answers_without_tls_where_ext_proc_does_not(tmp_path: Path) -> None:
    """Kubelets probe in plaintext."""
    async with running_gateway(
        tmp_path, {}, face="Picker", listeners=PICKER_PORTS, tls={"picker": {"mode": "Required"}}
    ) as gateway:
        ports = gateway.gateway.ports
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports['grpc_health']}") as channel:
            assert await health(channel) == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await (await Client.connect(ports["ext_proc"])).call("/nowhere", [])


async def test_plaintext_only_is_to_be_had(tmp_path: Path) -> None:
    async with running_gateway(
        tmp_path, {}, face="Picker", listeners=PICKER_PORTS, tls={"picker": {"mode": "Plaintext"}}
    ) as gateway:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await say(gateway.gateway.ports["ext_proc"], trusting_all())
