"""Claims of deploy/kubernetes that can be checked without a cluster."""

import json
import os
import re
import shlex
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped] # it has no annotations
import pytest
from ruamel.yaml import YAML

from everlong import worker
from everlong.admin.web import Access, create_admin_app, load_access
from everlong.config import load_settings
from everlong.storage.buckets import parse_bucket_url
from everlong.telemetry import exporters
from everlong.telemetry.prometheus import MetricsEndpoint
from tests.support.admin_client import make_context

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/kubernetes"
PAGE = (ROOT / "docs/how-to/kubernetes.md").read_text()
SCHEMAS = json.loads((ROOT / "tests/support/kubernetes-1.30.json").read_text())
KUBECTL = shutil.which("kubectl")
Document = dict[str, Any]


def load(path: Path) -> list[Document]:
    return list(YAML(typ="safe").load_all(path))


BASE: Document = load(FOLDER / "base/kustomization.yaml")[0]
EXAMPLE: Document = load(FOLDER / "example/kustomization.yaml")[0]


def parse_literals(lines: list[str]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def build_settings() -> dict[str, str]:
    """The ConfigMap that kustomize makes from settings.env and the example."""
    [ours], [theirs] = BASE["configMapGenerator"], EXAMPLE["configMapGenerator"]
    assert (ours["name"], theirs["name"], theirs["behavior"]) == ("everlong", "everlong", "merge")
    [file] = ours["envs"]
    found = parse_literals((FOLDER / "base" / file).read_text().splitlines())
    return found | parse_literals(theirs["literals"])


SETTINGS = build_settings()
DOCUMENTS = [document for name in BASE["resources"] for document in load(FOLDER / "base" / name)]


def pick(kind: str) -> dict[str, Document]:
    return {each["metadata"]["name"]: each for each in DOCUMENTS if each["kind"] == kind}


DEPLOYMENTS = pick("Deployment")
PODS = {name: each["spec"]["template"]["spec"] for name, each in DEPLOYMENTS.items()}
CONTAINERS = {name: pod["containers"][0] for name, pod in PODS.items()}
ROLES = sorted(DEPLOYMENTS)


def validate(document: Document) -> None:
    group = document["apiVersion"].replace("/", ".").replace("networking.k8s.io", "networking")
    group = group if "." in group else f"core.{group}"
    schema = {"$ref": f"#/$defs/io.k8s.api.{group}.{document['kind']}", **SCHEMAS}
    # Not `jsonschema.validate`, which checks all schemas first: seconds a document.
    jsonschema.Draft202012Validator(schema).validate(document)
    assert "null" not in json.dumps(document), "the schema accepts null for an empty value"


def test_manifests_follow_the_strict_schema_of_kubernetes() -> None:
    assert {each["kind"] for each in DOCUMENTS} >= {"Deployment", "NetworkPolicy", "Service"}
    for document in DOCUMENTS:
        validate(document)


def test_the_schema_rejects_a_misspelt_field() -> None:
    broken = json.loads(
        json.dumps(DEPLOYMENTS["everlong-worker"]).replace("readOnlyRoot", "readOnly")
    )
    with pytest.raises(jsonschema.ValidationError, match="readOnlyFilesystem"):
        validate(broken)


def test_each_manifest_is_part_of_the_base() -> None:
    files = {path.name for path in (FOLDER / "base").glob("*.yaml")} - {"kustomization.yaml"}
    assert files == set(BASE["resources"])
    assert EXAMPLE["resources"] == ["../base"]


def build(folder: Path) -> list[Document]:
    """What kustomize makes of a folder."""
    command = [KUBECTL or "", "kustomize", str(folder)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return list(YAML(typ="safe").load_all(built))


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
def test_the_pages_patch_mounts_a_client_certificate(tmp_path: Path) -> None:
    [patch] = re.findall(r"```yaml\n(patches:.*?)```", PAGE, flags=re.DOTALL)
    base = os.path.relpath(FOLDER / "base", tmp_path)
    (tmp_path / "kustomization.yaml").write_text(f"resources: [{base}]\n{patch}")
    deployments = [each for each in build(tmp_path) if each["kind"] == "Deployment"]
    assert len(deployments) == len(ROLES)
    for each in deployments:
        validate(each)
        pod = each["spec"]["template"]["spec"]
        [container] = pod["containers"]
        given = {env["name"]: env.get("value", "") for env in container["env"]}
        [mount] = [each for each in container["volumeMounts"] if each["name"] == "tls"]
        [volume] = [each for each in pod["volumes"] if each["name"] == "tls"]
        assert volume["secret"]["secretName"] == "everlong-temporal"
        for name in ("CERT", "KEY"):
            assert Path(given[f"TEMPORAL_TLS_CLIENT_{name}_PATH"]).is_relative_to(
                mount["mountPath"]
            )


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
def test_kustomize_builds_the_example_into_valid_objects() -> None:
    documents = build(FOLDER / "example")
    assert len(documents) == len(DOCUMENTS) + 1
    [settings] = [each for each in documents if each["kind"] == "ConfigMap"]
    assert settings["data"] == SETTINGS
    for document in documents:
        validate(document)
        if document["kind"] == "Deployment":
            [container] = document["spec"]["template"]["spec"]["containers"]
            [source] = container["envFrom"]
            assert source["configMapRef"]["name"] == settings["metadata"]["name"]
            assert container["image"] == "registry.example.org/agents:2026-11-19"


def test_settings_are_ones_that_everlong_reads() -> None:
    sources = [
        (ROOT / "everlong" / name).read_text() for name in ("config.py", "worker_options.py")
    ]
    known = set(re.findall(r'"((?:EVERLONG|OTEL)_[A-Z_]+)"', "".join(sources)))
    # Read by the SDKs of Temporal, OpenTelemetry, AWS and the providers; the last by `args`.
    known |= {"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "TEMPORAL_API_KEY", "OTEL_SERVICE_NAME"}
    known |= {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"}
    known |= {"EVERLONG_AGENT"}
    for role in ROLES:
        named = {each["name"] for each in CONTAINERS[role]["env"]} | SETTINGS.keys()
        assert named <= known
    settings = load_settings(SETTINGS)
    assert settings.temporal["target_host"] == SETTINGS["TEMPORAL_ADDRESS"]
    assert parse_bucket_url(settings.store).bucket == "your-bucket"
    assert settings.metrics_anonymous
    assert settings.metrics_host == "0.0.0.0"


def secret_keys(role: str) -> dict[str, dict[str, bool]]:
    """Of each Secret that a role's container reads: its keys, and whether they are optional."""
    found: dict[str, dict[str, bool]] = {}
    for each in CONTAINERS[role]["env"]:
        if "valueFrom" in each:
            ref = each["valueFrom"]["secretKeyRef"]
            assert ref["key"] == each["name"]
            found.setdefault(ref["name"], {})[ref["key"]] = ref.get("optional", False)
    return found


def test_the_page_creates_the_secrets_that_the_manifests_read() -> None:
    created: dict[str, set[str]] = {}
    for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "create secret generic" in line:
                name = words[words.index("generic") + 1]
                literals = re.findall(r"--from-literal=(\w+)=", line)
                created.setdefault(name, set()).update(literals)
    read = [(role, name, keys) for role in ROLES for name, keys in secret_keys(role).items()]
    assert {name for _, name, _ in read} == created.keys()
    for _, name, keys in read:
        assert {key for key, optional in keys.items() if not optional} <= created[name]
        assert created[name] & keys.keys()


def test_the_admin_token_is_required_and_reaches_no_worker() -> None:
    assert secret_keys("everlong-admin")["everlong-admin"]["EVERLONG_TOKEN"] is False
    assert "everlong-admin" not in secret_keys("everlong-worker")
    assert "everlong-models" not in secret_keys("everlong-admin")
    assert "--allow-anonymous" not in CONTAINERS["everlong-admin"]["args"]
    assert not {name for name in SETTINGS if re.search("TOKEN|SECRET|PASSWORD|_KEY", name)}


def read_dockerfile(instruction: str) -> str:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    return [line for line in lines if line.startswith(f"{instruction} ")][-1].partition(" ")[2]


def test_the_containers_fit_the_image() -> None:
    assert json.loads(read_dockerfile("ENTRYPOINT")) == ["everlong"]
    user, _, group = read_dockerfile("USER").partition(":")
    for role in ROLES:
        assert "command" not in CONTAINERS[role]
        security = PODS[role]["securityContext"]
        assert (security["runAsUser"], security["runAsGroup"]) == (int(user), int(group))
    assert CONTAINERS["everlong-worker"]["args"] == ["worker", "$(EVERLONG_AGENT)"]
    assert "EVERLONG_AGENT" in SETTINGS
    assert CONTAINERS["everlong-admin"]["args"][0] == "serve"
    assert {each["name"] for each in EXAMPLE["images"]} == {CONTAINERS[r]["image"] for r in ROLES}


@pytest.mark.parametrize("role", ROLES)
def test_a_pod_is_confined(role: str) -> None:
    """What the namespace's label asks for, and a root file system that cannot be written to."""
    namespace = pick("Namespace")["everlong"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    pod, container = PODS[role], CONTAINERS[role]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["serviceAccountName"] in pick("ServiceAccount")
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
    assert container["resources"]["limits"].keys() >= {"memory", "ephemeral-storage"}


@pytest.mark.parametrize("role", ROLES)
def test_caches_and_temporary_files_have_a_bounded_place(role: str) -> None:
    volumes = {each["name"]: each["emptyDir"]["sizeLimit"] for each in PODS[role]["volumes"]}
    mounts = {each["mountPath"]: each["name"] for each in CONTAINERS[role]["volumeMounts"]}
    assert set(mounts.values()) == volumes.keys()
    assert "/tmp" in mounts
    # A folder inside of the volume: the process creates it, so it owns it.
    cache = Path(SETTINGS["EVERLONG_CACHE_DIR"])
    assert str(cache) not in mounts
    assert str(cache.parent) in mounts
    limit = CONTAINERS[role]["resources"]["limits"]["ephemeral-storage"]
    assert sum(int(each.removesuffix("Gi")) for each in volumes.values()) <= int(
        limit.removesuffix("Gi")
    )


def test_selectors_pick_the_pods_that_they_name() -> None:
    labels = {role: DEPLOYMENTS[role]["spec"]["template"]["metadata"]["labels"] for role in ROLES}

    def choose(selector: dict[str, str]) -> set[str]:
        return {role for role in ROLES if selector.items() <= labels[role].items()}

    for role in ROLES:
        assert choose(DEPLOYMENTS[role]["spec"]["selector"]["matchLabels"]) == {role}
        assert choose(pick("Service")[role]["spec"]["selector"]) == {role}
    [budget] = pick("PodDisruptionBudget").values()
    assert choose(budget["spec"]["selector"]["matchLabels"]) == {"everlong-worker"}
    assert DEPLOYMENTS["everlong-worker"]["spec"]["replicas"] > budget["spec"]["maxUnavailable"]
    policies = pick("NetworkPolicy")
    assert choose(policies["everlong"]["spec"]["podSelector"]["matchLabels"]) == set(ROLES)
    [spread] = PODS["everlong-worker"]["topologySpreadConstraints"]
    assert choose(spread["labelSelector"]["matchLabels"]) == {"everlong-worker"}


def ports(role: str) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for each in CONTAINERS[role]["ports"]}


def test_ports_are_those_on_which_the_processes_listen() -> None:
    metrics = int(SETTINGS["OTEL_EXPORTER_PROMETHEUS_PORT"])
    assert ports("everlong-worker") == {"metrics": metrics}
    [port] = [arg for arg in CONTAINERS["everlong-admin"]["args"] if arg.startswith("--port=")]
    assert ports("everlong-admin") == {"metrics": metrics, "http": int(port.partition("=")[2])}
    for role in ROLES:
        for each in pick("Service")[role]["spec"]["ports"]:
            assert ports(role)[each["targetPort"]] == each["port"]


def test_nothing_is_exposed_beyond_the_cluster() -> None:
    services = [each["spec"] for each in pick("Service").values()]
    assert all(spec.get("type", "ClusterIP") == "ClusterIP" for spec in services)
    assert "Ingress" not in {each["kind"] for each in DOCUMENTS}
    opened = {
        (port["port"], "podSelector" in source, "namespaceSelector" in source)
        for policy in pick("NetworkPolicy").values()
        for rule in policy["spec"]["ingress"]
        for port in rule["ports"]
        for source in rule["from"]
    }
    # Metrics to one namespace, the dashboard to labelled pods of this one.
    assert opened == {(9464, False, True), (8234, True, False)}


def test_processes_may_reach_what_they_need_and_no_metadata_service() -> None:
    rules = pick("NetworkPolicy")["everlong"]["spec"]["egress"]
    allowed = {port["port"] for rule in rules for port in rule["ports"]}
    temporal = int(SETTINGS["TEMPORAL_ADDRESS"].rpartition(":")[2])
    assert {53, 443, temporal} <= allowed
    assert 80 not in allowed


def probes(role: str) -> list[Document]:
    container = CONTAINERS[role]
    return [container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")]


async def test_the_admin_probes_are_answered_also_behind_a_proxy_with_single_sign_on() -> None:
    proxy = load_access(
        load_settings(
            {
                "EVERLONG_TRUST_USER_HEADER": "X-Forwarded-User",
                "EVERLONG_TRUSTED_PROXIES": "10.0.0.5",
                "EVERLONG_HOSTS": "ops.example.org",
            }
        )
    )
    token = load_access(load_settings({"EVERLONG_TOKEN": "0123456789abcdef"}))
    for access in (token, proxy):
        assert isinstance(access, Access)
        transport = httpx.ASGITransport(create_admin_app(make_context(), access))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://10.1.2.3:8234"
        ) as client:
            for probe in probes("everlong-admin"):
                get = probe["httpGet"]
                assert get["port"] == "http"
                headers = {each["name"]: each["value"] for each in get["httpHeaders"]}
                answer = await client.get(get["path"], headers=headers)
                assert answer.status_code == 200


def test_the_workers_start_and_liveness_probes_are_answered() -> None:
    endpoint = MetricsEndpoint("127.0.0.1", 0)
    try:
        base = endpoint.url.removesuffix("/metrics")
        for probe in probes("everlong-worker")[:2]:
            assert probe["httpGet"]["port"] == "metrics"
            assert httpx.get(base + probe["httpGet"]["path"]).status_code == 200
    finally:
        endpoint.close()
        endpoint.reader.shutdown()


def test_the_workers_readiness_probe_is_the_checked_one_of_the_compose_file() -> None:
    services = load(ROOT / "docker-compose.yml")[0]["services"]
    command = CONTAINERS["everlong-worker"]["readinessProbe"]["exec"]["command"]
    assert command == services["worker"]["healthcheck"]["test"][1:]


def test_kubernetes_waits_for_a_worker_that_drains() -> None:
    drain = worker._GRACE.total_seconds() + exporters._SHUTDOWN_SECONDS_MAX
    assert PODS["everlong-worker"]["terminationGracePeriodSeconds"] >= 2 * drain


def test_a_rollout_keeps_all_workers_until_the_new_one_is_connected() -> None:
    update = DEPLOYMENTS["everlong-worker"]["spec"]["strategy"]["rollingUpdate"]
    assert update == {"maxUnavailable": 0, "maxSurge": 1}


def test_prometheus_scrapes_the_services_under_the_names_of_the_alerts() -> None:
    jobs = {each["job_name"]: each for each in load(FOLDER / "prometheus.yml")[0]["scrape_configs"]}
    assert jobs.keys() == {"everlong-worker", "everlong-admin"}
    [discovery] = jobs["everlong-worker"]["dns_sd_configs"]
    suffix = f"{EXAMPLE['namespace']}.svc.cluster.local"
    assert discovery["names"] == [f"everlong-worker.{suffix}"]
    assert discovery["port"] == ports("everlong-worker")["metrics"]
    assert pick("Service")["everlong-worker"]["spec"]["clusterIP"] == "None"
    [static] = jobs["everlong-admin"]["static_configs"]
    assert static["targets"] == [f"everlong-admin.{suffix}:9464"]


def test_the_page_shows_the_example() -> None:
    example = (FOLDER / "example/kustomization.yaml").read_text()
    body = example[example.index("apiVersion") :]
    assert textwrap.indent(f"```yaml\n{body}```", "   ") in PAGE
