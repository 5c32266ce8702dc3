"""A store behind TLS whose certificate is signed by an authority of one's own."""

import asyncio
import datetime as dt
import ipaddress
import ssl
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from azure.storage.blob import ContainerClient
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from servers.azurite import AzureServer
from servers.seaweedfs import S3Server

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import BlobMetadata
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.errors import ConfigError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

METADATA = BlobMetadata(task=None, store_name=None, payload_name="x")
ADDRESS = "127.0.0.1"
CONTENT = bytes(range(256)) * (6 << 12)
"""More than a part."""


def sign(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, issuer_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    is_authority = name == issuer
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(ADDRESS))]),
            critical=False,
        )
    )
    return builder.sign(issuer_key, hashes.SHA256())


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """The authority's certificate; beside it, key and certificate of the server that it signed."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    pem = serialization.Encoding.PEM
    (tmp_path / "server.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + sign(ADDRESS, key, "authority", authority_key).public_bytes(pem)
    )
    certificate = sign("authority", authority_key, "authority", authority_key)
    (tmp_path / "authority.pem").write_bytes(certificate.public_bytes(pem))
    return tmp_path / "authority.pem"


@asynccontextmanager
async def behind_tls(port: int, certificate: Path) -> AsyncGenerator[str]:
    """End TLS in front of a server of this machine; gives the endpoint."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    connections: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(64 << 10):
            writer.write(data)
            await writer.drain()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(ADDRESS, port)
        ways = [
            asyncio.ensure_future(carry(reader, far_writer)),
            asyncio.ensure_future(carry(far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, far_writer):
                end.transport.abort()
                with suppress(OSError):
                    await end.wait_closed()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.create_task(relay(reader, writer)))

    server = await asyncio.start_server(connected, ADDRESS, 0, ssl=context)
    try:
        yield f"https://{ADDRESS}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


def s3_settings(request: pytest.FixtureRequest, endpoint: str) -> dict[str, str]:
    return {
        "uri": f"s3://{request.getfixturevalue('s3_bucket')}/{uuid.uuid4().hex}",
        "s3.endpoint": endpoint,
        "s3.path.style": "true",
        # Over TLS the SDK sends it behind the content; SeaweedFS without users refuses that.
        "s3.checksum": "none",
    }


def azure_settings(request: pytest.FixtureRequest, endpoint: str) -> dict[str, str]:
    server: AzureServer = request.getfixturevalue("azure_server")
    container: ContainerClient = request.getfixturevalue("azure_container")
    plain = f"http://{ADDRESS}:{server.port}"
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    behind = server.connection_string.replace(plain, endpoint).replace("=http;", "=https;")
    patch.setenv("AZURE_STORAGE_CONNECTION_STRING", behind)
    return {"uri": f"az://{container.container_name}/{uuid.uuid4().hex}"}


def port_of(kind: str, request: pytest.FixtureRequest) -> int:
    server: S3Server | AzureServer = request.getfixturevalue(f"{kind}_server")
    return server.port


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("kind", "settings_of"), [("s3", s3_settings), ("azure", azure_settings)], ids=["s3", "azure"]
)
async def test_a_store_is_reached_by_its_authority_and_refused_without(
    kind: str,
    settings_of: Callable[[pytest.FixtureRequest, str], dict[str, str]],
    request: pytest.FixtureRequest,
    authority: Path,
    tmp_path: Path,
) -> None:
    executor = BoundedExecutor(4, "tls")
    async with behind_tls(port_of(kind, request), authority.with_name("server.pem")) as endpoint:
        settings = settings_of(request, endpoint) | {"part.bytes": str(5 << 20)}
        trusting = BlobBackendFactory(
            BackendName("b"), settings | {f"{kind}.ca.bundle": str(authority)}
        ).blob_store_manager(executor, SystemClock())
        await trusting.init()
        source = tmp_path / "source"
        source.write_bytes(CONTENT)
        await trusting.put("a", source, METADATA)
        assert await trusting.get("a") == CONTENT
        await trusting.close()
        other = BlobBackendFactory(BackendName("b"), settings).blob_store_manager(
            executor, SystemClock()
        )
        with pytest.raises(ConfigError, match="certificate of the object store is not trusted"):
            await other.init()
        await other.close()
    await executor.close()
