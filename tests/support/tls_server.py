"""A server that stands for Temporal Cloud's frontend: TLS, client certificates or API keys, one method.

It speaks real gRPC over real TLS, so a client that connects has sent what Temporal Cloud asks for.
"""

import contextlib
import dataclasses
import datetime
import ipaddress
from collections.abc import AsyncIterator
from pathlib import Path

import grpc  # type: ignore[import-untyped] # it has no types
import grpc.aio  # type: ignore[import-untyped] # the same
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from temporalio.api.workflowservice.v1 import GetSystemInfoResponse

_SERVICE = "temporal.api.workflowservice.v1.WorkflowService"


class Authority:
    """A certificate authority that writes into a folder: `ca.pem`, `NAME.pem`, `NAME.key`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name.from_rfc4514_string("CN=test authority")
        certificate = self._sign(self._name, self._key, is_authority=True)
        (folder / "ca.pem").write_bytes(certificate)

    def issue(self, name: str) -> None:
        """Write a certificate and its key; it is valid for 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name.from_rfc4514_string(f"CN={name}")
        (self._folder / f"{name}.pem").write_bytes(self._sign(subject, key))
        (self._folder / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool = False
    ) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        )
        return built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@dataclasses.dataclass
class TlsServer:
    """A running server and what its last caller has shown."""

    address: str
    caller: str = ""
    """Common name of the client's certificate; empty if it had none."""
    authorization: str = ""
    namespace: str = ""


@contextlib.asynccontextmanager
async def run_tls_server(
    folder: Path, *, asks_for_certificate: bool = False, api_key: str = ""
) -> AsyncIterator[TlsServer]:
    """Run the server on a free port, with `server.pem` of the folder. It may require an API key."""
    found = TlsServer("")

    async def get_system_info(
        request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        sent = {key: str(value) for key, value in context.invocation_metadata() or ()}
        names = context.auth_context().get("x509_common_name", [b""])
        found.caller = next(iter(names)).decode()
        found.authorization = sent.get("authorization", "")
        found.namespace = sent.get("temporal-namespace", "")
        if api_key and found.authorization != f"Bearer {api_key}":
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "Request unauthorized.")
        return GetSystemInfoResponse().SerializeToString()

    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(get_system_info)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(_SERVICE, {"GetSystemInfo": method}),)
    )
    credentials = grpc.ssl_server_credentials(
        [((folder / "server.key").read_bytes(), (folder / "server.pem").read_bytes())],
        root_certificates=(folder / "ca.pem").read_bytes(),
        require_client_auth=asks_for_certificate,
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    found.address = f"127.0.0.1:{port}"
    await server.start()
    try:
        yield found
    finally:
        await server.stop(None)
