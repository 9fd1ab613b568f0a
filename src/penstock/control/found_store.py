"""The state store of a pipeline, for as long as a command needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.config.model import Pipeline
from penstock.state.opening import find_store
from penstock.state.store import StateStore


@contextmanager
def found_store(pipeline: Pipeline) -> Iterator[StateStore | None]:
    """Open the store that is there, and close it behind the block; None before the pipeline's first run."""
    store = find_store(pipeline.state_url)
    try:
        yield store
    finally:
        if store is not None:
            store.close()
