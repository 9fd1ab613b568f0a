"""Values of every type, with its extremes, at least twenty for each: as SQL expressions, for tests with Postgres as the
oracle. What the same seed gives is the same."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random

MOST = 24
EXTENSIONS = ("hstore", "citext", "ltree", "cube")
TYPES = (
    "create type mood as enum ('calm', 'so so', 'it''s', '\"', '')",
    "create domain positive as numeric(10,3) check (value > 0)",
    "create domain very_positive as positive",
    "create domain padded as char(6)",
    "create type hours as range (subtype = timestamp)",
    "create table carrier (id int primary key)",
)

Maker = Callable[[Random], str]


def text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _integer(bits: int) -> Maker:
    return lambda random: str(random.randint(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) >> random.randrange(bits))


def _float(random: Random) -> str:
    return text(f"{random.uniform(-1, 1)!r}e{random.randint(-30, 30)}")


def _digits(whole: int, fraction: int) -> Maker:
    def make(random: Random) -> str:
        before = str(random.randrange(10 ** random.randint(1, whole))) if whole else "0"
        behind = "".join(random.choices("0123456789", k=random.randint(0, fraction)))
        return random.choice(("", "-")) + before + (f".{behind}" if behind else "")

    return make


def _words(random: Random) -> str:
    alphabet = "aZ09 ,;:'\"\\{}()[]=>\t\n\r|%_$äß€🐘\u2028\x01"
    return text("".join(random.choices(alphabet, k=random.randrange(12))))


def _hex(random: Random) -> str:
    return text("\\x" + random.randbytes(random.choice((0, 1, 7, 300))).hex())


def _day(random: Random) -> str:
    return f"{random.randint(1, 12000):04}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"


def _clock(random: Random) -> str:
    fraction = random.choice(("", ".5", f".{random.randrange(10**6):06}"))
    return f"{random.randrange(24):02}:{random.randrange(60):02}:{random.randrange(60):02}{fraction}"


def _zone(random: Random) -> str:
    return random.choice(("+00", "-08", "+05:45", "+14", "-12:30"))


def _document(random: Random, depth: int = 3) -> object:
    kind = random.randrange(7 if depth else 5)
    if kind == 5:
        return [_document(random, depth - 1) for _ in range(random.randrange(4))]
    if kind == 6:
        return {f"k{n} \"'": _document(random, depth - 1) for n in range(random.randrange(4))}
    return (None, True, 'wört 🐘 \\ "', random.randint(-(10**30), 10**30), random.random())[kind]


def _json(random: Random) -> str:
    return text(json.dumps(_document(random), ensure_ascii=random.random() < 0.5, indent=random.choice((None, 1))))


def _range(make: Callable[[Random], str]) -> Maker:
    def one(random: Random) -> str:
        low, high = make(random), make(random)
        return text(random.choice((f"[{low},)", f"(,{high}]", f"[{low},{low}]", "(,)", "empty")))

    return one


def _ranges(make: Callable[[Random], str]) -> Maker:
    return lambda random: text("{" + _range(make)(random).strip("'") + "}")


def _moment(random: Random) -> str:
    return f"{random.randint(1000, 9999)}-06-15 {_clock(random)}"


def _choice(*values: str) -> Maker:
    return lambda random: random.choice(values)


def _address(random: Random) -> str:
    return ".".join(str(random.randrange(256)) for _ in range(4))


def _points(count: int) -> Maker:
    def make(random: Random) -> str:
        return ",".join(
            f"({random.uniform(-9, 9)!r},{random.randint(-9, 9)}e{random.randint(-9, 9)})" for _ in range(count)
        )

    return make


FAR = ["'294246-12-31 23:59:59.999999+00'", "'294247-01-01+00'", "'294276-12-31 23:59:59.999999+00'"]
MOMENTS = ["'infinity'", "'-infinity'", "'0001-01-01 00:00+00'", "'0001-12-31 23:59:59.25+00 BC'", "'4713-01-01+00 BC'",
           "'10000-01-01 00:00+00'", "'1970-01-01+00'", "'1969-12-31 23:59:59.999999+00'", *FAR]  # fmt: skip
FREE = ["'NaN'", "'Infinity'", "'-Infinity'", "1.500", "0.00", "1e400", "1e-400", "repeat('7', 1000)::numeric", "1e20",
        "-99999999999999999999.999999999999999999", "1e-18", "1e-19", "0.10000000000000000000000", "12300"]  # fmt: skip

# The fixed values first; what is missing to twenty is made.
_MADE: dict[str, tuple[list[str], Maker]] = {
    "bool": (["true", "false"], _choice("true", "false")),
    "int2": (["-32768", "32767", "0"], _integer(16)),
    "int4": (["-2147483648", "2147483647", "0"], _integer(32)),
    "int8": (["-9223372036854775808", "9223372036854775807", "0"], _integer(64)),
    "float4": (["'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "1e-45", "3.4028235e38", "1.1"], _float),
    "float8": (
        ["'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "5e-324", "1.7976931348623157e308", "1/3::float8"],
        _float,
    ),
    "numeric": (FREE, _digits(24, 22)),
    "numeric(12,2)": (["'NaN'", "9999999999.99", "-0.01"], _digits(10, 2)),
    "numeric(38,0)": (["'NaN'", "repeat('9', 38)::numeric"], _digits(38, 0)),
    "numeric(38,38)": (["'NaN'", "0." + "9" * 38], _digits(0, 38)),
    "numeric(50,5)": (["'NaN'", "repeat('9', 45)::numeric", "repeat('9', 33)::numeric"], _digits(45, 5)),
    "numeric(60,45)": (["'NaN'", "1e-45", "1.5"], _digits(15, 20)),
    "text": (["''", r"'\N'", "'NULL'", "repeat('x', 100000)", "E'\\x01\\x7f'"], _words),
    "varchar(20)": (["''", "'abc  '"], _words),
    "char(12)": (["''", "'ab'", "'éé'"], _words),
    '"char"': (["'a'", "''", "'é'"], _choice("'x'", "'\\'", "'{'", "','")),
    "name": (["'a name'", "''"], _words),
    "citext": (["''", "'AbC'"], _words),
    "bytea": ([r"'\x'", r"'\x00ff5c'", "decode(repeat('ab', 50000), 'hex')"], _hex),
    "date": (
        ["'infinity'", "'-infinity'", "'0001-01-01'", "'0044-03-15 BC'", "'4713-01-01 BC'", "'5874897-12-31'"],
        lambda random: text(_day(random)),
    ),
    "time": (["'00:00'", "'24:00:00'", "'23:59:59.999999'"], lambda random: text(_clock(random))),
    "time(2)": (["'24:00:00'"], lambda random: text(_clock(random))),
    "timetz": (["'24:00:00-08'", "'00:00+15:59'"], lambda random: text(_clock(random) + _zone(random))),
    "timestamp": (MOMENTS, lambda random: text(f"{_day(random)} {_clock(random)}")),
    "timestamp(0)": (MOMENTS[:3], lambda random: text(f"{_day(random)} {_clock(random)}")),
    "timestamptz": (MOMENTS, lambda random: text(f"{_day(random)} {_clock(random)}{_zone(random)}")),
    "interval": (
        ["'0'", "'1 year 2 mons -3 days 04:05:06.789'", "'-178000000 years'", "'178956970 years 7 mons'", "'1 us'"],
        lambda random: text(f"{random.randint(-99, 99)} mons {random.randint(-99, 99)} days {_clock(random)}"),
    ),
    "uuid": (
        ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'00000000-0000-0000-0000-000000000000'"],
        lambda random: text(str(uuid.UUID(int=random.getrandbits(128)))),
    ),
    "json": (["""'{"a": 1,  "a": [null, 2] }'""", "'null'", "'1e400'", f"'{'[' * 500}{']' * 500}'"], _json),
    "jsonb": (["'null'", "'{}'", "'\"\"'", "'1e400'", f"'{'[' * 500}{']' * 500}'"], _json),
    "jsonpath": (["'$'", "'strict $.a[*] ? (@ > 1)'"], _choice("'$.a'", "'$.b[0]'")),
    "bit(3)": (["B'101'", "B'000'"], _choice("B'111'", "B'010'")),
    "varbit": (["B''", "B'10101'", "repeat('10', 500)::varbit"], _choice("B'1'", "B'0'", "B'0011'")),
    "inet": (["'10.0.0.1'", "'10.0.0.1/8'", "'::1'", "'2001:db8::/32'"], lambda random: text(_address(random))),
    "cidr": (["'10.0.0.0/8'", "'10.0.0.1/32'", "'::/0'"], lambda random: text(_address(random) + "/32")),
    "macaddr": (["'08:00:2b:01:02:03'", "'ff-ff-ff-ff-ff-ff'"], lambda random: text(random.randbytes(6).hex(":"))),
    "macaddr8": (["'08:00:2b:01:02:03:04:05'"], lambda random: text(random.randbytes(8).hex(":"))),
    "money": (["'-92233720368547758.08'", "'92233720368547758.07'", "'0'"], _digits(15, 2)),
    "point": (["'(1,0.1)'", "'(NaN,Infinity)'"], lambda random: text(_points(1)(random))),
    "line": (["'{1,2,3}'", "'{0.1,-1,0}'"], _choice("'{1,-1,0}'", "'{3,0,1e300}'")),
    "lseg": (["'[(0,0),(1,1)]'"], lambda random: text(f"[{_points(2)(random)}]")),
    "box": (["'((0,0),(1,1))'"], lambda random: text(_points(2)(random))),
    "path": (["'[(0,0),(1,1)]'", "'((0,0),(1,1))'"], lambda random: text(f"[{_points(3)(random)}]")),
    "polygon": (["'((0,0),(1,1),(2,0))'"], lambda random: text(f"({_points(4)(random)})")),
    "circle": (["'<(0,0),1>'", "'<(0.1,1e10),0>'"], lambda random: text(f"<{_points(1)(random)},{random.random()!r}>")),
    "int4range": (["'empty'", "'[1,5)'", "'(,)'"], _range(lambda random: str(random.randint(-99, 99)))),
    "int8range": (["'empty'", "'[1,5)'"], _range(lambda random: str(random.randint(-(10**18), 10**18)))),
    "numrange": (["'empty'", "'[1.10,1e30)'"], _range(_digits(9, 9))),
    "tsrange": (["'empty'", "'[-infinity,infinity]'"], _range(_moment)),
    "tstzrange": (["'empty'", "'[-infinity,infinity)'"], _range(_moment)),
    "daterange": (["'empty'", "'[,2024-02-29]'"], _range(_day)),
    "int4multirange": (["'{}'", "'{[1,2),[5,9)}'"], _ranges(lambda random: str(random.randint(-99, 99)))),
    "int8multirange": (["'{}'"], _ranges(lambda random: str(random.randint(-99, 99)))),
    "nummultirange": (["'{}'"], _ranges(_digits(9, 9))),
    "tsmultirange": (["'{}'"], _ranges(_moment)),
    "tstzmultirange": (["'{}'"], _ranges(_moment)),
    "datemultirange": (["'{}'"], _ranges(_day)),
    "hours": (["'empty'", "'[2024-01-01,2024-01-02)'"], _range(_moment)),
    "tsvector": (["''", "'a b:1'", "'''it''''s'':1A,2B'"], _choice("'x:3'", "'y:1,2'")),
    "tsquery": (["'a & b'", "'!a <-> b'"], _choice("'x | y'", "'x:*'")),
    "xml": (["'<a>b</a>'", "'<a b=\"c\"/>'", "'text &amp; more'"], _choice("'<x/>'", "'<y> </y>'")),
    "oid": (["0", "4294967295", "2147483648"], lambda random: str(random.getrandbits(32))),
    "xid": (["'0'", "'4294967295'"], lambda random: text(str(random.getrandbits(32)))),
    "cid": (["'0'", "'4294967295'"], lambda random: text(str(random.getrandbits(32)))),
    "xid8": (["'0'", "'18446744073709551615'"], lambda random: text(str(random.getrandbits(64)))),
    "tid": (["'(0,0)'", "'(4294967295,65535)'"], _choice("'(1,2)'", "'(7,1)'")),
    "pg_lsn": (["'0/0'", "'FFFFFFFF/FFFFFFFF'", "'16/B374D848'"], _choice("'1/0'", "'0/ABC'")),
    "pg_snapshot": (["'1:1:'", "'10:20:10,14,15'"], _choice("'3:3:'", "'5:9:7'")),
    "txid_snapshot": (["'1:1:'", "'10:20:10,14,15'"], _choice("'3:3:'", "'5:9:7'")),
    "regclass": (["'pg_class'", "'carrier'", "0"], _choice("'pg_type'", "'pg_proc'")),
    "regtype": (["'int'", "'mood'", "'timestamptz'"], _choice("'text'", "'int[]'")),
    "regproc": (["'now'", "0"], _choice("'pi'", "'version'")),
    "regrole": (["current_user::regrole"], _choice("current_user::regrole")),
    "regnamespace": (["'pg_catalog'", "'public'"], _choice("'public'")),
    "int2vector": (["'1 2 3'", "''"], _choice("'7'", "'-1 0'")),
    "oidvector": (["'1 2 4294967295'", "''"], _choice("'7'", "'1 0'")),
    "refcursor": (["'c'", "''"], _words),
    "mood": (["'calm'", "'so so'", "'it''s'", "'\"'", "''"], _choice("'calm'", "''")),
    "positive": (["12.5", "0.001", "9999999.999"], lambda random: str(random.randint(1, 9999999))),
    "very_positive": (["12.5", "'NaN'"], lambda random: str(random.randint(1, 9999999))),
    "padded": (["'ab'", "''"], _choice("'x'", "'sixsix'")),
    "hstore": (
        ["''", "'a=>1, b=>NULL'", "hstore('NULL', 'NULL')", "hstore('', '')"],
        lambda random: f"hstore(array[{_words(random)}, 'k'], array[{_words(random)}, null])",
    ),
    "ltree": (["''", "'Top.Science'"], _choice("'a.b'", "'x'")),
    "cube": (["'(1,2),(3,4)'", "'0'"], _choice("'1'", "'(1.5)'")),
}


def values_of(type: str, seed: int = 1) -> list[str]:
    """Expressions of exactly that type."""
    fixed, make = _MADE[type]
    random = Random(f"{type} {seed}")
    made = [*fixed, *(make(random) for _ in range(MOST - len(fixed)))]
    return [f"(({value})::{type})" for value in made]


def all_types() -> Iterator[str]:
    yield from _MADE


def list_values(type: str) -> list[str]:
    """Arrays of the type: of one dimension with NULLs, empty, of two dimensions, from another bound."""
    plain = values_of(type)
    lists = [f"array[{one}, null, {other}]" for one, other in pairwise(plain)]
    odd = [f"'{{}}'::{type}[]", f"array[array[{plain[0]}, {plain[1]}]]", f"array_fill({plain[0]}, array[2], array[0])"]
    return [*odd, *lists][:MOST]
