from pathlib import Path

import pytest

from everlong import limits
from everlong.config import (
    build_embedded_environment,
    build_server_environment,
    load_settings,
    point_to_embedded,
    require_deployment,
    require_store,
)
from everlong.errors import ConfigError
from everlong.worker import _make_deployment


@pytest.mark.guarantee(90)
def test_without_settings_everything_has_a_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings({"TEMPORAL_CONFIG_FILE": "/dev/null"})
    assert settings.temporal["target_host"] == "127.0.0.1:7233"
    assert settings.store == ""
    with pytest.raises(ConfigError, match="EVERLONG_STORE"):
        require_store(settings)
    (tmp_path / ".everlong/dev/blobs").mkdir(parents=True)
    found = load_settings({"TEMPORAL_CONFIG_FILE": "/dev/null"})
    assert require_store(found) == (tmp_path / ".everlong/dev/blobs").as_uri()
    assert settings.task_queue == "everlong"
    assert settings.inline_bytes_max == limits.INLINE_BYTES_MAX
    assert settings.traces_exporter == "none"


def test_settings_come_from_the_environment() -> None:
    settings = load_settings(
        {
            "TEMPORAL_ADDRESS": "temporal:7233",
            "TEMPORAL_NAMESPACE": "agents",
            "EVERLONG_STORE": "memory:",
            "EVERLONG_TASK_QUEUE": "q",
            "EVERLONG_INLINE_BYTES_MAX": "0",
            "OTEL_TRACES_EXPORTER": "otlp",
        }
    )
    assert settings.temporal["target_host"] == "temporal:7233"
    assert settings.temporal["namespace"] == "agents"
    assert (settings.store, settings.task_queue) == ("memory:", "q")
    assert (settings.inline_bytes_max, settings.traces_exporter) == (0, "otlp")


@pytest.mark.parametrize("value", ["-1", "many", "1.5"])
def test_a_bad_number_names_its_variable(value: str) -> None:
    with pytest.raises(ConfigError, match="EVERLONG_INLINE_BYTES_MAX is"):
        load_settings({"EVERLONG_INLINE_BYTES_MAX": value})


def test_a_broken_temporal_config_file_is_a_clear_error(tmp_path: Path) -> None:
    broken = tmp_path / "temporal.toml"
    broken.write_text("this is = not [ toml")
    with pytest.raises(ConfigError, match="Temporal connection settings"):
        load_settings({"TEMPORAL_CONFIG_FILE": str(broken)})


def test_a_worker_has_a_version_only_if_the_environment_names_one() -> None:
    assert _make_deployment(load_settings({})) is None
    found = _make_deployment(
        load_settings({"EVERLONG_DEPLOYMENT": "ops", "EVERLONG_BUILD_ID": "2.1"})
    )
    assert found is not None
    assert found.use_worker_versioning
    assert found.version.to_canonical_string() == "ops.2.1"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"EVERLONG_DEPLOYMENT": "ops"}, "EVERLONG_BUILD_ID is not set"),
        ({"EVERLONG_BUILD_ID": "2"}, "EVERLONG_DEPLOYMENT is not set"),
        ({"EVERLONG_DEPLOYMENT": "o.ps", "EVERLONG_BUILD_ID": "2"}, "cannot have a dot"),
    ],
)
def test_half_a_version_is_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        require_deployment(load_settings(environment))


@pytest.mark.guarantee(23)
def test_secrets_are_not_printed() -> None:
    settings = load_settings({"EVERLONG_TOKEN": "hunter2", "TEMPORAL_API_KEY": "hunter3"})
    assert settings.token == "hunter2"
    assert "hunter" not in repr(settings)


def test_the_embedded_stack_ignores_the_users_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_API_KEY", "for another server")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "prod")
    monkeypatch.setenv("TEMPORAL_TLS", "true")
    settings = point_to_embedded(
        load_settings({"EVERLONG_DATA_DIR": str(tmp_path)}), "127.0.0.1:1234"
    )
    environment = build_embedded_environment(settings)
    assert "TEMPORAL_API_KEY" not in environment
    child = load_settings(environment)
    assert child.temporal["target_host"] == "127.0.0.1:1234"
    assert child.temporal["namespace"] == "default"
    assert not child.temporal.get("tls")
    assert child.store == settings.store == (tmp_path / "blobs").as_uri()


def test_the_embedded_server_does_not_get_the_exporters_of_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server ends at `OTEL_TRACES_EXPORTER=console`, which the workers know."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("TEMPORAL_ADDRESS", "elsewhere:7233")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    environment = build_server_environment()
    assert environment["HTTPS_PROXY"] == "http://proxy:3128"
    assert not {key for key in environment if key.startswith("OTEL_")}
    assert "TEMPORAL_ADDRESS" not in environment
