"""What the suite's figures are held against, for a machine of 2 cores: at least, and what is aimed at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    at_least: float
    aim: float
    more_is_better: bool = True

    def verdict(self, figure: float) -> str:
        if self._reaches(figure, self.aim):
            return "aim reached"
        return "reached" if self._reaches(figure, self.at_least) else "missed"

    def _reaches(self, figure: float, bound: float) -> bool:
        return figure >= bound if self.more_is_better else figure <= bound


CAPTURE_OF_RECVLOGICAL = Target(1.0, 1.5)
DRAIN_OF_RECVLOGICAL = Target(0.7, 1.2)
DRAIN_AGAINST_DEBEZIUM = Target(3.5, 5)
MYSQL_CAPTURE = Target(0.8, 1.5)  # of mysqlbinlog's speed
MYSQL_DRAIN = Target(120_000, 180_000)  # changes per second
MYSQL_COPY_AGAINST_JDBC = Target(2, 4)
COPY_AGAINST_JDBC = Target(1.0, 2)
COPY_AGAINST_DEBEZIUM = Target(10, 20)
FRESHNESS_P50 = Target(1.0, 0.5, more_is_better=False)
FRESHNESS_P99 = Target(2.5, 1.0, more_is_better=False)
FRESHNESS_P99_20_TABLES = Target(5, 2, more_is_better=False)
BATCH_BY_ROWS = Target(1.5, 1.1, more_is_better=False)
BATCH_BY_TABLES = Target(15, 6, more_is_better=False)
READ_WHILE_STREAMING = Target(2.5, 1.5, more_is_better=False)
CAPTURE_MEBIBYTES = Target(300, 150, more_is_better=False)
LONGEST_HOLD = Target(2, 2, more_is_better=False)  # seconds that a batch waits for maintenance
STREAM_INTO_KAFKA = Target(100_000, 150_000)  # changes per second
STREAM_AGAINST_DEBEZIUM = Target(3.5, 5)
STREAM_FRESHNESS_P50 = Target(0.4, 0.2, more_is_better=False)
STREAM_FRESHNESS_P99 = Target(1.0, 0.5, more_is_better=False)
STREAM_MEMORY = Target(1.5, 1.1, more_is_better=False)  # of a transaction of 5 million, of one of 1 million
POSTGRES_CHANGES = Target(40_000, 60_000)  # changes per second
POSTGRES_FRESHNESS_P50 = Target(0.7, 0.4, more_is_better=False)
DELTA_OF_ICEBERG = Target(0.7, 1.0)  # of Iceberg's speed
DELTA_AGAINST_MERGE = Target(20, 50)
SECOND_DESTINATION = Target(1.0, 0.9, more_is_better=False)  # CPU of both, of the sum of each alone
HISTORY_BY_ENDED = Target(2, 2, more_is_better=False)
FRESHNESS_DURING_OUTAGE = Target(1.1, 1.0, more_is_better=False)  # of the same destination's before
SERVER_ANSWER_P99 = Target(250, 100, more_is_better=False)  # milliseconds
SERVER_COST = Target(1.1, 1.0, more_is_better=False)  # of freshness without clients
RETAINED_DURING_OUTAGE = Target(0.25, 0.1, more_is_better=False)  # WAL, of what was written meanwhile
