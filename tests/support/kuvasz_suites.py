"""What kuvasz-streamer's own test suites do and expect, written anew: statements, and queries at either side.

A triple is a statement at the source, a query there, and a query at the destination that must give the same rows.
`{sid}` stands for a source's sid.
"""

from __future__ import annotations

Triple = tuple[str, str, str]

_FIELDS = (
    "f1 bigint, f2 bigserial, f3 bit, f4 bit varying, f5 boolean, f6 box, f7 bytea, f8 character, f9 character varying,"
    " f10 cidr, f11 circle, f12 date, f13 double precision, f14 inet, f15 integer, f16 interval, f17 json, f18 jsonb,"
    " f19 line, f20 lseg, f21 macaddr, f22 macaddr8, f23 money, f24 numeric, f25 path, f26 pg_lsn, f28 point,"
    " f29 polygon, f30 real, f31 smallint, f32 smallserial, f33 serial, f34 text, f35 time, f36 time with time zone,"
    " f37 timestamp, f38 timestamp with time zone, f39 tsquery, f40 tsvector, f42 uuid, f43 xml, f44 integer[],"
    " f45 complex"
)
_COMPLEX = "create type complex as (r double precision, i double precision)"
_HISTORY = (
    "kvsz_start timestamptz not null default '1900-01-01', kvsz_end timestamptz not null default '9999-01-01',"
    " kvsz_deleted boolean not null default false"
)


def _source_tables(letter: str) -> list[str]:
    return [
        f"create table {letter}0 (id bigserial, ts timestamptz default now(), name text)",
        f"create table {letter}1 (id serial primary key, name text, salary int, garbage date)",
        f"create table {letter}2 (id int, name text, salary int, extra text)",
        f"alter table {letter}2 replica identity full",
        f"create table {letter}3 (id serial primary key, name text, salary int, garbage date)",
        f"create table {letter}4 (id serial primary key, name text, salary int, garbage date)",
        f"create table {letter}6 (id int primary key, name text, longvalue text)",
        f"create table {letter}7 (id int primary key, name text) partition by range (id)",
        *(f"create table {letter}7_{n} partition of {letter}7 for values from ({n}0) to ({n}9)" for n in range(4)),
        f"create table private.{letter}8 (id serial primary key, name text)",
        f"create table {letter}8 (id serial primary key, name text)",
        f"insert into {letter}0 (name) select 'test' from generate_series(1, 10)",
    ]


def _target_tables(letter: str, sid: str, by_sid: str) -> list[str]:
    """Several have no key: rows are found by those of the source."""
    return [
        f"create table {letter}0 ({sid}id bigint, ts timestamptz, name text)",
        f"create table {letter}1 ({sid}id int, name text, salary int, primary key ({by_sid}id))",
        f"create table r{letter}2 ({sid}id int, name text, salary int, extra text)",
        f"create table {letter}3 ({sid}id int, name text, salary int, primary key ({by_sid}id))",
        f"create table {letter}4 (kvsz_id bigserial, {sid}id int, name text, salary int, {_HISTORY},"
        f" primary key ({by_sid}id, kvsz_id))",
        f"create table {letter}6 ({sid}id int, name text, longvalue text)",
        f"create table {letter}7 ({sid}id int, name text) partition by range (id)",
        f"create table {letter}7_0 partition of {letter}7 for values from (0) to (19)",
        f"create table {letter}7_2 partition of {letter}7 for values from (20) to (39)",
        f"create table {letter}8 ({sid}id int, name text)",
        f"create table p{letter}8 ({sid}id int, name text)",
    ]


SOURCE = [
    "create schema private",
    _COMPLEX,
    *_source_tables("t"),
    f"create table t5 ({_FIELDS})",
    "alter table t5 replica identity full",
    "insert into t5 (f1) values (null)",
]
TARGET = [_COMPLEX, *_target_tables("t", "sid text, ", "sid, "), f"create table t5 (sid text, {_FIELDS})"]
SOURCE_WITHOUT_SID = ["create schema private", *_source_tables("d")]
TARGET_WITHOUT_SID = _target_tables("d", "", "")

VALUES = {
    "f1": "-9023372036854770000",
    "f2": "1",
    "f3": "'1'",
    "f4": "'110101'",
    "f5": "true",
    "f6": "'(1,1),(4,4)'",
    "f7": r"'\xdeadbeef'",
    "f8": "'A'",
    "f9": "'ABCD'",
    "f10": "'192.168.0.1'",
    "f11": "'(2,2),4'",
    "f12": "'2023-01-01'",
    "f13": "123.123456789012345",
    "f14": "'192.168.0.0/16'",
    "f15": "1000000",
    "f16": "'P1DT5M'",
    "f17": '\'{{"name":"value"}}\'',
    "f18": '\'{{"name":"value"}}\'',
    "f19": "'{{1,2,3}}'",
    "f20": "'(1,1),(5,5)'",
    "f21": "'08:00:2b:01:02:03'",
    "f22": "'08:00:2b:01:02:03:04:05'",
    "f23": "123.12",
    "f24": "1234567890.12345678901234567890",
    "f25": "'[(1,1),(2,1),(4,4)]'",
    "f26": "'16/B374D848'",
    "f28": "'(1,2)'",
    "f29": "'(1,1),(2,1),(4,4)'",
    "f30": "123.123456",
    "f31": "32000",
    "f32": "1",
    "f33": "1",
    "f34": "'abcdefghijabcdefghijabcdefghijabcdefghijabcdefghij'",
    "f35": "'12:34:56.123'",
    "f36": "'12:34:56.123+02'",
    "f37": "'2023-01-02 01:02:03.123'",
    "f38": "'2023-01-02 01:02:03.123+02'",
    "f39": "'fat & rat'",
    "f40": "'a fat cat sat on a mat and ate a fat rat'",
    "f42": "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
    "f44": "'{{1,2,3,4}}'",
    "f45": "'(1,2)'",
}


def suites(letter: str, whose: str) -> list[list[Triple]]:
    """Sync, clone, append, history, TOAST, partitions and schema: a list for each table."""
    t, where = letter, f" where {whose}" if whose else ""

    def same(statement: str, table: str, target: str, columns: str) -> Triple:
        order = f" order by {columns}"
        return statement, f"select {columns} from {table}{order}", f"select {columns} from {target}{where}{order}"

    def clone(statement: str, n: int = 1) -> Triple:
        return same(statement, f"{t}{n}", f"{t}{n}", "id, name, salary")

    def full(statement: str) -> Triple:
        return same(statement, f"{t}2", f"r{t}2", "id, name, salary")

    def whole(statement: str) -> Triple:
        return same(statement, f"{t}2", f"r{t}2", "id, name, salary, extra")

    def toast(statement: str) -> Triple:
        return same(statement, f"{t}6", f"{t}6", "id, name, longvalue")

    def split(statement: str) -> Triple:
        return same(statement, f"{t}7", f"{t}7", "id, name")

    def public(statement: str) -> Triple:
        return same(statement, f"{t}8", f"{t}8", "id, name")

    def private(statement: str) -> Triple:
        return same(statement, f"private.{t}8", f"p{t}8", "id, name")

    opened = ", '1900-01-01'::timestamptz, '9999-01-01'::timestamptz, false"
    versions = "id, name, salary, kvsz_start, kvsz_end, kvsz_deleted"

    def history(statement: str) -> Triple:
        return (
            statement,
            f"select id, name, salary{opened} from {t}4 order by id",
            f"select {versions} from {t}4{where} order by id",
        )

    def chain(statement: str, *names: str, deleted: bool = False) -> Triple:
        """Versions of key 1: each begins where the one before ended, the first in 1900; the last is open or deleted."""
        last = len(names)
        values = ", ".join(f"({n}, '{name}')" for n, name in enumerate(names, 1))
        return (
            statement,
            f"select n, name, n = 1, true, n = {last} and {not deleted}, n = {last} and {deleted}"
            f" from (values {values}) v (n, name) order by n",
            "select row_number() over w, name, kvsz_start = '1900-01-01', coalesce(kvsz_start = lag(kvsz_end) over w,"
            f" true), kvsz_end = '9999-01-01', kvsz_deleted from {t}4 where {whose or 'true'} and id = 1"
            " window w as (order by kvsz_start) order by kvsz_start",
        )

    return [
        [
            same("select 1", f"{t}0", f"{t}0", "id, ts, name"),
            same(f"insert into {t}0 (name) values ('test')", f"{t}0", f"{t}0", "id, ts, name"),
        ],
        [
            clone(f"insert into {t}1 (name) values ('r1')"),
            clone(f"insert into {t}1 (name) values ('r2')"),
            clone(f"update {t}1 set name = 'x1' where id = 1"),
            clone(f"update {t}1 set id = 5 where id = 1"),
            clone(f"delete from {t}1 where id = 5"),
        ],
        [
            full(f"insert into {t}2 (id, name) values (1, 'r1')"),
            full(f"insert into {t}2 (id, name, extra) values (1, 'r1', 'foo')"),
            full(f"update {t}2 set id = 5 where id = 1"),
            full(f"update {t}2 set salary = 2 where id = 5 and extra = 'foo'"),
            whole(f"update {t}2 set salary = 3, extra = 'bar' where extra is null"),
            whole(f"delete from {t}2 where id = 5"),
        ],
        [
            clone(f"insert into {t}3 (name) values ('r1')", 3),
            clone(f"insert into {t}3 (name) values ('r2')", 3),
            clone(f"update {t}3 set name = 'x1' where id = 1", 3),
            clone(f"update {t}3 set id = 5 where id = 1", 3),
            (  # a row that is deleted stays; the one after it tells when the statement has arrived
                f"delete from {t}3 where id = 5; insert into {t}3 (id, name) values (9, 'after')",
                "select id, name from (values (2, 'r2'), (5, 'x1'), (9, 'after')) v (id, name) order by id",
                f"select id, name from {t}3{where} order by id",
            ),
        ],
        [
            history(f"insert into {t}4 (name) values ('r1')"),
            history(f"insert into {t}4 (name) values ('r2')"),
            chain(f"update {t}4 set name = 'x1' where id = 1", "r1", "x1"),
            chain(f"update {t}4 set name = 'z1' where id = 1", "r1", "x1", "z1"),
            chain(f"delete from {t}4 where id = 1", "r1", "x1", "z1", deleted=True),
        ],
        [
            toast(f"insert into {t}6 (id, name) values (1, 'toast')"),
            toast(f"update {t}6 set longvalue = (select string_agg(md5(n::text), '') from generate_series(1, 625) n)"),
            toast(f"update {t}6 set name = 'no-toast'"),
            toast(f"delete from {t}6"),
        ],
        [
            *(split(f"insert into {t}7 (id, name) values ({n}0, 'p{n}')") for n in range(4)),
            split(f"update {t}7 set name = 'p2x' where id = 20"),
            split(f"delete from {t}7 where id = 30"),
        ],
        [
            public(f"insert into {t}8 (name) values ('p1')"),
            public(f"update {t}8 set name = 'x1' where id = 1"),
            public(f"update {t}8 set id = 5 where id = 1"),
        ],
        [
            private(f"insert into private.{t}8 (name) values ('x1')"),
            private(f"update private.{t}8 set name = 'z1' where id = 1"),
            private(f"update private.{t}8 set id = 10 where id = 1"),
        ],
    ]


def type_triples(each: bool) -> list[Triple]:
    """The suite of data types: all columns of a row at once, or `each` on its own."""
    names = ", ".join(VALUES)
    query = f"select {names} from t5"
    statements = [f"update t5 set {name} = {value}" for name, value in VALUES.items()] if each else []
    everything = ", ".join(f"{name} = {value}" for name, value in VALUES.items())
    statements.append(f"update t5 set {everything}")
    return [(statement, query, query + " where sid = '{sid}'") for statement in statements]
