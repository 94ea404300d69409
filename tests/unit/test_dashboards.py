"""The dashboard, the alerts and the pages about them name what there is, and all of it."""

import inspect
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter import prometheus
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry
from ruamel.yaml import YAML

from everlong.models.search_attributes import SEARCH_ATTRIBUTES
from everlong.telemetry import spans
from everlong.telemetry.metrics import METRICS, Meters, Metric
from tests.support.prometheus_names import CORE, base_name, series_labels, series_names

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OPERATIONS = (ROOT / "docs/how-to/operate.md").read_text()
OBSERVE = (ROOT / "docs/how-to/observe.md").read_text()
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards/everlong.json").read_text())

# Metrics that no panel shows, each with the reason.
NOT_SHOWN: dict[str, str] = {}
# The labels that Prometheus adds to each series of a target, and `le` of buckets.
SCRAPED = {"instance", "job", "le"}
UNITS = {
    *("s", "bytes", "binBps", "percentunit", "short", "cpm", "ops", "currencyUSD"),
}
PROMTOOL = shutil.which("promtool")


def rules() -> list[dict[str, Any]]:
    document = YAML(typ="safe").load(DEPLOY / "prometheus-rules.yml")
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def panel_queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def queries() -> list[str]:
    variables = [each["query"] for each in DASHBOARD["templating"]["list"]]
    asked = [each["query"] for each in variables if isinstance(each, dict)]
    return [*panel_queries(), *asked, *(rule["expr"] for rule in rules())]


def list_names(query: str) -> set[str]:
    """The metrics of a query: what is left without selectors and lists of labels."""
    bare = re.sub(r"\{[^}]*\}|\b(?:by|on)\s*\([^)]*\)", "", query)
    return set(re.findall(r"\b(?:everlong|gen_ai|temporal)_\w+|\bup\b", bare))


def list_labels(query: str) -> set[str]:
    listed = re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", query)
    selected = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query)
    asked = re.findall(r"label_values\(\w+, (\w+)\)", query)
    return {*re.findall(r"\w+", " ".join(listed)), *selected, *asked}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_our_names_are_those_of_the_real_exporter(
    metric: Metric, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()
    options: dict[str, Any] = {"disable_target_info": True}
    if "registry" in inspect.signature(PrometheusMetricReader).parameters:
        options["registry"] = registry
    else:  # Before 0.63b0 a reader uses its module's registry.
        monkeypatch.setattr(prometheus, "REGISTRY", registry)
    provider = MeterProvider([PrometheusMetricReader(**options)])
    meters = Meters(provider.get_meter("test"))
    labels = dict.fromkeys(metric.labels, "x")
    match metric.kind:
        case "histogram":
            meters.record(metric.name, 1, labels)
        case "counter":
            meters.add(metric.name, 1, labels)
        case _:
            meters.observe(metric.name, lambda: [(1, labels)])
    samples = [sample for family in registry.collect() for sample in family.samples]
    provider.shutdown()
    assert {sample.name for sample in samples} == series_names(metric)
    for sample in samples:
        expected = series_labels()[sample.name]
        found = {label for label in sample.labels if not label.startswith("otel_scope_")}
        assert found - SCRAPED == expected


@pytest.mark.guarantee(82)
def test_every_query_names_existing_metrics_and_labels() -> None:
    known = series_labels() | {"up": set()}
    for query in queries():
        names = list_names(query)
        assert names, query
        assert names <= known.keys(), names - known.keys()
        labels = SCRAPED.union(*(known[name] for name in names))
        assert list_labels(query) <= labels, query


def test_every_metric_of_core_that_is_listed_is_used() -> None:
    assert CORE.keys() <= set().union(*map(list_names, queries()))


def test_every_metric_has_a_panel_or_a_reason_why_not() -> None:
    shown = set().union(*map(list_names, panel_queries()))
    without = {metric.name for metric in METRICS if not series_names(metric) & shown}
    assert without == NOT_SHOWN.keys()


@pytest.mark.guarantee(82)
@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_is_documented(metric: Metric) -> None:
    [row] = [line for line in OBSERVE.splitlines() if line.startswith(f"| `{metric.name}` |")]
    name = base_name(metric) + ("_total" if "counter" in metric.kind else "")
    assert f"`{name}`" in row
    for label in metric.labels:
        assert f"`{label}`" in row


def test_every_span_and_search_attribute_is_documented() -> None:
    names = [
        *(spans.RESUME, spans.ACT, spans.COMPACT, spans.OFFLOAD, spans.CONTINUE_AS_NEW),
        *(spans.APPROVAL, spans.INVOKE_AGENT, spans.CHAT, spans.EXECUTE_TOOL),
        *(spans.ARCHIVE, spans.SWEEP, spans.NOTIFY, spans.DECISION),
    ]
    for name in names:
        assert re.search(rf"^\| `{re.escape(name)}[` ]", OBSERVE, flags=re.MULTILINE), name
    assert all(f"`{name}`" in OBSERVE for name in SEARCH_ATTRIBUTES)


def test_every_alert_describes_its_problem_and_links_its_runbook() -> None:
    for rule in rules():
        alert = rule["alert"]
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}
        # An anchor is the heading in small letters; ours have no spaces.
        assert rule["annotations"]["runbook"] == f"docs/how-to/operate.md#{alert.lower()}"
        assert f"\n### {alert}\n" in OPERATIONS
    headings = re.findall(r"^### (Everlong\w+)$", OPERATIONS, flags=re.MULTILINE)
    assert headings == [rule["alert"] for rule in rules()]


def test_every_alert_has_a_firing_and_a_quiet_test() -> None:
    document = YAML(typ="safe").load(DEPLOY / "prometheus-rules.test.yml")
    fires: dict[str, set[bool]] = {}
    for test in document["tests"]:
        for check in test["promql_expr_test"]:
            [alert] = re.findall(r'alertname="(\w+)"', check["expr"])
            fires.setdefault(alert, set()).add(bool(check["exp_samples"]))
    assert fires == {rule["alert"]: {True, False} for rule in rules()}


@pytest.mark.skipif(
    PROMTOOL is None, reason="promtool, of the package prometheus, is not installed"
)
@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "config", "prometheus.yml"],
        ["check", "config", "kubernetes/prometheus.yml"],
        ["check", "rules", "prometheus-rules.yml"],
        ["test", "rules", "prometheus-rules.test.yml"],
    ],
    ids=" ".join,
)
def test_promtool_accepts_rules_and_tests(arguments: list[str]) -> None:
    command = [PROMTOOL or "", *arguments]
    result = subprocess.run(
        command, cwd=DEPLOY, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_grafana_can_lay_out_the_dashboard() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = [cell for panel in DASHBOARD["panels"] for cell in cells(panel["gridPos"])]
    assert len(set(places)) == len(places), "panels overlap"
    assert all(0 <= x < 24 for x, _ in places)
    for panel in panels():
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["description"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)


def cells(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            yield x, y


def test_the_dashboard_uses_the_data_source_that_is_provisioned() -> None:
    document = YAML(typ="safe").load(DEPLOY / "grafana/provisioning/datasources/everlong.yaml")
    types = {source["uid"]: source["type"] for source in document["datasources"]}
    [chosen, *others] = DASHBOARD["templating"]["list"]
    assert (chosen["name"], chosen["type"]) == ("datasource", "datasource")
    assert types[chosen["current"]["value"]] == chosen["query"] == "prometheus"
    users = [*panels(), *others]
    assert all(
        user["datasource"] == {"type": "prometheus", "uid": "${datasource}"} for user in users
    )
