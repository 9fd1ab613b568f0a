"""What befalls a Postgres destination: its server, its disk, and what people do to its tables.

One pipeline lives through all of it, as a role that is no superuser. Whatever happens to one table, the others go on;
in the end all are equal to the source, and what a person added is still there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from databases import Database
from level import level
from penstock.demo.server import PostgresServer
from penstock.model.table_state import TableStatus
from penstock.state.sql import find_store
from running import PipelineFile, Running, await_condition, make_pipeline, running

TABLES = ("kept", "dropped", "emptied", "refilled", "packed", "alike", "taken", "roomy")
ROWS = 20


@contextmanager
def small_disk(server: PostgresServer, megabytes: int) -> Iterator[Path]:
    """A file system of that size, as a tablespace's folder."""
    folder = server.folder / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=777", "tmpfs", str(folder)], check=True)
    try:
        owned = folder / "space"
        owned.mkdir()
        shutil.chown(owned, "nobody")
        yield owned
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@dataclass
class Trouble:
    source: Database
    server: PostgresServer
    copy: Database  # as its superuser
    file: PipelineFile
    run: Running

    def level(self, *errored: str) -> None:
        level(self.run, self.file, ["copy"], errored=[f"public.{table}" for table in errored])

    def status(self, table: str) -> TableStatus:
        store = find_store(self.file.state)
        assert store is not None
        try:
            return next(one for name, one in store.table_status("copy").items() if name.name == table)
        finally:
            store.close()

    def change(self, *tables: str) -> None:
        self.source.execute(*(f"update {table} set n = n + 1 where id % 3 = 0" for table in tables or TABLES))

    def assert_equal(self, *others: str) -> None:
        """All tables but `others`."""
        for table in TABLES:
            if table not in others:
                query = f"select id, n, note from {table}".encode()
                found: list[Counter[Any]] = []
                for database in (self.source, self.copy):
                    with database.connect() as connection:
                        found.append(Counter(connection.execute(query).fetchall()))
                assert found[0] == found[1], (table, found[0] - found[1], found[1] - found[0])


def test_what_befalls_a_postgres_destination(postgres: Database, tmp_path: Path) -> None:
    for table in TABLES:
        postgres.execute(
            f"create table {table} (id int primary key, n int, note text)",
            f"insert into {table} select n, n, 'first' from generate_series(1, {ROWS}) n",
        )
    with PostgresServer() as server:
        copy = Database("copy", server.url())
        copy.execute(
            "create role app login",
            "grant create on database postgres to app",
            "grant usage, create on schema public to app",
        )
        destination: dict[str, Any] = {"name": "copy", "type": "postgres", "url": server.url(user="app")}
        destination["maintenance"] = {"advance_idle_every": "1s"}
        file = make_pipeline(tmp_path, postgres, destinations=[destination])
        with running(file) as run:
            trouble = Trouble(postgres, server, copy, file, run)
            trouble.level()
            for act in ACTS:
                act(trouble)
                trouble.change()
                trouble.level()
                trouble.assert_equal()
        assert copy.value("select count(mine) from kept") == ROWS, "a person's column"


def a_column_is_added(trouble: Trouble) -> None:
    trouble.copy.execute(
        "alter table kept add column mine text not null default 'default'", "update kept set mine = id"
    )
    trouble.change()
    trouble.level()
    assert trouble.copy.value("select count(*) from kept where mine = id::text") == ROWS


def a_table_is_dropped(trouble: Trouble) -> None:
    trouble.copy.execute("drop table dropped")


def a_table_is_emptied(trouble: Trouble) -> None:
    """Nothing is written to it: the look at idle tables notices it."""
    trouble.copy.execute("truncate emptied")
    await_condition(lambda: trouble.copy.value("select count(*) from emptied") == ROWS, "a new copy", 60)


def a_table_is_refilled(trouble: Trouble) -> None:
    """In one transaction, as a script that loads a table would."""
    trouble.copy.execute("begin; truncate refilled; insert into refilled values (1000, 1, 'not the source'); commit")


def a_table_is_packed(trouble: Trouble) -> None:
    """VACUUM FULL gives a table another file with the same rows: no reason to copy it again."""
    began = trouble.status("packed").since
    trouble.copy.execute("vacuum full packed")
    trouble.change("packed")
    trouble.level()
    assert trouble.status("packed").since == began


def a_unique_index_refuses(trouble: Trouble) -> None:
    trouble.copy.execute("create unique index alike_note on alike (note) where id > 1000")
    trouble.source.execute("insert into alike values (1001, 1, 'same')", "insert into alike values (1002, 2, 'same')")
    trouble.change("kept")
    trouble.level("alike")
    trouble.assert_equal("alike")
    found = trouble.status("alike")
    assert "alike_note" in found.reason, found.reason
    assert "id = 1002" in found.reason or "id = 1001" in found.reason, found.reason
    assert found.code == "row-refused"
    trouble.copy.execute("drop index alike_note")
    assert trouble.file.command("retry", "FILE", "public.alike").returncode == 0


def rights_are_taken(trouble: Trouble) -> None:
    trouble.copy.execute("alter table taken owner to postgres")
    trouble.change()
    trouble.level("taken")
    trouble.assert_equal("taken")
    assert "GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE" in trouble.status("taken").solution
    trouble.copy.execute("grant select, insert, update, delete, truncate on taken to app")
    assert trouble.file.command("retry", "FILE", "public.taken").returncode == 0


def fill(path: Path) -> None:
    """Write until there is no room."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 14))
    assert shutil.disk_usage(path.parent).free == 0


def the_disk_is_full(trouble: Trouble) -> None:
    """Only root may mount a small disk; others have the test that raises the server's own error."""
    if os.geteuid() != 0:
        return
    with small_disk(trouble.server, 8) as folder:
        trouble.copy.execute(f"create tablespace small location '{folder}'", "alter table roomy set tablespace small")
        filling = folder / "filling"
        fill(filling)
        body = "(select string_agg(md5((n * 100 + m)::text), '') from generate_series(1, 30) m)"
        trouble.source.execute(f"insert into roomy select n, n, {body} from generate_series(1001, 2000) n")
        trouble.run.await_text("Make room on the server's disk", 60)
        filling.unlink()
        trouble.level()
        trouble.assert_equal()
        trouble.copy.execute("alter table roomy set tablespace pg_default", "drop tablespace small")


def a_backup_is_restored(trouble: Trouble) -> None:
    """Rows and positions go back together; what came after is applied again, or copied if the log has let go of it."""
    server = trouble.server
    backup = server.folder / "backup"
    server.stop()
    subprocess.run(["cp", "-a", str(server.data), str(backup)], check=True)
    server.start()
    for _ in range(3):
        trouble.change()
        trouble.source.execute(
            "insert into kept select max(id) + 1, 0, 'later' from kept", "delete from kept where id > 20"
        )
        trouble.level()
    server.stop()
    shutil.rmtree(server.data)
    subprocess.run(["mv", str(backup), str(server.data)], check=True)
    server.start()


ACTS: tuple[Callable[[Trouble], None], ...] = (
    a_column_is_added,
    a_table_is_dropped,
    a_table_is_emptied,
    a_table_is_refilled,
    a_table_is_packed,
    a_unique_index_refuses,
    rights_are_taken,
    the_disk_is_full,
    a_backup_is_restored,
)
