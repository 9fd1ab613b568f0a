"""Reading a MySQL table for its copy: rows a second of typed Arrow batches, by two processes, beside Spark's JDBC.

    python benchmarks/mysql_copy.py [--rows 1000000] [--rounds 3]

Both read the same ranges of keys of a table of 10 columns over two connections without TLS, in turns, in one run; Spark
(`local[2]`, warm, streaming results) throws its rows away. The best round counts. The server, which makes the same text
of every value for both, shares the cores, so the readers' own CPU seconds stand beside the clock's.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from harness import Result, parser, report, say
from mysql_readers import COLUMNS, VALUES, mysql_server
from mysql_server import PASSWORD, USER, MysqlServer, numbers
from penstock.config.mysql_source import address_of
from penstock.model.table import TableId
from penstock.source.mysql.catalogue import discover
from penstock.source.mysql.connect import connect
from penstock.source.mysql.copy_read import KeyRange, MysqlTableReader
from penstock.source.mysql.snapshot import MysqlSnapshot
from targets import MYSQL_COPY_AGAINST_JDBC
from watch import Usage, peak_memory

DRIVER = "com.mysql:mysql-connector-j:9.1.0"
PROCESSES = 2
RANGE_BYTES = 32 << 20
TABLE = TableId("shop", "orders")


def read(task: tuple[MysqlTableReader, KeyRange]) -> tuple[int, int, float]:
    """Rows read, the process's peak memory in MiB, and the CPU seconds that it took."""
    reader, part = task
    began = time.process_time()
    rows = sum(batch.num_rows for batch in reader.read(part, statement_timeout=600))
    return rows, peak_memory(), time.process_time() - began


def by_processes(url: str, pool: ProcessPoolExecutor) -> tuple[float, int, Usage]:
    began = time.perf_counter()
    address = address_of(url)
    with connect(address) as connection:
        (found,) = discover(connection, address, TABLE.__eq__)
    schema = found.schema
    with MysqlSnapshot(address) as snapshot, snapshot.session() as session:
        ranges = session.plan_ranges(schema, range_bytes=RANGE_BYTES)
        reader = session.reader(schema)
        done = list(pool.map(read, [(reader, part) for part in ranges]))
    took = time.perf_counter() - began
    usage = Usage(max(peak for _, peak, _ in done), round(sum(cpu for _, _, cpu in done), 2), PROCESSES)
    return took, sum(rows for rows, _, _ in done), usage


def java_seconds() -> float:
    """CPU seconds of Spark so far."""
    children = psutil.Process().children(recursive=True)
    return sum(sum(one.cpu_times()[:2]) for one in children if one.name() == "java")


def by_jdbc(spark: SparkSession, server: MysqlServer, rows: int) -> float:
    began = time.perf_counter()
    found = spark.read.jdbc(
        f"jdbc:mysql://127.0.0.1:{server.port}/shop?sslMode=DISABLED&allowPublicKeyRetrieval=true",
        "orders",
        column="id",
        lowerBound=1,
        upperBound=rows,
        numPartitions=PROCESSES,
        properties={
            "user": USER,
            "password": PASSWORD,
            "driver": "com.mysql.cj.jdbc.Driver",
            "fetchsize": "-2147483648",  # rows as they come, with this driver
        },
    )
    found.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    jdbc: list[float] = []
    ours: list[float] = []
    jdbc_cpu: list[float] = []
    our_cpu: list[float] = []
    spawn = multiprocessing.get_context("spawn")
    builder = SparkSession.builder.master(f"local[{PROCESSES}]").config("spark.jars.packages", DRIVER)
    spark = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "2g").getOrCreate()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        mysql_server(Path(folder)) as server,
        ProcessPoolExecutor(PROCESSES, mp_context=spawn) as pool,
    ):
        say("filling the table")
        server.execute(f"CREATE TABLE shop.orders ({COLUMNS})")
        for at in range(0, options.rows, 100_000):
            piece = numbers(min(100_000, options.rows - at))
            server.execute(f"INSERT INTO shop.orders SELECT {VALUES.format(f'(seq + {at})')} FROM {piece}")
        server.execute("ANALYZE TABLE shop.orders")
        url = server.url + "?ssl-mode=DISABLED"
        by_processes(url, pool)  # starts the processes
        for _ in range(2):
            by_jdbc(spark, server, options.rows)
        for _ in range(options.rounds):
            before = java_seconds()
            jdbc.append(by_jdbc(spark, server, options.rows))
            jdbc_cpu.append(java_seconds() - before)
            seconds, rows, usage = by_processes(url, pool)
            if rows != options.rows:
                raise SystemExit(f"read {rows} rows of {options.rows}")
            ours.append(seconds)
            our_cpu.append(usage.cpu_seconds)
            say(f"Spark JDBC {jdbc[-1]:.2f} s, penstock {seconds:.2f} s")
        spark.stop()
    report(
        "mysql_copy",
        f"reading {options.rows:,} rows of MySQL, best of {options.rounds}",
        ("what", "seconds", "rows/s"),
        [
            (what, min(took), round(options.rows / min(took)))
            for what, took in (("Spark JDBC, warm, to nowhere", jdbc), (f"penstock, {PROCESSES} processes", ours))
        ],
        options=options,
        results=[
            Result(
                f"MySQL: reading {options.rows:,} rows into Arrow",
                f"{options.rows / min(ours):,.0f} rows/s",
                f"Spark JDBC, warm, {options.rows / min(jdbc):,.0f} rows/s",
                min(jdbc) / min(ours),
                "× its speed",
                MYSQL_COPY_AGAINST_JDBC,
            ),
            Result(
                f"MySQL: reading {options.rows:,} rows into Arrow, by the reader's own CPU",
                f"{min(our_cpu):.2f} CPU s",
                f"Spark JDBC, warm, {min(jdbc_cpu):.2f} CPU s",
                min(jdbc_cpu) / min(our_cpu),
                "× its rows a CPU second",
            ),
        ],
        processes={"read_range": {"workers": usage}},
        seconds={"jdbc": jdbc, "penstock": ours},
    )


if __name__ == "__main__":
    main()
