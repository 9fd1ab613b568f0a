"""Functions for processors of tables: one that maps rows, and some that do what no table takes."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]


def shouted(event: Event) -> Event:
    return {**event, "after": {**event["after"], "name": event["after"]["name"].upper() + "!"}}


def twice(event: Event) -> list[Event]:
    return [event, event]


def routed(event: Event) -> Event:
    return {**event, "topic": "elsewhere"}


def rekeyed(event: Event) -> Event:
    row = event["after"]
    return {**event, "after": {**row, "id": 99 if row["id"] == 1 else row["id"]}}


def retyped(event: Event) -> Event:
    row = event["after"]
    return {**event, "after": {**row, "price": "cheap" if row["id"] == 1 else str(row["price"])}}
