"""Claims of docker-compose.yml and deploy/ that can be checked without a container engine."""

import os
import re
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from ruamel.yaml import YAML

from everlong.models.search_attributes import SEARCH_ATTRIBUTES
from everlong.storage.buckets import parse_bucket_url

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DEPLOY = ROOT / "deploy"

# These projects number their releases with two parts; everyone else's exact version has three.
TWO_PART_VERSIONS = {"postgres", "chrislusf/seaweedfs"}
NO_HEALTH_CHECK = {"otel-collector": "One binary on an empty file system, without a client mode."}
SECRET = re.compile(r"PASSWORD|PWD|SECRET|ACCESS_KEY|TOKEN")


def load(path: Path) -> Any:
    return YAML(typ="safe").load(path)


COMPOSE_DOC: dict[str, Any] = load(COMPOSE)
SERVICES: dict[str, dict[str, Any]] = COMPOSE_DOC["services"]
JOBS = {name for name, service in SERVICES.items() if service["restart"] == "no"}
LONG_RUNNING = sorted(SERVICES.keys() - JOBS)


def variables() -> list[tuple[str, str]]:
    """Each `${NAME…}` in the file, with what stands after the name."""
    return re.findall(r"\$\{(\w+)([^}]*)\}", COMPOSE.read_text(encoding="utf-8"))


def mounts() -> list[str]:
    """Return the mounts of all services: a path that starts with `./`, or a volume's name."""
    entries = [entry for service in SERVICES.values() for entry in service.get("volumes", [])]
    return [entry.split(":")[0] for entry in entries]


def strings(node: Any) -> list[str]:
    """Every string value below a node of a YAML document."""
    if isinstance(node, dict):
        return [text for value in node.values() for text in strings(value)]
    if isinstance(node, list):
        return [text for value in node for text in strings(value)]
    return [node] if isinstance(node, str) else []


def test_the_file_follows_the_compose_specification() -> None:
    schema = ["--builtin-schema", "vendor.compose-spec"]
    command = [sys.executable, "-m", "check_jsonschema", *schema, str(COMPOSE)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_pulled_image_has_an_exact_version() -> None:
    for name, service in SERVICES.items():
        if "build" in service:
            continue
        image, _, tag = service["image"].rpartition(":")
        parts = 2 if image in TWO_PART_VERSIONS else 3
        assert re.fullmatch(rf"v?\d+(\.\d+){{{parts - 1}}}", tag), f"{name}: {service['image']}"


def test_the_server_and_its_tools_have_one_version() -> None:
    tags = {s["image"].split(":")[1] for s in SERVICES.values() if "temporalio" in s["image"]}
    tags -= {SERVICES["temporal-ui"]["image"].split(":")[1]}
    assert len(tags) == 1, tags


def test_every_published_port_is_on_loopback() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in published), published


def test_no_secret_has_a_default() -> None:
    for name, rest in variables():
        assert not SECRET.search(name) or re.match(r":\?.+deploy/env\.example", rest), name
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            assert not SECRET.search(name) or re.fullmatch(r"\$\{\w+:\?[^}]+\}", value), name


def test_the_example_lists_exactly_the_required_variables_and_no_values() -> None:
    lines = (DEPLOY / "env.example").read_text(encoding="utf-8").splitlines()
    assignments = [line for line in lines if line and not line.startswith("#")]
    required = {name for name, rest in variables() if rest.startswith(":?")}
    assert sorted(assignments) == sorted(f"{name}=" for name in required)


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_a_long_running_service_restarts_and_is_checked(name: str) -> None:
    assert SERVICES[name]["restart"] == "unless-stopped"
    assert ("healthcheck" in SERVICES[name]) != (name in NO_HEALTH_CHECK)


def test_a_dependency_waits_for_a_reachable_state() -> None:
    for service in SERVICES.values():
        for name, depends in service.get("depends_on", {}).items():
            if name in JOBS:
                assert depends["condition"] == "service_completed_successfully"
            elif name in NO_HEALTH_CHECK:
                assert depends["condition"] == "service_started"
            else:
                assert depends["condition"] == "service_healthy"


def test_every_mounted_file_exists_and_every_volume_is_declared() -> None:
    for source in mounts():
        if source.startswith("./"):
            assert (ROOT / source).exists(), source
        else:
            assert source in COMPOSE_DOC["volumes"], source


def test_our_own_containers_are_confined() -> None:
    for name in ("worker", "admin"):
        service = SERVICES[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
    assert all("no-new-privileges:true" in s["security_opt"] for s in SERVICES.values())


def test_the_dashboard_requires_a_token() -> None:
    admin = SERVICES["admin"]
    assert "--allow-anonymous" not in admin["command"]
    assert admin["environment"]["EVERLONG_TOKEN"].startswith("${EVERLONG_TOKEN:?")
    # The Temporal UI has no token of ours: it sends the cookie of a session.
    ui = SERVICES["temporal-ui"]["environment"]
    assert ui["TEMPORAL_CODEC_INCLUDE_CREDENTIALS"] == "true"
    assert f"--cors-origin={ui['TEMPORAL_CORS_ORIGINS']}" in admin["command"]


def test_only_worker_and_admin_reach_the_store() -> None:
    store = SERVICES["seaweedfs"]
    for name in ("worker", "admin"):
        service = SERVICES[name]
        place = parse_bucket_url(service["environment"]["EVERLONG_STORE"])
        endpoint = urlsplit(place.options["endpoint"])
        assert (endpoint.hostname, place.bucket) == ("seaweedfs", store["environment"]["S3_BUCKET"])
        assert store["ports"] == [f"127.0.0.1:{endpoint.port}:{endpoint.port}"]
        for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            assert service["environment"][key] == store["environment"][key]
        assert service["depends_on"]["seaweedfs"]
    users = {name for name, service in SERVICES.items() if "storage" in service.get("networks", [])}
    assert users == {"worker", "admin", "seaweedfs"}
    assert store["networks"] == ["storage"]


def test_every_config_file_is_mounted_and_parses() -> None:
    mounted = [ROOT / source for source in mounts()]
    configs = [path for pattern in ("*.yaml", "*.yml") for path in DEPLOY.rglob(pattern)]
    configs = [path for path in configs if DEPLOY / "kubernetes" not in path.parents]
    assert configs
    for path in configs:
        assert isinstance(load(path), dict), path
        used = path in mounted or path.parent in mounted
        assert used != path.name.endswith(".test.yml"), path


def find_target(service: str, source: str) -> str:
    """Where a service finds a file or a folder of the host, which it may not write to."""
    [entry] = [entry for entry in SERVICES[service]["volumes"] if entry.startswith(f"{source}:")]
    _, target, mode = entry.split(":")
    assert mode == "ro"
    return str(target)


def test_prometheus_and_grafana_find_their_rules_and_dashboards() -> None:
    config = find_target("prometheus", "./deploy/prometheus.yml")
    [rules] = load(DEPLOY / "prometheus.yml")["rule_files"]
    assert find_target("prometheus", f"./deploy/{rules}") == str(Path(config).with_name(rules))
    [provider] = load(DEPLOY / "grafana/provisioning/dashboards/everlong.yaml")["providers"]
    assert provider["options"]["path"] == find_target("grafana", "./deploy/grafana/dashboards")
    for kind in ("dashboards", "datasources"):
        source = f"./deploy/grafana/provisioning/{kind}"
        assert find_target("grafana", source) == f"/etc/grafana/provisioning/{kind}"


def test_worker_and_admin_are_scraped_only_from_inside() -> None:
    jobs = {job["job_name"]: job for job in load(DEPLOY / "prometheus.yml")["scrape_configs"]}
    for name in ("worker", "admin"):
        environment = SERVICES[name]["environment"]
        assert environment["OTEL_METRICS_EXPORTER"] == "prometheus"
        assert environment["OTEL_EXPORTER_PROMETHEUS_HOST"] == "0.0.0.0"
        assert environment["EVERLONG_METRICS_ANONYMOUS"] == "1"
        port = environment["OTEL_EXPORTER_PROMETHEUS_PORT"]
        assert strings(jobs[f"everlong-{name}"]["static_configs"]) == [f"{name}:{port}"]
        published = SERVICES[name].get("ports", [])
        assert not any(entry.endswith(f":{port}") for entry in published)


def test_configs_name_services_that_exist() -> None:
    scraped = strings(load(DEPLOY / "prometheus.yml")["scrape_configs"])
    addresses = [text for text in scraped if re.fullmatch(r"[\w.-]+:\d+", text)]
    exporters = load(DEPLOY / "otel-collector.yaml")["exporters"]
    addresses += [text for text in strings(exporters) if not text.startswith("0.0.0.0:")]
    for path in (DEPLOY / "grafana/provisioning/datasources").iterdir():
        addresses += [source["url"] for source in load(path)["datasources"]]
    hosts = {address.removeprefix("http://").split(":")[0] for address in addresses}
    assert {"temporal", "jaeger", "prometheus", "otel-collector"} <= hosts <= SERVICES.keys()


def test_the_collectors_pipelines_use_defined_components() -> None:
    config = load(DEPLOY / "otel-collector.yaml")
    for pipeline in config["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) <= config[kind].keys()


def run_with_stub(script: str, tool: str, tmp_path: Path) -> list[list[str]]:
    """Run a script of deploy/ with a stand-in for the tool it calls; the calls that it made."""
    log = tmp_path / "calls"
    stub = tmp_path / tool
    stub.write_text(f'#!/bin/sh\necho "$@" >> {log}\n', encoding="utf-8")
    stub.chmod(0o755)
    settings = {"TEMPORAL_NAMESPACE": "default", "SQL_HOST": "postgres", "SQL_USER": "temporal"}
    environment = {"PATH": f"{tmp_path}:{os.defpath}", **settings}
    subprocess.run(["sh", str(DEPLOY / script)], env=environment, check=True, timeout=20)
    return [line.split() for line in log.read_text(encoding="utf-8").splitlines()]


def test_the_setup_job_registers_the_search_attributes_that_everlong_writes(tmp_path: Path) -> None:
    calls = run_with_stub("temporal-setup.sh", "temporal", tmp_path)
    call = [word for each in calls if each[1:3] == ["search-attribute", "create"] for word in each]
    names = [value for flag, value in pairwise(call) if flag == "--name"]
    types = [value for flag, value in pairwise(call) if flag == "--type"]
    assert dict(zip(names, types, strict=True)) == SEARCH_ATTRIBUTES


def test_the_schema_job_prepares_both_databases_in_order(tmp_path: Path) -> None:
    calls = run_with_stub("temporal-schema.sh", "temporal-sql-tool", tmp_path)
    steps = [(call[call.index("--db") + 1], call[call.index("--db") + 2]) for call in calls]
    order = ["create", "setup-schema", "update-schema"]
    assert steps == [(db, step) for db in ("temporal", "temporal_visibility") for step in order]


@pytest.mark.skipif(not Path("/proc/net/tcp6").exists(), reason="needs Linux, like the image")
def test_the_workers_health_check_detects_a_lost_connection() -> None:
    code = SERVICES["worker"]["healthcheck"]["test"][-1]

    def healthy(address: str) -> bool:
        command, environment = [sys.executable, "-c", code], {"TEMPORAL_ADDRESS": address}
        return subprocess.run(command, env=environment, check=False).returncode == 0

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert not healthy(address)
        with socket.create_connection(server.getsockname()):
            assert healthy(address)
