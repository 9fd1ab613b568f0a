"""`penstock run`: the whole pipeline in one process, and beside it a capture process for each source.

Order of things: lock, source made ready, capture started, Spark and destination opened, tables made, then batches
until it is stopped (SIGTERM, Ctrl-C: the batch in flight is finished first), until it has come to the end that was
asked for (run_end.py), or as long as an `errand` takes. With several sources
(`source_threads`) the destination comes first, for no source waits for another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from subprocess import Popen

from pyspark.sql import SparkSession

from penstock.config.any_destination import AnyDestination
from penstock.config.destinations import StreamSection
from penstock.config.model import Pipeline
from penstock.destinations.contract import PooledRunner
from penstock.destinations.factory import close_stream, make_stream, make_tables
from penstock.errors import EnvironmentMissing, PenstockError
from penstock.runtime import meter
from penstock.runtime.apply.target_claims import TargetClaims
from penstock.runtime.apply.task import loaded
from penstock.runtime.capture.supervisor import waiting_capture
from penstock.runtime.copy.progress_view import ScopedProgress, ScopedProgressView
from penstock.runtime.local_runner import DividedRunner, LocalRunner
from penstock.runtime.open_destinations import SharedDestination
from penstock.runtime.ownership import own, require_shareable
from penstock.runtime.process.companion_task import CompanionTask
from penstock.runtime.process.signals import SignalFlag, stop_on_signals
from penstock.runtime.run_end import RunEnd
from penstock.runtime.source_pipeline import Opened, SourcePipeline
from penstock.runtime.source_threads import run_sources
from penstock.runtime.spark import java_process
from penstock.runtime.spark.cluster_watch import ClusterWatch, SparkApplication
from penstock.runtime.spark.given_session import given_session
from penstock.runtime.spark.lazy_session import LazySession
from penstock.runtime.spark.runner import SparkRunner
from penstock.runtime.spark.session import cores, session, spark_log, where_set
from penstock.state.lease import Lease
from penstock.state.store import StateStore


def run(
    pipeline: Pipeline,
    *,
    progress: ScopedProgressView,
    end: RunEnd = RunEnd(),
    strict: bool = False,
    may_leave: bool = False,
    errand: Callable[[SparkSession], None] | None = None,
    stop: SignalFlag | None = None,
    store: StateStore | None = None,
    spark: SparkSession | None = None,
    standby: bool = False,
) -> None:
    """Run the pipeline. Return when stopped, when it has come to its `end`, or when the `errand` is done.

    The errand is called in a thread of its own. Raise what the errand raises, and what no retry can fix; with several
    sources only when none is left, and not beside an errand: that finds in the state store which sources failed. With
    `strict` a value that fits no column makes its table Errored; without, it is rescued. With `may_leave`, tables that
    no rule matches any more leave the publication. With a `stop` the caller stops the run, and signals are the
    caller's. `store` is an open state store in place of the file's, and `spark` a session to use: neither is closed.
    With `standby` it waits, with Spark started, until no other run has the pipeline.
    """
    pipeline = pipeline.whole  # the log is kept for all destinations, whoever asked for the run
    pipeline = pipeline.strictly() if strict else pipeline
    if standby:
        require_shareable(pipeline, store)
    with ExitStack() as cleanup:
        preparing = True
        if stop is None:
            stop = SignalFlag()
            stop_on_signals(stop, at_once=lambda: preparing)  # making a slot may wait long; nothing is in flight yet
        by_spark = errand is not None or not all(map(_is_on_driver, pipeline.destinations))
        started = _started_spark(pipeline, stop, cleanup, spark) if standby and by_spark else None
        captures = {view.source.name: _waiting(view, cleanup) for view in pipeline.source_views} if standby else {}
        ownership = own(pipeline, stop, store, standby=standby)
        if ownership is None:
            return
        cleanup.enter_context(ownership)
        state, lease = ownership.state, ownership.lease
        owners = {destination.name: TargetClaims() for destination in pipeline.destinations}
        makers = {
            view.source.name: partial(
                _source_pipeline,
                view,
                state,
                owners,
                progress,
                end=end,
                may_leave=may_leave,
                lease=lease,
                captures=captures,
            )
            for view in pipeline.source_views
        }
        if len(makers) == 1:
            (only,) = [make() for make in makers.values()]
            only.prepare()
            preparing = False
            only.start_capture()
            cleanup.push(only.ended)
            work = only.stream
        else:
            preparing = False
            work = partial(run_sources, makers, once=end.is_for_now)
        drivers = [one.name for one in pipeline.destinations if _is_on_driver(one)]
        here = LocalRunner(cores() + pipeline.copying.max_connections)
        lazy: LazySession | None = None
        watching: AbstractContextManager[object] = nullcontext()
        runner: PooledRunner = here
        if by_spark:
            lazy, watch = started or _open_spark(pipeline, stop, cleanup, spark)
            watching, runner = watch.watching(), DividedRunner(here, SparkRunner(lazy, watch), drivers)
        with watching, meter.writing(pipeline.home):
            opened = _open_destinations(pipeline, lazy, cleanup)
            beside = CompanionTask(errand, lazy.whole, stop) if errand is not None and lazy is not None else None
            try:
                work(opened, runner, stop)
            except PenstockError as error:
                ownership.require()
                if len(makers) == 1 or beside is None or isinstance(error, EnvironmentMissing):
                    raise
                beside.outlast()
            ownership.require()
        if beside is not None:
            beside.end()


def _source_pipeline(
    view: Pipeline,
    state: StateStore,
    owners: Mapping[str, TargetClaims],
    progress: ScopedProgressView,
    *,
    end: RunEnd,
    may_leave: bool,
    lease: Lease | None,
    captures: dict[str, Popen[str]],
) -> SourcePipeline:
    """Make a source's part. `captures` wait, by source: a part that is made again starts its own."""
    mine, shown = state.of_source(view.scope), ScopedProgress(progress, view.scope)
    return SourcePipeline(
        view,
        mine,
        owners,
        shown,
        end=end,
        may_leave=may_leave,
        lease=lease,
        waiting=captures.pop(view.source.name, None),
    )


def _waiting(view: Pipeline, cleanup: ExitStack) -> Popen[str]:
    process = waiting_capture(view)

    def end() -> None:
        """One that was never needed; of others whoever took it over sees to their end."""
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    cleanup.callback(end)
    return process


def _is_on_driver(destination: AnyDestination) -> bool:
    return isinstance(destination, StreamSection) and destination.on_driver


def _started_spark(
    pipeline: Pipeline, stop: SignalFlag, cleanup: ExitStack, given: SparkSession | None
) -> tuple[LazySession, ClusterWatch]:
    """Open Spark and have it run a job, so that whoever takes over finds Java and Python's workers warm."""
    spark, watch = _open_spark(pipeline, stop, cleanup, given)
    runner = SparkRunner(spark, watch)
    with watch.watching():
        runner.run(loaded, range(runner.slots))
    return spark, watch


def _open_spark(
    pipeline: Pipeline, stop: SignalFlag, cleanup: ExitStack, given: SparkSession | None
) -> tuple[LazySession, ClusterWatch]:
    if given is None:
        spark = session(pipeline)
        cleanup.callback(spark.stop)
    else:
        spark = given_session(pipeline, given)
    cleanup.enter_context(java_process.needing(spark.sparkContext))
    application = SparkApplication(spark.sparkContext)
    return spark, ClusterWatch(application, pipeline.spark, where_set(pipeline), spark_log(pipeline), stop)


def _open_destinations(pipeline: Pipeline, spark: LazySession | None, cleanup: ExitStack) -> Opened:
    """Destinations by name, each opened by whoever first needs it. One that is the only one is opened now.

    Without `spark` all live in the driver."""
    shared = {
        destination.name: SharedDestination(
            make_tables(destination, spark, index=pipeline.home / "index" / destination.name)
        )
        for destination in pipeline.lakes
        if spark is not None
    }
    for one in shared.values():
        cleanup.callback(one.close)
        if len(pipeline.destinations) == 1:
            one.opened()
    streams = {
        one.name: make_stream(one, places=pipeline.places_uri)
        for one in pipeline.destinations
        if isinstance(one, StreamSection)
    }
    for stream in streams.values():
        cleanup.callback(close_stream, stream)
    return {**{name: one.opened for name, one in shared.items()}, **streams}
