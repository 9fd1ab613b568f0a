"""The bridge to Iceberg's Java library: its errors in our words, files handed over as JSON, few calls.

A call over py4j takes some 0.1–0.3 ms, so a file crosses as one JSON text and not as forty setters. Nothing else in
penstock knows Iceberg's exceptions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from penstock.destinations.lake.storage import unreadable
from penstock.destinations.spark_session import Session
from penstock.errors import (
    CommitUnknown,
    DestinationUnreachable,
    EnvironmentMissing,
    FileUnreadable,
    StaleBase,
    TableDropped,
    TableFailed,
)
from penstock.java_error import JavaException, java_causes, java_reason
from penstock.model.table import TableId

REFUSED = ("CommitFailedException", "ValidationException")
HADOOP = "hadoop."  # what a catalog's settings say for Hadoop begins with it
UNKNOWN = "CommitStateUnknownException"
MISSING = ("NoSuchTableException", "NoSuchNamespaceException")
ANOTHER_TABLE = "Table UUID does not match"
FILE_MISSING = ("NotFoundException", "FileNotFoundException", "NoSuchFileException")
# What Java says of a call that can never succeed, a number in a table's properties that is none say: waiting is no help
NEVER_SUCCEEDS = (
    "ArithmeticException",
    "ArrayIndexOutOfBoundsException",
    "ClassCastException",
    "IllegalArgumentException",
    "IndexOutOfBoundsException",
    "NumberFormatException",
    "UnsupportedOperationException",
)
FILE_DAMAGED = ("InvalidAvroMagicException", "AvroRuntimeException", "EOFException", "AccessDeniedException")
LOCATION = re.compile(r"(?:[a-z0-9]+:/|/)[^\s'\"]+\.(?:avro|json|parquet)")
COPIED_AGAIN = "Nothing: it is copied again by itself"
LOOK_AT_PROPERTIES = (
    "See whether somebody set a property of the table in the catalog to a value that Iceberg does not take; correct it "
    "and run `penstock retry`. If nobody did, report this with the traceback in the log"
)

JavaObject = Any


class TableExists(Exception):
    """Somebody else made the table, or its namespace, first. Never leaves this package."""


class Java:
    """The classes of Iceberg that we use, looked up once: a dotted name costs a call for each dot."""

    def __init__(self, spark: Session) -> None:
        self._spark = spark
        context = spark.sparkContext
        gateway, jvm = context._gateway, context._jvm
        assert gateway is not None
        assert jvm is not None
        self._gateway = gateway
        iceberg = jvm.org.apache.iceberg
        self._catalogs = iceberg.CatalogUtil
        self._map, self._configuration = jvm.java.util.HashMap, jvm.org.apache.hadoop.conf.Configuration
        self._string = jvm.java.lang.String
        self._namespace = iceberg.catalog.Namespace
        self._identifier = iceberg.catalog.TableIdentifier
        self._content_file = iceberg.ContentFileParser.fromJson
        self._tree = iceberg.util.JsonUtil.mapper().readTree
        self._lines = iceberg.relocated.com.google.common.base.Splitter.on("\n")
        self.last = iceberg.relocated.com.google.common.collect.Iterables.getLast
        self.snapshot_json = iceberg.SnapshotParser.toJson
        self._lists = iceberg.relocated.com.google.common.collect.Lists
        self.schemas = iceberg.SchemaParser
        self._read_metadata = iceberg.TableMetadataParser.read
        self.manifests = iceberg.ManifestFiles
        # Iceberg looks every 10 ms whether its threads are done, several times a commit; this is done when it is asked
        self.at_once = iceberg.relocated.com.google.common.util.concurrent.MoreExecutors.newDirectExecutorService()
        self.expressions = iceberg.expressions.Expressions
        self.always_true = self.expressions.alwaysTrue()
        self.partitions = iceberg.PartitionSpec
        self.methods = iceberg.common.DynMethods
        self.streams = jvm.java.util.stream.Stream
        self._class = jvm.java.lang.Class
        self._object = jvm.java.lang.Object
        self.transactions = iceberg.Transactions
        self._group_operations = jvm.dev.penstock.GroupOperations

    def catalog(self, name: str) -> JavaObject:
        """Iceberg's catalog as Spark's settings describe it, without Spark's SQL, which takes a second to start."""
        prefix, context = f"spark.sql.catalog.{name}.", self._spark.sparkContext
        told = self._spark.conf.getAll.items()
        settings = {key.removeprefix(prefix): value for key, value in told if key.startswith(prefix)}
        properties, configuration = self._map(), self._configuration(context._jsc.hadoopConfiguration())
        for key, value in {**settings, "app-id": context.applicationId, "user": context.sparkUser()}.items():
            if key.startswith(HADOOP):
                configuration.set(key.removeprefix(HADOOP), value)
            else:
                properties.put(key, value)
        return self._catalogs.buildIcebergCatalog(name, properties, configuration)

    def group_operations(self, uri: str, catalog: str, settings: Mapping[str, str]) -> JavaObject:
        """Return what commits several tables of a JDBC catalog in one step (`group_operations`)."""
        given = self._map()
        for key, value in settings.items():
            given.put(key, value)
        return self._group_operations(uri, catalog, given)

    def rest_operations(self, catalog: JavaObject) -> JavaObject | None:
        """Return what commits several tables of a REST catalog in one step; None where the catalog cannot."""
        return self._group_operations.ofRest(catalog)

    def namespace(self, target: TableId) -> JavaObject:
        return self._namespace.of(self._strings(target.schema))

    def identifier(self, target: TableId) -> JavaObject:
        return self._identifier.of(self._strings(target.schema, target.name))

    def content_file(self, description: Mapping[str, Any], specs: JavaObject) -> JavaObject:
        """Return a DataFile or DeleteFile from its JSON."""
        return self._content_file(self._tree(json.dumps(description)), specs)

    def bounds(self, file: JavaObject, column: int) -> tuple[str, str]:
        """Return the octets of a column's bounds in a data file, as hexadecimal texts; "" where there is none."""
        lower, _, upper = self._group_operations.bounds(file, column).partition(" ")
        return lower, upper

    def strings(self, values: Iterable[str]) -> JavaObject:
        """Return a Java list of strings in one call. Locations hold no line break."""
        return self._lines.splitToList("\n".join(values))

    def earlier_metadata(self, table: JavaObject, metadata: JavaObject) -> Iterator[JavaObject]:
        """Yield the metadata files before this one that the table names, the newest first, up to one that is gone."""
        names = [entry.file() for entry in metadata.previousFiles()]
        for name in reversed(names):
            try:
                yield self._read_metadata(table.io(), name)
            except Py4JJavaError as error:
                if error.java_exception.getClass().getSimpleName() in FILE_MISSING:
                    return
                raise

    def listed(self, iterable: JavaObject) -> JavaObject:
        """Return a Java list of a closeable iterable, read in one call."""
        with_all = self._lists.newArrayList(iterable)
        iterable.close()
        return with_all

    def joined(self, strings: JavaObject) -> list[str]:
        """Return a Java collection of strings in one call. Locations hold no line break."""
        text = self._string.join("\n", strings)
        return text.split("\n") if text else []

    def call(self, interface: str, name: str, on: JavaObject) -> JavaObject:
        """Return a method of an interface, without arguments.

        py4j would look for it in the object's class, which Java may not let anybody see.
        """
        method = self.methods.builder(name).impl(interface, self._gateway.new_array(self._class, 0)).build()
        return method.invoke(on, self._gateway.new_array(self._object, 0))

    def _strings(self, *values: str) -> JavaObject:
        array = self._gateway.new_array(self._string, len(values))
        for number, value in enumerate(values):
            array[number] = value
        return array


class Collected:
    """Take strings from Java, which hands them to a consumer one by one, without a call for each."""

    def __init__(self, java: Java) -> None:
        self._java, self.consumer = java, java.streams.builder()

    def strings(self) -> list[str]:
        """Return all of them, once."""
        stream = self._java.call("java.util.stream.Stream$Builder", "build", self.consumer)
        return self._java.joined(self._java.call("java.util.stream.Stream", "toList", stream))


@contextmanager
def translated(what: str, *, deciding: bool = False, shared: bool = False) -> Iterator[None]:
    """Iceberg's errors as ours.

    `deciding`: the call inside may or may not have changed the table when it fails. `shared`: it is about the catalog
    or several tables, so that no table is to blame for what can never succeed.
    """
    try:
        yield
    except Py4JJavaError as error:
        kind, message = error.java_exception.getClass().getSimpleName(), java_reason(error.java_exception)
        if kind in MISSING:
            raise TableDropped(f"{what}: it was dropped at the destination: {message}", COPIED_AGAIN) from error
        if ANOTHER_TABLE in message:
            raise TableDropped(f"{what}: somebody put another table in its place: {message}", COPIED_AGAIN) from error
        if kind == "AlreadyExistsException":
            raise TableExists(message) from error
        if kind in REFUSED:
            raise StaleBase(f"{what}: refused: {message}", "The table is read again and the work redone") from error
        if kind in NEVER_SUCCEEDS and not shared:
            failed = TableFailed(f"{what}: {kind}: {message}", LOOK_AT_PROPERTIES)
            failed.trace = str(error)
            raise failed from error
        if deciding or kind == UNKNOWN:
            raise CommitUnknown(
                f"{what}: its outcome is not known: {message}", "The table's position is read to find out"
            ) from error
        raise _file_error(error.java_exception, message) or DestinationUnreachable(
            f"{what}: {message}", "See that catalog and warehouse are there, have room and may be written"
        ) from error
    except PySparkException as error:
        message = " ".join(str(error).split())[:300]
        if deciding:
            raise CommitUnknown(
                f"{what}: its outcome is not known: {message}", "The position is read to find out"
            ) from error
        raise DestinationUnreachable(f"{what}: {message}", "See that catalog and warehouse can be reached") from error
    except (Py4JError, ConnectionError) as error:
        raise EnvironmentMissing(
            f"{what}: Spark's Java process has ended",
            "Start penstock again; spark.log in the pipeline's folder may say why",
        ) from error


def _file_error(exception: JavaException, message: str) -> FileUnreadable | None:
    """Return the exception as the error of a file that cannot be read, if it names one."""
    causes = java_causes(exception)
    kinds = {one.getClass().getSimpleName() for one in causes}
    missing = bool(kinds & {*FILE_MISSING})
    named = [found for one in causes if (found := LOCATION.search(one.getMessage() or ""))]
    if not named or not (missing or kinds & {*FILE_DAMAGED}):
        return None
    return unreadable(named[0].group(), message, missing=missing)


def present(metadata: JavaObject | None, target: TableId) -> JavaObject:
    """Return a table's metadata.

    TableDropped when there is none: after Iceberg has said once that a table is gone, it gives nothing.
    """
    if metadata is None:
        raise TableDropped(f"table {target} was dropped at the destination", COPIED_AGAIN)
    return metadata
