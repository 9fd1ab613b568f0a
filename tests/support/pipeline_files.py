"""Pipeline files whose source cannot be reached, for commands that need none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from penstock.config.mysql_source import MysqlSource
from penstock.config.sources import PostgresSource


def pipeline_file(folder: Path, **changes: Any) -> Path:
    """`shop.yaml`, which clones everything in `public`. `changes` replace top-level keys."""
    settings: dict[str, Any] = {
        "version": 1,
        "name": "shop",
        "source": {"type": "postgres", "url": "postgresql://app:hunter2@127.0.0.1:1/shop"},
        "tables": [{"match": "public.*"}],
        "destinations": [{"type": "iceberg", "warehouse": "warehouse"}],
    }
    path = folder / "shop.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in (settings | changes).items() if value is not None}))
    return path


def of_postgres(source: PostgresSource | MysqlSource) -> PostgresSource:
    """Return the section of a source that is Postgres."""
    assert isinstance(source, PostgresSource)
    return source
