"""The ways to authenticate to Temporal Cloud, over real TLS, and the errors of wrong ones."""

import os
import re
from pathlib import Path

import httpx
import pytest
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads

from everlong.admin.web import create_admin_app, load_access
from everlong.codecs import EverlongCodec
from everlong.config import load_settings
from everlong.connection import connect
from everlong.errors import ConfigError, EverlongError, ServerUnreachable
from everlong.models.search_attributes import SEARCH_ATTRIBUTES
from everlong.storage.memory import MemoryBlobStore
from tests.support.admin_client import make_context
from tests.support.tls_server import Authority, TlsServer, run_tls_server

# The server here has an authority of its own. Temporal Cloud needs no such setting.
CA = "TEMPORAL_TLS_SERVER_CA_CERT_PATH"
CERTIFICATE, KEY = "TEMPORAL_TLS_CLIENT_CERT_PATH", "TEMPORAL_TLS_CLIENT_KEY_PATH"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("certificates")
    authority = Authority(found)
    for name in ("server", "worker"):
        authority.issue(name)
    return found


async def reach(server: TlsServer, **environment: str) -> None:
    settings = load_settings(
        {
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "TEMPORAL_ADDRESS": server.address,
            "TEMPORAL_NAMESPACE": "agents.a1b2c",
            "EVERLONG_STORE": "memory:",
            **environment,
        }
    )
    client = await connect(settings)
    assert client.namespace == "agents.a1b2c"


async def test_an_api_key_reaches_the_server_over_tls(folder: Path) -> None:
    async with run_tls_server(folder, api_key="right") as server:
        await reach(server, **{CA: str(folder / "ca.pem")}, TEMPORAL_API_KEY="right")
        assert (server.authorization, server.caller) == ("Bearer right", "")


async def test_a_client_certificate_reaches_the_server(folder: Path) -> None:
    paths = {CERTIFICATE: str(folder / "worker.pem"), KEY: str(folder / "worker.key")}
    texts = {name.replace("PATH", "DATA"): Path(path).read_text() for name, path in paths.items()}
    async with run_tls_server(folder, asks_for_certificate=True) as server:
        for given in (paths, texts):
            server.caller = ""
            await reach(server, **{CA: str(folder / "ca.pem")}, **given)
            assert (server.authorization, server.caller) == ("", "worker")


async def test_a_profile_of_the_configuration_file_reaches_the_server(
    folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "temporal.toml"
    async with run_tls_server(folder, api_key="right") as server:
        file.write_text(
            f"""
            [profile.default]
            address = "127.0.0.1:1"
            [profile.cloud]
            address = "{server.address}"
            namespace = "agents.a1b2c"
            api_key = "right"
            [profile.cloud.tls]
            server_ca_cert_path = "{folder / "ca.pem"}"
            """
        )
        settings = load_settings(
            {
                "TEMPORAL_CONFIG_FILE": str(file),
                "TEMPORAL_PROFILE": "cloud",
                "EVERLONG_STORE": "memory:",
            }
        )
        client = await connect(settings)
        assert (client.namespace, server.authorization) == ("agents.a1b2c", "Bearer right")


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"TEMPORAL_API_KEY": "f7b2"}, ServerUnreachable, "refuses these credentials"),
        ({"TEMPORAL_API_KEY": "right", CA: ""}, ServerUnreachable, f"not trusted.* {CA}"),
        ({CA: ""}, ServerUnreachable, "ended the connection.* TEMPORAL_TLS=true"),
        ({CERTIFICATE: "worker.pem"}, ConfigError, f"{CERTIFICATE} and {KEY}.* both or neither"),
        ({CERTIFICATE: "ca.pem", KEY: "ca.pem"}, ConfigError, "in PEM"),
        ({CERTIFICATE: "none.pem", KEY: "none.key"}, ConfigError, "none.pem"),
    ],
    ids=["wrong key", "unknown authority", "no TLS", "half a pair", "no key in it", "no file"],
)  # fmt: skip
async def test_the_error_names_what_the_server_refuses(
    folder: Path, given: dict[str, str], kind: type[EverlongError], text: str
) -> None:
    names = {CA: "ca.pem", **given}
    environment = {
        name: str(folder / value) if "_PATH" in name and value else value
        for name, value in names.items()
        if value
    }
    async with run_tls_server(folder, api_key="right") as server:
        with pytest.raises(kind, match=text) as caught:
            await reach(server, **environment)
    assert "f7b2" not in str(caught.value)


async def test_a_server_that_asks_for_a_certificate_ends_other_connections(folder: Path) -> None:
    async with run_tls_server(folder, asks_for_certificate=True) as server:
        with pytest.raises(ServerUnreachable, match=f"ended the connection.*{CERTIFICATE}"):
            await reach(server, **{CA: str(folder / "ca.pem")}, TEMPORAL_TLS="true")


def test_the_page_adds_the_search_attributes_that_everlong_writes() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/temporal-cloud.md").read_text()
    by_tcld = re.findall(r"--search-attribute (Everlong\w+)=(\w+)", page)
    by_terraform = re.findall(r'^ +(Everlong\w+) += "(\w+)"', page, flags=re.MULTILINE)
    assert dict(by_tcld) == dict(by_terraform) == SEARCH_ATTRIBUTES


async def test_the_cloud_ui_reaches_the_codec_server_behind_a_proxy() -> None:
    """As the page sets it up: the browser's bare preflight, then the user that the proxy has checked."""
    environment = {
        "EVERLONG_TRUST_USER_HEADER": "X-Forwarded-User",
        "EVERLONG_TRUSTED_PROXIES": "10.0.0.5",
        "EVERLONG_HOSTS": "everlong.example.org",
    }
    origin = "https://cloud.temporal.io"
    app = create_admin_app(
        make_context(), load_access(load_settings(environment)), cors_origins=[origin]
    )
    transport = httpx.ASGITransport(app, client=("10.0.0.5", 40_000))
    sent = {"origin": origin, "sec-fetch-site": "cross-site", "x-namespace": "agents.a1b2c"}
    plain = Payload(metadata={"encoding": b"json/plain"}, data=b'"' + b"hello " * 100 + b'"')
    [encoded] = await EverlongCodec(MemoryBlobStore()).encode([plain])
    assert encoded != plain
    body = json_format.MessageToJson(Payloads(payloads=[encoded]))
    async with httpx.AsyncClient(
        transport=transport, base_url="https://everlong.example.org"
    ) as browser:
        asked = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type,x-namespace",
        }
        preflight = await browser.options("/decode", headers={**sent, **asked})
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (
            200,
            origin,
        )
        sent["content-type"] = "application/json"
        refused = await browser.post("/decode", headers=sent, content=body)
        assert refused.status_code == 401
        sent["x-forwarded-user"] = "ana@example.org"
        answer = await browser.post("/decode", headers=sent, content=body)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)
    assert json_format.Parse(answer.text, Payloads()).payloads[0] == plain
