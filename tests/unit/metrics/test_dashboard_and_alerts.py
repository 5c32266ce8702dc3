"""The dashboard and the alert rules in deploy/: valid, and about metrics that the code has."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml  # type: ignore[import-untyped] # ships no types
from pages_kit import ROOT

from statekeep.metrics.figures import METRICS, Metric

ALERTS = ROOT / "deploy/prometheus/statekeep-alerts.yml"
DASHBOARD = ROOT / "deploy/grafana/statekeep.json"
_CHILDREN = ("lhs", "rhs", "expr", "param", "vector_selector")
_PARTS = re.compile(r"_(bucket|sum|count)$")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return list(group["rules"])


def queries() -> list[str]:
    """Return the queries of the dashboard, with what Grafana puts in for its variables."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [q.replace("$__rate_interval", "5m").replace("$job_name", ".*") for q in found]


def selectors(tree: Any) -> Iterator[Any]:
    """Yield the selectors of series in a parsed query."""
    if isinstance(tree, promql_parser.VectorSelector):
        yield tree
    for name in _CHILDREN:
        child = getattr(tree, name, None)
        if child is not None:
            yield from selectors(child)
    for child in getattr(tree, "args", ()):
        yield from selectors(child)


def metric_of(name: str) -> Metric:
    """Return the metric that has a series of this name in Prometheus."""
    for metric in METRICS:
        series = _PARTS.sub("", name) if metric.kind == "histogram" else name
        if series == metric.prometheus_name and (series != name or metric.kind != "histogram"):
            return metric
    raise AssertionError(f"no metric has the series {name}")


def check(query: str) -> set[str]:
    """Return the names of the metrics of a query whose labels they all have."""
    found: set[str] = set()
    for selector in selectors(promql_parser.parse(query)):
        metric = metric_of(selector.name)
        found.add(metric.name)
        for matcher in selector.matchers.matchers:
            assert matcher.name in {"job_name", *metric.attributes}, (query, matcher.name)
            if (
                matcher.name == "outcome"
                and metric.outcomes
                and matcher.op == (promql_parser.MatchOp.Equal)
            ):
                assert matcher.value in metric.outcomes, query
    return found


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_metrics_and_labels_that_there_are(rule: dict[str, Any]) -> None:
    assert check(rule["expr"])
    assert rule["labels"]["severity"] in {"warning", "critical"}
    labels = {
        name
        for text in rule["annotations"].values()
        for name in re.findall(r"\$labels\.(\w+)", text)
    }
    assert labels <= {"job_name", "backend"}


def test_the_dashboard_asks_for_metrics_and_labels_that_there_are() -> None:
    asked: set[str] = set()
    for query in queries():
        found = check(query)
        assert found, query
        asked |= found
    assert len(asked) > 15
    dashboard = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


SHOWN_NOWHERE = {
    "batch.rows.in",
    "batch.rows.out",
    "clean_up.released",
    "commit.aborted",
    "replay.rows",
    "restore.duration",
    "snapshot.duration",
    "upload.files",
    "upload.planned.files",
    "upload.remaining",
    "upload.remaining.files",
    "upload.retained.files",
    "verify.last.batch",
}
"""Metrics beside which another one of the dashboard says nearly the same, or which are for a closer look."""


def test_each_other_metric_is_in_the_dashboard_or_in_an_alert() -> None:
    asked = {name for rule in rules() for name in check(rule["expr"])}
    asked |= {name for query in queries() for name in check(query)}
    assert {metric.name for metric in METRICS} - asked == SHOWN_NOWHERE


def test_no_panel_of_the_dashboard_lies_over_another_one() -> None:
    taken: dict[tuple[int, int], int] = {}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert x < 24
                assert taken.setdefault((x, y), panel["id"]) == panel["id"]


@pytest.mark.parametrize(
    "query",
    [
        "statekeep_commit_last",
        "statekeep_commit_duration_seconds",
        "statekeep_requests_total{task='1'}",
    ],
)
def test_a_query_for_what_there_is_not_is_found_out(query: str) -> None:
    with pytest.raises(AssertionError):
        check(query)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_fires_the_alerts_and_takes_the_queries(tmp_path: Path) -> None:
    cases = (Path(__file__).parent / "statekeep-alerts.test.yml").read_text()
    (tmp_path / "cases.yml").write_text(cases.replace("[ALERTS]", f"[{ALERTS}]"))
    asked = [{"record": f"q:{number}", "expr": query} for number, query in enumerate(queries())]
    document = {"groups": [{"name": "queries", "rules": asked}]}
    (tmp_path / "queries.yml").write_text(yaml.safe_dump(document))
    for command in (
        ["check", "rules", str(ALERTS), "queries.yml"],
        ["test", "rules", "cases.yml"],
    ):
        done = subprocess.run(
            ["promtool", *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
