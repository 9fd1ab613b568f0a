"""Whose the pipeline is: the lock, the state store, and the lease where another machine's run may take over.

With the state in Postgres the lease comes first and decides; the lock is then for commands of this machine, which see
by it that a run is up. `pipeline.run` holds an `Ownership` as long as it works.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

import structlog

from penstock.changelog.claims import is_found_by_environment
from penstock.changelog.log import ChangeLog
from penstock.config.model import Pipeline
from penstock.errors import UsageError
from penstock.runtime.process.signals import SignalFlag
from penstock.s3_folder import require_s3_client
from penstock.state import sql
from penstock.state.lease import LEASE_SECONDS, Lease, can_be_leased
from penstock.state.lock import PipelineLock
from penstock.state.opening import open_store
from penstock.state.store import StateStore

LOG = structlog.get_logger("lease")


class Ownership:
    """A context manager: everything is given back at its end, the lease last."""

    def __init__(self, state: StateStore, lease: Lease | None, cleanup: ExitStack) -> None:
        self.state, self.lease, self._cleanup = state, lease, cleanup

    def require(self) -> None:
        """Raise LeaseLost when another run has taken over meanwhile."""
        if self.lease is not None and self.lease.failure is not None:
            raise self.lease.failure

    def __enter__(self) -> Ownership:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._cleanup.close()


def require_shareable(pipeline: Pipeline, store: StateStore | None) -> None:
    """UsageError unless another machine's run can take over what this one has: see docs/standby.md."""
    if store is not None or not can_be_leased(pipeline.state_url):
        raise UsageError(
            "--standby needs the pipeline's state in Postgres, where a lease says which run has the pipeline",
            "Set `state: postgresql://…` in the file; `penstock state export` and `import` move the state there",
        )
    for view in pipeline.source_views:
        log = ChangeLog(view.log_uri)
        if log.local:
            continue
        if log.filesystem.type_name != "s3":
            raise UsageError(
                f"--standby needs the change log in S3 or in a folder that both machines share, not in {view.log_uri}",
                "Name such a place in `log.uri`: only there can a capture that slept be kept from writing",
            )
        if not is_found_by_environment(log):
            raise UsageError(
                "--standby finds the change log's S3 store by the environment, and log.uri has an endpoint or a key",
                "Leave these out of log.uri, and set AWS_ENDPOINT_URL, AWS_REGION and AWS_ACCESS_KEY_ID instead",
            )
        require_s3_client()


def own(pipeline: Pipeline, stop: SignalFlag, store: StateStore | None, *, standby: bool) -> Ownership | None:
    """Take the pipeline; None when stopped while waiting. LockedError when another run has it, unless `standby`.

    A given `store` is used as it is, and not closed.
    """
    with ExitStack() as cleanup:
        lock = PipelineLock(pipeline.home / "lock")
        if store is not None or not can_be_leased(pipeline.state_url):
            cleanup.enter_context(lock)
            return Ownership(store or _opened(pipeline, cleanup), None, cleanup.pop_all())
        state = sql.open_store(pipeline.state_url, frozen_seconds=LEASE_SECONDS)
        cleanup.callback(state.close)
        lease = Lease(pipeline.state_url, lost=stop.set)
        if not lease.take(stop, patient=standby):
            return None
        cleanup.enter_context(lease)
        if lease.taken_from is None:
            lock.acquire()
        else:
            lock.take_over()
        cleanup.callback(lock.release)
        mine = state.guarded(lease.require)
        if lease.taken_from is not None:
            LOG.info("lease taken over", of=str(lease.taken_from), epoch=lease.epoch)
            mine.add_event("lease", f"run taken over from {lease.taken_from}, which had not renewed its lease")
        return Ownership(mine, lease, cleanup.pop_all())


def _opened(pipeline: Pipeline, cleanup: ExitStack) -> StateStore:
    state = open_store(pipeline.state_url)
    cleanup.callback(state.close)
    return state
