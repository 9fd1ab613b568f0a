"""Where capture goes on: however the binlog is cut and packed, after a failover, and never past what is missing.

MySQL's part runs with `--full`: its server is a large download (server_dist.py).
"""

from __future__ import annotations

import copy
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from background import in_background
from binlog_capture import ListSink, capture_all, capturing, pipeline_of
from mysql_bench import MysqlBench
from mysql_server import LARGE, PASSWORD, SERVERS, USER, MariadbServer, MysqlServer, Server, numbers
from penstock.config.mysql_source import address_of
from penstock.errors import GapError, PenstockError, SourceUnreachable
from penstock.model.table import TableId
from penstock.source.factory import source_of
from penstock.source.mysql import events, transactions
from penstock.source.mysql.connect import connect, rows
from penstock.source.sink import CapturedSlice
from running import await_condition

BOTH = ["mariadb", *(pytest.param(one, marks=pytest.mark.full) for one in LARGE)]


@pytest.fixture(scope="module", params=BOTH)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as started:
        yield started


def all_kinds_of_events(server: Server) -> None:
    """Write transactions small and large, packed and not, with and without checksums, over several files."""
    server.execute(
        "DROP TABLE IF EXISTS shop.t",
        "CREATE TABLE shop.t (id int primary key, note varchar(400), b longblob)",
        *(f"INSERT INTO shop.t VALUES ({-number}, 'é{number}', NULL)" for number in range(1, 20)),
        "BEGIN",
        "INSERT INTO shop.t VALUES (0, 'kept', x'00')",
        "SAVEPOINT s",
        "UPDATE shop.t SET note = 'undone'",
        "ROLLBACK TO s",
        "DELETE FROM shop.t WHERE id = -1",
        "COMMIT",
        "FLUSH BINARY LOGS",
        f"INSERT INTO shop.t SELECT seq, repeat('x', seq % 300), NULL FROM {numbers(3000)}",
        "INSERT INTO shop.t VALUES (100000, 'large', repeat('y', 70000)), (100001, 'empty', '')",
        f"SET GLOBAL {server.compression} = ON",
    )
    server.execute(  # in a new session, which takes the setting
        f"UPDATE shop.t SET note = concat(note, '{'z' * 50}') WHERE id % 3 = 0 AND id BETWEEN 0 AND 900",
        "UPDATE shop.t SET id = id + 500000 WHERE id BETWEEN 10 AND 20",
        "SET GLOBAL binlog_checksum = NONE",
        "DELETE FROM shop.t WHERE id BETWEEN 100 AND 600",
        "INSERT INTO shop.t VALUES (700000, 'without checksum', NULL)",
        f"SET GLOBAL {server.compression} = OFF",
        "SET GLOBAL binlog_checksum = CRC32",
        "TRUNCATE shop.t",
        "INSERT INTO shop.t VALUES (1, 'last', NULL)",
    )


class Died(PenstockError):
    """What a death leaves behind is the same."""


class Dying(ListSink):
    """A sink at which capture dies in two of three writes, before or after it was done; what was done stays."""

    count = 0

    def append(self, end: int, slices: Sequence[CapturedSlice], state: str | None = None) -> None:
        self.count += 1
        if self.count % 3 == 1:
            raise Died("died", "")
        super().append(end, slices, state)
        if self.count % 3 == 2:
            raise Died("died", "")


def test_the_same_rows_in_blocks_and_segments_of_any_size_and_through_deaths(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, begun = pipeline_of(tmp_path, server.url), ListSink()
    capture_all(pipeline, begun)
    all_kinds_of_events(server)
    expected = copy.deepcopy(begun)
    capture_all(pipeline, expected)
    found = expected.rows()
    assert len(found) > 3500
    for chunk, segment_bytes, look in (
        (1 << 20, 3000, 100),
        (1 << 20, 1 << 20, 1),
        (1 << 20, 1 << 20, 1 << 30),  # every event by itself
        (700, 1 << 20, 1),
        (61, 50_000, 4),
    ):
        monkeypatch.setattr(events, "CHUNK", chunk)
        monkeypatch.setattr(transactions, "_WORTH_A_LOOK", look)
        sink = copy.deepcopy(begun)
        capture_all(pipeline, sink, segment_bytes=segment_bytes)
        assert sink.rows() == found, (chunk, segment_bytes, look)
        assert sink.origin == expected.origin
    monkeypatch.setattr(events, "CHUNK", 5000)
    dying, deaths = Dying(**vars(copy.deepcopy(begun))), 0
    while dying.end != expected.end:
        try:
            capture_all(pipeline, dying, segment_bytes=20_000)
        except Died:
            deaths += 1
    assert deaths > 5
    assert dying.rows() == found


@pytest.mark.full
def test_events_over_16_mib_come_in_several_packets(server: Server, tmp_path: Path) -> None:
    pipeline, sink = pipeline_of(tmp_path, server.url), ListSink()
    server.execute(
        "SET GLOBAL max_allowed_packet = 128 * 1024 * 1024",
        "DROP TABLE IF EXISTS shop.t",
        "CREATE TABLE shop.t (id int primary key, b longblob)",
    )
    capture_all(pipeline, sink)
    sizes = [40 << 20, *range((16 << 20) - 48, (16 << 20) - 42)]  # the lengths at which a packet is just full, too
    server.execute(*(f"INSERT INTO shop.t VALUES ({number}, repeat('x', {size}))" for number, size in enumerate(sizes)))
    capture_all(pipeline, sink)
    rows = sink.rows()
    assert [len(row[7].rstrip(b"x")) + row[7].count(b"x") for row in rows] == [1 + 1 + 4 + 4 + size for size in sizes]
    source = source_of(pipeline.source)
    with source.snapshot(timeout=10, waiting=lambda _: None) as snapshot, snapshot.session() as session:
        schema = session.describe(pipeline, TableId("shop", "t"))
        assert schema is not None
        (part,) = session.plan_ranges(schema, range_bytes=1 << 40)
        batches = list(session.reader(schema).read(part, statement_timeout=60))
    copied = [(key, len(value)) for one in batches for key, value in zip(*one.to_pydict().values(), strict=True)]
    assert copied == list(enumerate(sizes))


def test_an_event_that_was_altered_on_the_way_is_never_taken(server: Server, tmp_path: Path) -> None:
    pipeline, begun = pipeline_of(tmp_path, server.url), ListSink()
    server.execute("DROP TABLE IF EXISTS shop.t", "CREATE TABLE shop.t (id int primary key, note varchar(300))")
    capture_all(pipeline, begun)
    file = server.data / server.rows("SHOW BINARY LOGS")[-1][0]
    server.execute("INSERT INTO shop.t VALUES (1, 'a needle')", "FLUSH BINARY LOGS")
    whole = file.read_bytes()
    with file.open("r+b") as opened:
        opened.seek(whole.rindex(b"a needle"))
        opened.write(b"A")
    with capturing(pipeline, begun) as captured:
        waiting = lambda: any("fails its checksum" in str(one.get("error")) for one in captured.reports)  # noqa: E731
        await_condition(waiting, "the checksum to fail", 20)
        assert begun.rows() == []
        with file.open("r+b") as opened:
            opened.seek(whole.rindex(b"a needle"))
            opened.write(b"a")
        await_condition(lambda: len(begun.rows()) == 1, "the row", 20)


@contextmanager
def traffic(server: Server) -> Iterator[None]:
    """Commit, one after the other, while inside."""

    def work(stop: Event) -> None:
        connection, number = server.connect("shop"), server.rows("SELECT COALESCE(MAX(id), 0) FROM shop.t")[0][0]
        with connection.cursor() as cursor:
            while not stop.is_set():
                number += 1
                cursor.execute("BEGIN")
                cursor.execute(f"INSERT INTO t VALUES ({number}, '{server.server_id}')")
                cursor.execute(f"UPDATE t SET note = concat(note, 'x') WHERE id = {max(1, number - 7)}")
                cursor.execute(f"UPDATE t SET id = -id WHERE id = {max(1, number - 20)}")
                cursor.execute("COMMIT")
        connection.close()

    with in_background(work):
        yield


def replicate(primary: Server, replica: Server) -> None:
    """Both begin empty, with the same accounts."""
    for one in (primary, replica):
        one.execute("RESET MASTER")
    if isinstance(primary, MariadbServer):
        replica.execute(
            "SET GLOBAL gtid_slave_pos = ''",
            f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={primary.port}, MASTER_USER='{USER}',"
            f" MASTER_PASSWORD='{PASSWORD}', MASTER_USE_GTID=slave_pos",
            "START SLAVE",
        )
    else:
        replica.execute(
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={primary.port}, SOURCE_USER='{USER}',"
            f" SOURCE_PASSWORD='{PASSWORD}', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1",
            "START REPLICA",
        )


def await_replica(primary: Server, replica: Server) -> None:
    query = "SELECT @@GLOBAL.gtid_binlog_pos" if isinstance(primary, MariadbServer) else "SELECT @@GLOBAL.gtid_executed"
    await_condition(lambda: primary.rows(query) == replica.rows(query), "the replica to be level", 30, every=0.1)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_replica_takes_over_in_the_middle_of_traffic(kind: str, tmp_path: Path) -> None:
    options = ["--log-slave-updates"]
    with (
        SERVERS[kind](tmp_path / "1", options) as primary,
        SERVERS[kind](tmp_path / "2", options, server_id=2) as replica,
    ):
        replicate(primary, replica)
        primary.execute("CREATE TABLE shop.t (id int primary key, note varchar(900))")
        bench = MysqlBench(tmp_path / "p", primary.url, segment_bytes=20_000)
        bench.start()
        with traffic(primary):
            bench.settle("t")
            replica.execute("STOP SLAVE SQL_THREAD")
            time.sleep(0.5)
            bench.settle("t")
            bench.stop()
        bench.follow(replica.url)
        with pytest.raises(GapError, match="set `failover: 1` under `source:`"):
            bench.start()
        bench.follow(replica.url, failover=1)
        with pytest.raises(GapError, match=r"never executed|does not go on where the change log ends"):
            _follow_until_it_fails(bench)
        replica.execute("START SLAVE SQL_THREAD")
        await_replica(primary, replica)
        primary.kill()
        replica.execute("STOP SLAVE")
        with traffic(replica):
            bench.start()
            bench.settle("t")
            bench.stop()
            bench.start()
            bench.settle("t")
        bench.settle("t")
        found = sorted((row["id"], row["note"]) for row in bench.rows("t"))
        assert found == sorted(replica.rows("SELECT id, note FROM shop.t"))
        assert {note[0] for _, note in found} == {"1", "2"}
        bench.stop()
        with source_of(bench.pipeline.source).connect() as session:
            assert bench.pipeline.source.type == "mysql"
            assert session.head() >> 54 == 1
        bench.follow(replica.url, failover=3)
        with pytest.raises(GapError, match="failover is 3, and the change log was written with 1"):
            bench.start()


def _follow_until_it_fails(bench: MysqlBench) -> None:
    """MySQL is asked before capture begins; MariaDB refuses when it is asked for its binlog."""
    bench.start()
    try:
        bench.settle("t")
    finally:
        bench.stop()
        bench.failure = None


@pytest.mark.full
def test_a_server_without_gtids_is_copied_and_followed(tmp_path: Path) -> None:
    with MysqlServer(tmp_path / "s", ["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"]) as server:
        server.execute(
            "CREATE TABLE shop.t (id int primary key, note varchar(900))", "INSERT INTO shop.t VALUES (1, '')"
        )
        bench = MysqlBench(tmp_path / "p", server.url)
        with source_of(bench.pipeline.source).connect() as session:
            levels = {one.level: one.what for one in session.check(bench.pipeline)}
        assert "lacks the right RELOAD" in levels["error"]
        assert "gtid_mode is not ON" in levels["warning"]
        server.execute(f"GRANT RELOAD ON *.* TO {USER}@'%'")
        with traffic(server), bench:
            bench.settle("t")
        with traffic(server), bench:
            bench.settle("t")
        with bench:
            bench.settle("t")
            found = sorted((row["id"], row["note"]) for row in bench.rows("t"))
            assert found == sorted(server.rows("SELECT id, note FROM shop.t"))
        server.execute(
            "CREATE TABLE shop.j (id int primary key, doc json)", "INSERT INTO shop.j VALUES (1, '[1, 2, 3]')"
        )
        with MysqlBench(tmp_path / "q", server.url, match="shop.j") as bench:
            bench.settle("j")
            server.execute(
                "SET SESSION binlog_row_value_options = PARTIAL_JSON",
                "UPDATE shop.j SET doc = JSON_SET(doc, '$[1]', 7)",
            )
            assert "a part of a JSON value" in bench.await_errored("j").reason


def test_each_ssl_mode_does_what_it_says(tmp_path: Path) -> None:
    _every_mode(MariadbServer, tmp_path)


@pytest.mark.full
def test_each_ssl_mode_does_what_it_says_with_mysql(tmp_path: Path) -> None:
    _every_mode(MysqlServer, tmp_path)


def _every_mode(kind: type[Server], folder: Path) -> None:
    certificates(folder)
    files = [f"--ssl-ca={folder}/ca.pem", f"--ssl-cert={folder}/server.pem", f"--ssl-key={folder}/server.key"]
    with kind(folder / "tls", files) as server:
        server.execute(
            "CREATE USER only@'%' IDENTIFIED BY 'pw' REQUIRE X509",
            *(
                ["CREATE USER native@'%' IDENTIFIED WITH mysql_native_password BY 'pw'"]
                if kind is MysqlServer
                else ["CREATE USER native@'%' IDENTIFIED VIA mysql_native_password USING PASSWORD('pw')"]
            ),
        )
        ca, by_name = f"&ssl-ca={folder}/ca.pem", server.url.replace("127.0.0.1", "localhost")
        for mode in ("PREFERRED", "REQUIRED", f"VERIFY_CA{ca}"):
            assert cipher(f"{server.url}?ssl-mode={mode}"), mode
        assert cipher(f"{by_name}?ssl-mode=VERIFY_IDENTITY{ca}")
        assert cipher(f"{server.url}?ssl-mode=REQUIRED".replace(f"{USER}:{PASSWORD}", "native:pw"))
        native = f"{server.url}?ssl-mode=DISABLED".replace(f"{USER}:{PASSWORD}", "native:pw")
        assert not cipher(native)
        for mode, problem in (
            ("VERIFY_CA", "certificate verify failed"),
            (f"VERIFY_IDENTITY{ca}", "certificate verify failed"),  # by another name than the certificate's
        ):
            with pytest.raises(SourceUnreachable, match=problem) as refused:
                cipher(f"{server.url}?ssl-mode={mode}")
            assert PASSWORD not in str(refused.value)
        own = f"{server.url}?ssl-mode=REQUIRED".replace(f"{USER}:{PASSWORD}", "only:pw")
        with pytest.raises(SourceUnreachable, match="does not let only in"):
            cipher(own)
        assert cipher(f"{own}&ssl-cert={folder}/server.pem&ssl-key={folder}/server.key")
        if kind is MysqlServer:  # the server knows the password since the logins above: forget it
            server.execute("FLUSH PRIVILEGES")
            assert not cipher(f"{server.url}?ssl-mode=DISABLED")
        # Capture by TLS reads its socket by another way than without.
        pipeline, sink = pipeline_of(folder / "p", f"{server.url}?ssl-mode=VERIFY_CA{ca}"), ListSink()
        capture_all(pipeline, sink)
        server.execute(
            "CREATE TABLE shop.t (id int primary key, note text)",
            f"INSERT INTO shop.t SELECT seq, repeat('x', 200) FROM {numbers(5000)}",
        )
        capture_all(pipeline, sink)
        assert sum(row[6] == ord("I") for row in sink.rows()) == 5000
    with kind(folder / "plain", ["--skip-ssl"] if kind is MariadbServer else ["--tls-version="]) as server:
        server.execute(
            *(
                ["ALTER USER penstock@'%' IDENTIFIED WITH mysql_native_password BY 's3cret'"]
                if kind is MysqlServer
                else []
            )
        )
        assert not cipher(f"{server.url}?ssl-mode=PREFERRED")
        with pytest.raises(SourceUnreachable, match="does not offer TLS"):
            cipher(f"{server.url}?ssl-mode=REQUIRED")


def cipher(url: str) -> str:
    """Return with what a session of penstock is encrypted; "" when it is not."""
    address = address_of(url)
    connection = connect(address)
    try:
        return str(rows(connection, address, "SHOW STATUS LIKE 'Ssl_cipher'")[0][1])
    finally:
        connection.close()


def certificates(folder: Path) -> None:
    """An authority, and a certificate of its for `localhost`."""
    key = "-newkey rsa:2048 -nodes"
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    for command in (
        f"req -x509 {key} -days 2 -subj /CN=ca -addext basicConstraints=CA:TRUE -keyout ca.key -out ca.pem",
        f"req {key} -subj /CN=localhost -keyout server.key -out server.csr",
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem",
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
