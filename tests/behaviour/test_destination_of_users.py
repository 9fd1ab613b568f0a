"""The suite that penstock ships, over destinations as users write them."""

from __future__ import annotations

from pathlib import Path

from penstock.testing import destination_suite
from python_destinations import Ledger, Lines, ledger_events, line_events

TestLedger = destination_suite(
    lambda folder: Ledger(str(folder / "ledger.db")),
    lambda folder: [event["id"] for _, event in ledger_events(Path(folder / "ledger.db"))],
)
TestLines = destination_suite(
    lambda folder: Lines(str(folder / "lines.jsonl")),
    lambda folder: [event["id"] for _, event in line_events(folder / "lines.jsonl")],
)
