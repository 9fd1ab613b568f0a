"""`/metrics`: a text that Prometheus reads, with the names that docs/metrics.md, the board and the rules have."""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.config.load import load
from penstock.runtime import meter
from penstock.runtime.meter import Meter
from penstock.server import exposition
from penstock.server.prometheus import Family, written
from pipeline_files import pipeline_file
from server_bench import server_bench

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "penstock.rules.yaml"
_LINE = re.compile(r'([a-z_:]+)(\{(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\n"])*",?)*\})? (\S+)')
KINDS = {
    **dict.fromkeys(exposition.GAUGES, "gauge"),
    **dict.fromkeys(exposition.COUNTERS, "counter"),
    **{one.name: "histogram" if one.buckets else "counter" for one in meter.METRICS},
}


def parsed(text: str) -> dict[str, dict[str, float]]:
    """Samples by metric and labels, after checking the format line by line."""
    found: dict[str, dict[str, float]] = {}
    typed: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in typed, "a family is in one piece"
            typed[name] = kind
        elif not line.startswith("# HELP "):
            sample = _LINE.fullmatch(line)
            assert sample is not None, line
            base = re.sub(r"_(bucket|sum|count)$", "", sample[1])
            assert (base if base in typed else sample[1]) in typed, line
            labels = found.setdefault(sample[1], {})
            assert (sample[2] or "") not in labels, f"twice: {line}"
            labels[sample[2] or ""] = float(sample[3])
    assert text.endswith("\n")
    return found


@pytest.fixture(scope="module")
def promtool() -> str:
    """Prometheus' own linter, out of Debian's package."""
    found = subprocess.run([str(ROOT / "scripts" / "debian_promtool.sh")], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def asked(promtool: str, *words: str, given: str | None = None) -> None:
    done = subprocess.run([promtool, *words], input=given, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_pipelines_figures(tmp_path: Path, promtool: str) -> None:
    file = pipeline_file(tmp_path, labels={"team": 'a "b"\\c'}, tenant="acme")
    home = load(file).home
    with server_bench(tmp_path, file) as bench:
        counted = Meter()
        counted.batch("shop", "lake", changes=50, bytes=4000, seconds=0.3, newest=0.0)
        counted.count(meter.SOURCE_CHANGES, 7, source="shop", table="public.orders")
        meter.write(home, counted.samples())
        text = bench.clients["viewer"].get("/metrics").text
    found = parsed(text)
    asked(promtool, "check", "metrics", given=text)
    at = '{pipeline="shop",destination="lake",table="public.orders"}'
    assert found["penstock_applied_changes_total"][at] == 1402
    assert found["penstock_pipeline_status"] == {'{pipeline="shop"}': 0.0}
    assert found["penstock_tables"]['{pipeline="shop",destination="lake",state="Errored"}'] == 1
    assert found["penstock_dlq_entries"][at] == 1
    assert list(found["penstock_pipeline_info"]) == ['{pipeline="shop",tenant="acme",label_team="a \\"b\\"\\\\c"}']
    assert found["penstock_source_up"] == {'{pipeline="shop",source="shop"}': 0.0}
    assert found["penstock_source_changes_total"] == {'{pipeline="shop",source="shop",table="public.orders"}': 7.0}
    buckets = found["penstock_batch_changes_bucket"]
    assert [value for labels, value in buckets.items() if 'le="10"' in labels or 'le="100"' in labels] == [0.0, 1.0]
    assert next(value for labels, value in buckets.items() if 'le="+Inf"' in labels) == 1.0


def test_many_tables_are_left_out(tmp_path: Path) -> None:
    with server_bench(tmp_path, pipeline_file(tmp_path), tables_in_metrics=2) as bench:
        found = parsed(bench.clients["viewer"].get("/metrics").text)
    assert "penstock_table_state" not in found
    assert "penstock_tables" in found


def test_the_figures_of_a_run_go_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "WRITE_EVERY", 0.01)
    meter.METER.count(meter.RECONNECTS, source="gone")
    with meter.writing(tmp_path):
        while not meter.read(tmp_path):
            pass
        assert [one.value for one in meter.read(tmp_path) if one.labels == {"source": "gone"}] == [1.0]
    assert meter.read(tmp_path) == []


def test_numbers_are_written_as_prometheus_reads_them() -> None:
    family = Family("x", "gauge", "y\nz")
    for value in (1, 0.5, 2**60, math.inf):
        family.add(value)
    family.add(None)
    assert written([family, Family("unused", "gauge", "")]).splitlines() == [
        "# HELP x y\\nz", "# TYPE x gauge", "x 1", "x 0.5", f"x {float(2**60)!r}", "x +Inf",
    ]  # fmt: skip


def named_in(text: str) -> set[str]:
    found = set(re.findall(r"\bpenstock_[a-z_]+", text))
    return {re.sub(r"_(bucket|sum|count)$", "", name) if name not in KINDS else name for name in found}


def test_every_metric_is_on_its_page_with_its_type() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert named_in(text) == set(KINDS)
    rows = re.findall(r"^\| (`penstock_.*?) \| (gauge|counter) \|", text, re.MULTILINE)
    assert {(name, kind) for names, kind in rows for name in re.findall(r"`(\w+)`", names)} <= set(KINDS.items())


def test_every_alert_fires_when_it_should_and_only_then(promtool: str, tmp_path: Path) -> None:
    """Prometheus' own test of rules: two hours in which all is well, then two hours of each trouble."""
    asked(promtool, "check", "rules", str(RULES))
    of = '{pipeline="shop",source="shop",destination="lake"%s}'
    troubles = {  # the metric, its value while all is well, and in trouble
        "PenstockPipelineFailed": ("penstock_pipeline_status" + of % "", "1", "-1"),
        "PenstockTableErrored": ("penstock_tables" + of % ',state="Errored"', "0", "1"),
        "PenstockServerDown": ('up{job="penstock",instance="penstock:8080"}', "1", "0"),
        "PenstockNotLookedAt": ("penstock_heartbeat_timestamp_seconds" + of % "", "0+60", "7200"),
        "PenstockSourceDown": ("penstock_source_up" + of % "", "1", "0"),
        "PenstockDestinationDown": ("penstock_destination_up" + of % "", "1", "0"),
        "PenstockLagging": ("penstock_destination_lag_seconds" + of % "", "300", "301"),
        "PenstockWalGrows": ("penstock_slot_retained_bytes" + of % "", str(5 * 2**30), str(5 * 2**30 + 1)),
        "PenstockDeadLetters": ("penstock_dlq_entries" + of % ',table="public.orders"', "0", "1"),
        "PenstockQuarantine": ("penstock_quarantined" + of % ',table="public.orders"', "0", "1"),
        "PenstockRestarts": ("penstock_restarts_total" + of % "", "0+0", "0+1"),
    }
    assert {one["alert"] for one in alerts()} == set(troubles)
    cases = []
    for alert, (series, well, bad) in troubles.items():
        values = " ".join(f"{value}x119" if "+" in value else f"{value}+0x119" for value in (well, bad))
        shown = [{"series": series, "values": values}]
        if alert == "PenstockDestinationDown":
            shown.append({"series": 'penstock_pipeline_status{pipeline="shop"}', "values": "1+0x240"})
        cases.append(
            {
                "interval": "1m",
                "input_series": shown,
                "promql_expr_test": [
                    {"expr": fired(alert), "eval_time": "1h50m"},
                    {"expr": fired(alert), "eval_time": "3h", "exp_samples": [{"labels": "{}", "value": 1}]},
                ],
            }
        )
    file = tmp_path / "rules.test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": cases}))
    asked(promtool, "test", "rules", str(file))


def fired(alert: str) -> str:
    return f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'


def alerts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    return found


def test_rules_and_board_use_metrics_that_are_there() -> None:
    assert named_in("\n".join(one["expr"] for one in alerts())) <= set(KINDS)
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert all(f"`{one['alert']}`" in page for one in alerts())
    board = json.loads((ROOT / "deploy" / "grafana" / "penstock.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert named_in("\n".join(expressions)) <= set(KINDS)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
