"""What benchmarks write at the source: pgbench's own tables and transactions, and a table of eight columns."""

from __future__ import annotations

import subprocess

import psycopg

from penstock.demo.server import PostgresServer

EIGHT_COLUMNS = """
    create table {table} (id bigint primary key, n int, name text, price numeric(12, 2), at timestamptz, doc jsonb,
                          note text, ok bool)
"""
EIGHT_COLUMN_ROWS = """
    insert into {table} select n, n, 'customer ' || n, n / 7.0, timestamptz '2026-01-01' + n * interval '1 second',
        jsonb_build_object('n', n), 'note of row ' || n, n %% 2 = 0 from generate_series(%s::bigint, %s::bigint) n
"""
TRANSACTION_ROWS = 100
PGBENCH_CLIENTS = 4
PEERS_PUBLICATION = "bench_peers"
W1_TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_history", "pgbench_tellers", "w1")
BIG_WAL = {"max_wal_size": "8GB"}  # so that a checkpoint does not fall into one of two rounds


def create_eight_columns(url: str, table: str, rows: int = 0) -> None:
    """The design's table, with that many rows."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(EIGHT_COLUMNS.format(table=table).encode())
        if rows:
            connection.execute(EIGHT_COLUMN_ROWS.format(table=table).encode(), (1, rows))
        connection.execute(f"vacuum analyze {table}".encode())


def publish_to_peers(url: str) -> None:
    """Publish every table, those without a key too, which penstock has in a publication of their own: a peer reads just
    one. To be called before there are changes: a slot sees a publication as it was when they were made."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create publication {PEERS_PUBLICATION} for all tables".encode())


def insert_at_once(url: str, table: str, rows: int) -> None:
    """One transaction of that many inserts."""
    with psycopg.connect(url) as connection:
        connection.execute(EIGHT_COLUMN_ROWS.format(table=table).encode(), (1, rows))


def change_eight_columns(url: str, table: str, inserts: int, updates: int, deletes: int) -> None:
    """Each in transactions of a hundred rows: first all inserts, then updates of the first rows, then deletes."""
    with psycopg.connect(url) as connection:
        for first in range(1, inserts + 1, TRANSACTION_ROWS):
            connection.execute(EIGHT_COLUMN_ROWS.format(table=table).encode(), (first, first + TRANSACTION_ROWS - 1))
            connection.commit()
        statements = {f"update {table} set n = n + 1": updates, f"delete from {table}": deletes}
        for statement, rows in statements.items():
            for first in range(1, rows + 1, TRANSACTION_ROWS):
                connection.execute(
                    f"{statement} where id between %s and %s".encode(), (first, first + TRANSACTION_ROWS - 1)
                )
                connection.commit()


def pgbench_tables(server: PostgresServer, scale: int) -> None:
    """100,000 accounts for each unit of scale, and the small tables beside them."""
    _pgbench(server, "-i", "-q", "-s", str(scale))


def pgbench_transactions(server: PostgresServer, transactions: int) -> None:
    """TPC-B: four row changes each."""
    each = str(transactions // PGBENCH_CLIENTS)
    _pgbench(server, "-n", "-c", str(PGBENCH_CLIENTS), "-j", "2", "-t", each)


def w1_tables(server: PostgresServer, scale: int) -> None:
    """What W1 begins with: pgbench's tables, and `w1`, an empty table of eight columns."""
    pgbench_tables(server, scale)
    create_eight_columns(server.url(), "w1")


def w1_changes(server: PostgresServer, scale: int) -> None:
    """W1: at scale 10 100,000 TPC-B transactions, then 850,000 changes of the table of eight columns."""
    pgbench_transactions(server, 10_000 * scale)
    change_eight_columns(server.url(), "w1", 50_000 * scale, 30_000 * scale, 5_000 * scale)


def _pgbench(server: PostgresServer, *arguments: str) -> None:
    subprocess.run([str(server.binaries / "pgbench"), *arguments, server.url()], check=True, capture_output=True)
