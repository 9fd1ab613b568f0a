"""The log of a run: lines for people, or one JSON object per line."""

from __future__ import annotations

import json

import pytest
import structlog

from penstock.cli.run import LogFormat, log_to_stderr


def test_json_is_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(form=LogFormat.JSON, file="shop.yaml")
    log = structlog.get_logger("tables")
    log.info("table joined", table='public."Bücher"', position="0/16B3748")
    log.warning("table queued for resync", solution="penstock resync FILE public.t")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["event"], first["level"], first["table"]) == ("table joined", "info", 'public."Bücher"')
    assert first["timestamp"].endswith("Z")
    assert second["solution"] == "penstock resync shop.yaml public.t"


def test_what_is_below_the_level_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr()
    structlog.get_logger("apply").debug("applied", changes=1)
    structlog.get_logger("apply").info("streaming")
    said = capsys.readouterr().err
    assert "streaming" in said
    assert "applied" not in said
