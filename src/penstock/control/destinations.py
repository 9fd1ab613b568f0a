"""Remove what is kept of a destination that is no longer in the file. Its tables stay as they are."""

from __future__ import annotations

import shutil

from penstock.config.model import Pipeline
from penstock.destinations.places.folder import folder_at
from penstock.errors import UsageError
from penstock.state.lock import PipelineLock
from penstock.state.opening import find_store


def drop_destination(pipeline: Pipeline, name: str) -> int:
    """Forget a destination: its rows in the state store, its key index and its places. Return how many tables it had.

    LockedError while a run is up.
    """
    if any(destination.name == name for destination in pipeline.destinations):
        raise UsageError(
            f"destination {name} is in {pipeline.file}", "Take it out of the file, and stop the run that has it"
        )
    with PipelineLock(pipeline.home / "lock"):
        store = find_store(pipeline.state_url)
        tables = 0
        if store is not None:
            try:
                for source_view in pipeline.source_views:
                    state = store.of_source(source_view.scope)
                    tables += len(state.table_status(name))
                    state.forget_destination(name)
            finally:
                store.close()
        kept = folder_at(pipeline.places_uri).under(name).remove()
        index = pipeline.home / "index" / name
        if index.is_dir():
            shutil.rmtree(index)
        elif not tables and not kept:
            raise UsageError(f"nothing is kept of a destination {name}", f"`penstock status {pipeline.file}` has them")
    return tables
