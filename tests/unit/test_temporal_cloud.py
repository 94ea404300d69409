"""The ways to authenticate to Temporal Cloud, over real TLS, and the errors of wrong ones."""

import os
import re
from pathlib import Path

import pytest

from everlong.config import load_settings
from everlong.connection import connect
from everlong.errors import ConfigError, EverlongError, ServerUnreachable
from everlong.models.search_attributes import SEARCH_ATTRIBUTES
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
