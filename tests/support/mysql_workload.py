"""Random work on a MariaDB or MySQL server, and what its tables hold: keys that change, triggers, savepoints, and more.

`a` has a key and a trigger, `b` a key of two columns, `bag` none, and `journal` only ever grows.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import cycle
from typing import Any

from mysql_server import Server, numbers

COLUMNS = {"a": "id, note, n", "b": "k, part, v", "bag": "x, y", "journal": "id, what"}

# Followed without a copy, in turns; the other columns stay as they are.
ALTERS = (
    "ADD x int AFTER part",
    "RENAME COLUMN x TO y",
    "MODIFY y bigint FIRST, ADD INDEX (y)",
    "DROP y, ADD z text",
    "DROP z",
)


class MysqlWorkload:
    def __init__(self, server: Server, seed: int = 7) -> None:
        self._server, self._chosen, self.turns = server, random.Random(seed), 0
        self._alters = cycle(ALTERS)
        server.execute(
            "CREATE TABLE shop.a (id int primary key, note varchar(400), n bigint unsigned)",
            "CREATE TABLE shop.b (k varchar(20), part int, v decimal(30,4), primary key (part, k))",
            "CREATE TABLE shop.bag (x int, y varchar(10))",
            "CREATE TABLE shop.journal (id int auto_increment primary key, what varchar(100))",
            "CREATE TRIGGER shop.t AFTER UPDATE ON shop.a FOR EACH ROW INSERT INTO shop.bag VALUES (NEW.id % 10, 't')",
            f"INSERT INTO shop.a SELECT seq, repeat(char(65 + seq % 26), seq % 200), seq FROM {numbers(2000)}",
            f"INSERT INTO shop.bag SELECT seq % 10, seq % 3 FROM {numbers(60)}",
        )

    def take_turns(self, count: int) -> None:
        """Work through some transactions, each of some statements; one in ten is rolled back."""
        chosen, connection = self._chosen, self._server.connect("shop")
        with connection.cursor() as cursor:
            for _ in range(count):
                self.turns += 1
                key = chosen.randrange(1, 3000)
                statements = [
                    f"REPLACE INTO a VALUES ({key}, 'é{key}', {key} * 3)",
                    f"DELETE FROM a WHERE id = {key}",
                    f"UPDATE IGNORE a SET id = id + 1 WHERE id = {key}",
                    f"UPDATE IGNORE a SET id = {key + 1} - id + {key} WHERE id IN ({key}, {key + 1})",
                    f"UPDATE a SET n = n + 1 WHERE id BETWEEN {key} AND {key + 5}",
                    f"INSERT INTO b (k, part, v) VALUES ('k{key % 97}', {key % 5}, {key} / 7)"
                    " ON DUPLICATE KEY UPDATE v = v + 1",
                    f"DELETE FROM b WHERE part = {key % 5} AND k < 'k{key % 97}'",
                    f"INSERT INTO bag VALUES ({key % 10}, 'w')",
                    f"DELETE FROM bag WHERE x = {key % 10} LIMIT 1",
                ]
                cursor.execute("BEGIN")
                cursor.execute(f"INSERT INTO journal (what) VALUES ('{self.turns}')")
                for statement in chosen.sample(statements, 3):
                    cursor.execute(statement)
                    if chosen.random() < 0.2:
                        cursor.execute("SAVEPOINT s")
                        cursor.execute(f"UPDATE a SET note = 'gone' WHERE id = {key + 1}")
                        cursor.execute("ROLLBACK TO s")
                cursor.execute("ROLLBACK" if chosen.random() < 0.1 else "COMMIT")
                if chosen.random() < 0.01:
                    cursor.execute("TRUNCATE b")
                if chosen.random() < 0.02:
                    cursor.execute("FLUSH BINARY LOGS")
                if chosen.random() < 0.02:
                    cursor.execute(f"ALTER TABLE b {next(self._alters)}")
        connection.close()

    def large_transaction(self, rows: int = 8000) -> None:
        self._server.execute(
            "BEGIN",
            f"INSERT INTO shop.b (k, part, v) SELECT concat('l', seq), 9, seq FROM {numbers(rows)}",
            "UPDATE shop.b SET part = 8 WHERE part = 9 AND v < 1000",
            "DELETE FROM shop.b WHERE part IN (8, 9)",
            "INSERT INTO shop.journal (what) VALUES ('large')",
            "COMMIT",
        )

    def alter(self) -> None:
        """Make another table of `a`, with as many columns as before, and give it its old form again."""
        self._server.execute("ALTER TABLE shop.a ADD extra int DEFAULT 5", "ALTER TABLE shop.a DROP extra")

    def expected(self, table: str) -> Counter[tuple[Any, ...]]:
        return Counter(self._server.rows(f"SELECT {COLUMNS[table]} FROM shop.{table}"))


def differences(expected: Counter[tuple[Any, ...]], found: Counter[tuple[Any, ...]]) -> list[str]:
    """Say where two tables differ: nothing when they are equal."""
    return [f"missing: {one}" for one in (expected - found).most_common(5)] + [
        f"too many: {one}" for one in (found - expected).most_common(5)
    ]
