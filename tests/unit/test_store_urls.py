"""URLs of buckets: what they may say, what is refused, and that nothing of a query is repeated."""

import subprocess
import sys
from pathlib import Path

import botocore.session
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.errors import ConfigError, UnknownStoreScheme
from everlong.storage import open_store
from everlong.storage.aws import build_s3_config
from everlong.storage.buckets import OPTIONS, parse_bucket_url

HIDDEN = "hunter2"


@pytest.fixture(autouse=True)
def no_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove AWS credentials and endpoints from the environment, and disable the metadata service."""
    names = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "DEFAULT_REGION")
    for name in (*names, "ENDPOINT_URL", "ENDPOINT_URL_S3", "CA_BUNDLE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("CONFIG_FILE", "SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(f"AWS_{name}", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def load_config(url: str) -> dict[str, object]:
    return dict(build_s3_config(parse_bucket_url(url), botocore.session.Session()))


@pytest.mark.guarantee(19)
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3:bucket/prefix", "names no bucket"),
        ("s3://host:9000/bucket", "a host and port go into endpoint="),
        ("s3://b/x", "names no bucket"),
        ("s3://bu cket/x", "names no bucket"),
        (f"s3://key:{HIDDEN}@bucket/x", "credentials"),
        (f"s3://{HIDDEN}@bucket/x", "credentials"),
        (f"s3://bucket/x?secret_access_key={HIDDEN}", "AWS_SECRET_ACCESS_KEY"),
        (f"s3://bucket/x?access_key_id={HIDDEN}", "credentials"),
        (f"s3://bucket/x?token={HIDDEN}", "credentials"),
        (f"s3://bucket/x?X-Amz-Signature={HIDDEN}", "credentials"),
        (f"s3://bucket/x?endpoint=https://key:{HIDDEN}@host", "credentials"),
        (f"gs://bucket/x?service_account_key={HIDDEN}", "GOOGLE_APPLICATION_CREDENTIALS"),
        (f"az://bucket/x?sas_token={HIDDEN}", "AZURE_STORAGE_ACCOUNT_KEY"),
        (f"s3://bucket/x?colour={HIDDEN}", "It knows: endpoint, region, path_style, profile"),
        (f"gs://bucket/x?region={HIDDEN}", "gs:// does not know. It knows: endpoint, service_acc"),
        (f"az://bucket/x?{HIDDEN}", "cannot be read"),
        (f"s3://bucket/x?endpoint={HIDDEN}", "not a URL"),
        (f"s3://bucket/x?endpoint=ftp://{HIDDEN}", "not a URL"),
        (f"s3://bucket/x?endpoint=http://{HIDDEN}:port", "not a URL"),
        (f"s3://bucket/x?endpoint=http://[{HIDDEN}", "not a URL"),
        (f"s3://bucket/x?endpoint=http://h/?a={HIDDEN}", "not a URL"),
        (f"s3://bucket/x?region={HIDDEN}&region=b", "given twice"),
        ("s3://bucket/x?region=", "is empty"),
        (f"s3://bucket/x#{HIDDEN}", "'#'"),
        ("s3://bucket/a/../b", "prefix"),
        ("s3://bucket/.a", "prefix"),
        ("s3://bucket/a b", "prefix"),
        ("s3://bucket/a//b", "prefix"),
        (f"s3://bucket/{'a/' * 256}b", "prefix"),
        (f"s3://bucket/{'a' * 512}", "too long: 511 characters"),
        (f"s3://[{HIDDEN}", "cannot be read"),
    ],
)
def test_an_invalid_url_is_refused_without_quoting_its_query(url: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        open_store(url)
    assert message in str(raised.value)
    assert HIDDEN not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


@pytest.mark.guarantee(19)
@given(st.text(max_size=60))
def test_no_error_quotes_a_query(query: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_bucket_url(f"s3://bucket/prefix?colour=HIDDEN&{query}")
    assert "HIDDEN" not in str(raised.value)


@pytest.mark.parametrize("url", ["s3a://bucket/x", "minio://bucket", "wasb://x"])
def test_the_error_for_an_unknown_scheme_lists_the_known_ones(url: str) -> None:
    with pytest.raises(UnknownStoreScheme) as raised:
        open_store(url)
    for form in ("file:///", "s3://", "gs://", "az://", "memory:"):
        assert form in str(raised.value)


def test_a_url_is_parsed_and_shown_without_its_query() -> None:
    place = parse_bucket_url("s3://my.bucket/a/b/?endpoint=http%3A%2F%2Flocalhost%3A1&region=x")
    assert (place.bucket, place.prefix, place.options["endpoint"]) == (
        "my.bucket",
        "a/b",
        "http://localhost:1",
    )
    assert str(place) == "s3://my.bucket/a/b"
    assert "localhost" not in repr(place)
    assert str(parse_bucket_url("gs://bucket")) == "gs://bucket"
    assert parse_bucket_url(f"s3://bucket/{'a' * 511}").prefix == "a" * 511


def test_every_scheme_knows_an_endpoint() -> None:
    assert all("endpoint" in names for names in OPTIONS.values())


def test_an_endpoint_is_addressed_by_path_and_aws_by_host() -> None:
    config = load_config("s3://bucket/x?endpoint=http://host:9000/")
    assert config["endpoint"] == config["aws_endpoint_url_s3"] == "http://host:9000"
    assert (config["virtual_hosted_style_request"], config["region"]) == (False, "us-east-1")
    config = load_config("s3://bucket/x?endpoint=https://host&path_style=false&region=r1")
    assert config["endpoint"] == "https://bucket.host"
    assert (config["virtual_hosted_style_request"], config["region"]) == (True, "r1")
    config = load_config("s3://bucket/x?region=eu-west-1")
    assert config["endpoint"] == "https://bucket.s3.eu-west-1.amazonaws.com"
    config = load_config("s3://bucket/x?region=cn-north-1")
    assert config["endpoint"] == "https://bucket.s3.cn-north-1.amazonaws.com.cn"
    config = load_config("s3://my.bucket/x?region=eu-west-1")
    assert config["endpoint"] == "https://s3.eu-west-1.amazonaws.com"
    with pytest.raises(ConfigError, match="path_style of s3://bucket/x is neither true nor false"):
        load_config("s3://bucket/x?endpoint=http://h&path_style=perhaps")


def test_further_options_reach_obstore() -> None:
    config = load_config("s3://bucket/x?endpoint=http://h&server_side_encryption=aws:kms")
    assert config["server_side_encryption"] == "aws:kms"


def test_an_endpoint_of_the_environment_is_used_unless_it_is_plain_http(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://minio.example")
    assert load_config("s3://bucket/x")["endpoint"] == "https://minio.example"
    assert load_config("s3://bucket/x?endpoint=http://h")["endpoint"] == "http://h"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://minio.example")
    with pytest.raises(ConfigError, match="plain http"):
        load_config("s3://bucket/x")


def test_values_that_a_client_refuses_are_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", HIDDEN)
    for query in (f"checksum_algorithm={HIDDEN}", f"disable_bulk_delete={HIDDEN}"):
        with pytest.raises(ConfigError, match="cannot be set up") as raised:
            open_store(f"s3://bucket/x?endpoint=http://127.0.0.1:1&{query}")
        assert HIDDEN not in str(raised.value)


def test_missing_or_incomplete_credentials_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = "s3://bucket/x?endpoint=http://127.0.0.1:1"
    with pytest.raises(ConfigError, match="there are no AWS credentials for s3://bucket/x"):
        open_store(url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    with pytest.raises(ConfigError, match="are not complete"):
        open_store(url)
    with pytest.raises(ConfigError, match="profile for s3://bucket/x is not in the AWS config"):
        open_store(f"{url}&profile={HIDDEN}")


# Each opens a store, or does all but ask a bucket whether it is there.
STORES = {
    "no store": "",
    "memory": "everlong.EverlongPlugin(store='memory:')",
    "file": """
plugin = everlong.EverlongPlugin(store=pathlib.Path(folder).as_uri())
store = everlong.open_store(pathlib.Path(folder).as_uri())
asyncio.run(store.put("key", b"bytes"))
assert asyncio.run(store.get("key")) == b"bytes"
""",
    "other clouds": "import everlong.storage.buckets",
}


@pytest.mark.parametrize("name", STORES)
def test_only_a_store_on_s3_imports_botocore(name: str, tmp_path: Path) -> None:
    vendors = {"boto3", "botocore"} if name == "other clouds" else {"boto3", "botocore", "obstore"}
    assert list_imports(STORES[name], tmp_path, vendors) == []


def test_a_store_on_s3_imports_botocore_and_not_boto3(tmp_path: Path) -> None:
    code = "import everlong.storage.aws"
    assert list_imports(code, tmp_path, {"boto3", "botocore"}) == ["botocore"]


def list_imports(code: str, folder: Path, names: set[str]) -> list[str]:
    """Return which of these packages a new process has imported after some code."""
    lines = [
        f"import asyncio, pathlib, sys, everlong; folder = {str(folder)!r}",
        code,
        f"print(*sorted({names} & set(sys.modules)))",
    ]
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
