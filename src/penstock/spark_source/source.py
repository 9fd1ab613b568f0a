"""The change log of a pipeline as a data source of PySpark: `spark.dataSource.register(PenstockSource)`.

| option        | default | meaning                                                                          |
|---------------|---------|----------------------------------------------------------------------------------|
| `pipeline`    |         | the pipeline file                                                                |
| `table`       | all     | `schema.table`: typed rows of one table; without it, events of all tables        |
| `from`        | `start` | a position (`0/16B3748`), `start` (where the log begins) or `end`                |
| `to`          | `end`   | of a batch: a position, exclusive, or `end` (where the log ends now)             |
| `source`      |         | which source, if the pipeline has several                                        |
| `destination` |         | whose rules count (columns, masks, filters), if they differ between destinations |
| `all`         | `false` | with events of all tables: those of the source itself too, as far as the log has them |

Offsets of a stream are positions, with the id of the log that they belong to. PySpark calls everything but `read` in a
Python process of the driver, and `read` on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import LogPassed, UsageError
from penstock.model.position import Position, parse_position, position_text
from penstock.spark_source.reading import Piece, Reading

OPTIONS = ("pipeline", "table", "from", "to", "source", "destination", "all")


@dataclass
class LogPartition(InputPartition):
    """One task's part of a read."""

    piece: Piece


class PenstockSource(DataSource):
    """`.format("penstock")`. Register it once per session."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return from_arrow_schema(self._reading().arrow_schema(), prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> PenstockReader:
        return PenstockReader(self._reading(), self.options.get("from", "start"), self.options.get("to", "end"))

    def streamReader(self, schema: StructType) -> PenstockStreamReader:
        if "to" in self.options:
            raise UsageError("option `to` is for batches; a stream has no end", "Leave it out, or use spark.read")
        return PenstockStreamReader(self._reading(), self.options.get("from", "start"))

    def _reading(self) -> Reading:
        given = {name.lower(): value for name, value in self.options.items()}
        unknown = sorted(given.keys() - set(OPTIONS) - {"path"})
        if unknown:
            raise UsageError(f"unknown option {unknown[0]}", f"Options are {', '.join(OPTIONS)}")
        if "pipeline" not in given:
            raise UsageError("option `pipeline` is missing", 'Name the pipeline file: .option("pipeline", "shop.yaml")')
        names = {name: given.get(name, "") for name in ("table", "source", "destination")}
        everything = given.get("all", "false").lower()
        if everything not in ("true", "false") or (everything == "true" and names["table"]):
            raise UsageError("option `all` is true or false, and goes without `table`", "Leave one of them out")
        return Reading.of(given["pipeline"], **names, everything=everything == "true")


@dataclass
class PenstockReader(DataSourceReader):
    """A batch: [from, to)."""

    reading: Reading
    begin: str
    end: str

    def partitions(self) -> Sequence[InputPartition]:
        begin, end = (_position(text, self.reading) for text in (self.begin, self.end))
        return [LogPartition(piece) for piece in self.reading.pieces(begin, end)]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        return _read(self.reading, partition)


@dataclass
class PenstockStreamReader(DataSourceStreamReader):
    reading: Reading
    begin: str

    def initialOffset(self) -> dict[str, str]:
        return self._offset(_position(self.begin, self.reading))

    def latestOffset(self) -> dict[str, str]:
        return self._offset(self.reading.bounds()[1])

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        begin = parse_position(start["position"])
        if not start["log"]:  # the log was empty when the stream began
            begin = self.reading.bounds()[0]
        elif start["log"] != self.reading.history():
            raise LogPassed(
                f"the stream's checkpoint is at {start['position']} of another change log than {self.reading.log.uri}",
                "The log was reset: start the stream again with a new checkpoint",
            )
        return [LogPartition(piece) for piece in self.reading.pieces(begin, parse_position(end["position"]))]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        return _read(self.reading, partition)

    def _offset(self, position: Position) -> dict[str, str]:
        return {"position": position_text(position), "log": self.reading.history()}


def _read(reading: Reading, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """PySpark plans one partition of None where there is nothing to read."""
    return reading.read(partition.piece) if isinstance(partition, LogPartition) else iter(())


def _position(text: str, reading: Reading) -> Position:
    begin, end = reading.bounds()
    if text in ("start", "end"):
        return begin if text == "start" else end
    try:
        return parse_position(text)
    except ValueError as error:
        raise UsageError(str(error), "Give a position such as 0/16B3748, `start` or `end`") from None
