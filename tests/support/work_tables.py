"""The tables of the random workload (workload.py): their statements, keys and how values for each type are made.

Everything is a pure function of a `random.Random`: values are text that Postgres casts, so the same seed gives the
same statements. The values reach into the corners of each type, but stay within what the lake's type can hold.
"""

from __future__ import annotations

import json
import string
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

Value = str | None
Maker = Callable[[Random], Value]

WORDS = (
    "",
    " ",
    "NULL",
    "\\N",
    "null",
    "a'b\"c",
    "back\\slash",
    "tab\tline\nreturn\r",
    "\x01\x1f\x7f",
    "żółć",
    "日本語",
    "🚰🧪",
    "é combining e\u0301",
    "{}",
    "x" * 300,
)


def _words(random: Random) -> str:
    if random.random() < 0.4:
        return random.choice(WORDS)
    return "".join(random.choices(string.ascii_letters + " ,;äß€", k=random.randrange(1, 24)))


def _large(random: Random) -> str:
    """Incompressible and past 2 KiB, so that Postgres moves it out of the row."""
    return random.randbytes(random.randrange(1500, 4000)).hex()


def _wide_integer(bits: int) -> Maker:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return lambda random: str(random.choice((low, high, 0, -1, random.randint(low, high), random.randint(-99, 99))))


def _float(digits: int, corners: tuple[str, ...]) -> Maker:
    return lambda random: (
        random.choice(corners)
        if random.random() < 0.3
        else f"{random.uniform(-1e6, 1e6):.{digits}g}e{random.randint(-20, 20)}"
    )


def _decimal(precision: int, scale: int) -> Maker:
    def make(random: Random) -> str:
        digits = random.choice((0, 1, 10**precision - 1, random.randrange(10**precision), random.randrange(10)))
        text = str(digits).rjust(scale + 1, "0")
        sign = random.choice(("", "-"))
        return sign + (f"{text[:-scale]}.{text[-scale:]}" if scale else text)

    return make


def _free_numeric(random: Random) -> str:
    return random.choice(
        ("NaN", "0.00", "-0.000000000000000000001", "9" * 60 + "." + "1" * 40, str(random.randint(-(10**30), 10**30)))
    )


def _day(random: Random) -> str:
    corners = ("0001-01-01", "9999-12-31", "1969-12-31", "1582-10-10", "2024-02-29")
    if random.random() < 0.3:
        return random.choice(corners)
    return f"{random.randint(1, 9999):04}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"


def _clock(random: Random) -> str:
    if random.random() < 0.2:
        return random.choice(("00:00:00", "23:59:59.999999", "24:00:00", "00:00:00.000001"))
    hour, minute, second = random.randrange(24), random.randrange(60), random.randrange(60)
    return f"{hour:02}:{minute:02}:{second:02}.{random.randrange(10**6):06}"


def _timestamp(random: Random) -> str:
    if random.random() < 0.2:
        return random.choice(
            ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00")
        )
    hour, minute, second = random.randrange(24), random.randrange(60), random.randrange(60)
    return f"{_day(random)} {hour:02}:{minute:02}:{second:02}.{random.randrange(1000):03}"


def _timestamptz(random: Random) -> str:
    zone = random.choice(("+00", "-08", "+05:45", "+14", "-12"))
    return f"{random.randint(2, 9998):04}-{random.randint(1, 12):02}-15 {_clock(random).replace('24:', '04:')}{zone}"


def _document(random: Random, depth: int = 3) -> object:
    kind = random.randrange(7 if depth else 5)
    if kind == 5:
        return [_document(random, depth - 1) for _ in range(random.randrange(4))]
    if kind == 6:
        return {_words(random).replace("\x00", ""): _document(random, depth - 1) for _ in range(random.randrange(4))}
    return (None, True, _words(random), random.randint(-(10**18), 10**18), random.random())[kind]


def _json(random: Random) -> str:
    return json.dumps(_document(random), ensure_ascii=random.random() < 0.5)


def _array(random: Random) -> str:
    items = [
        random.choice(("NULL", '"NULL"', '"a,b"', '"q\\"uote"', "plain", '""')) for _ in range(random.randrange(4))
    ]
    return "{" + ",".join(items) + "}"


MAKERS: Mapping[str, Maker] = {
    "bool": lambda random: random.choice(("true", "false")),
    "int2": _wide_integer(16),
    "int4": _wide_integer(32),
    "int8": _wide_integer(64),
    "float4": _float(6, ("NaN", "Infinity", "-Infinity", "-0", "0", "1e-45", "3.4028235e38", "0.1")),
    "float8": _float(17, ("NaN", "Infinity", "-Infinity", "-0", "5e-324", "1.7976931348623157e308", "0.1")),
    "numeric(12,4)": _decimal(12, 4),
    "numeric(38,0)": _decimal(38, 0),
    "numeric(38,38)": _decimal(38, 38),
    "numeric(5,0)": _decimal(5, 0),
    "numeric": _free_numeric,
    "text": _words,
    "varchar(40)": lambda random: _words(random)[:40],
    "char(8)": lambda random: random.choice(("", "ab", "eight888", "ü", "  x")),
    "bytea": lambda random: "\\x" + random.randbytes(random.choice((0, 1, 7, 64))).hex(),
    "date": _day,
    "time": _clock,
    "time(3)": _clock,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "uuid": lambda random: str(uuid.UUID(int=random.getrandbits(128))),
    "json": _json,
    "jsonb": _json,
    "inet": lambda random: random.choice(("10.0.0.1", "10.0.0.0/8", "::1", "2001:db8::/32")),
    "interval": lambda random: random.choice(("1 year 2 mons -3 days", "-00:00:01.5", "0", "178000000 years")),
    "text[]": _array,
    "mood": lambda random: random.choice(("calm", "stormy", "it's")),
    "positive": lambda random: str(random.randint(1, 2**31 - 1)),
    "bit varying": lambda random: random.choice(("", "1", "010101")),
    "large text": _large,
    "large bytea": lambda random: "\\x" + _large(random),
    "large jsonb": lambda random: json.dumps({"blob": _large(random), "n": random.randint(0, 9)}),
}

KeyOf = Callable[[int], tuple[str, ...]]


@dataclass(frozen=True)
class WorkTable:
    """One table. `key` are the columns that rows are found by; `key_of` maps a number to a key, one to one.

    `bulk` are SQL expressions over `g`, a number no other row was made of, for transactions of many rows.
    `size` is how many keys are in play: small, so that changes meet each other.
    """

    name: str
    statements: tuple[str, ...]
    columns: Mapping[str, str]
    key: Mapping[str, str]
    key_of: KeyOf
    bulk: Mapping[str, str]
    size: int = 60
    unique: bool = True

    def value(self, column: str, random: Random) -> Value:
        return None if random.random() < 0.15 else MAKERS[self.columns[column]](random)


_EVERY_TYPE = {
    f"c{number:02}": type_name
    for number, type_name in enumerate(
        name for name in MAKERS if not name.startswith("large ") and name not in ("mood", "positive")
    )
} | {"c_mood": "mood", "c_positive": "positive"}

_REGIONS = ("north", "south", "", "Süd 'west'")


def _text_key(number: int) -> tuple[str, ...]:
    return (WORDS[number][:40],) if number < len(WORDS) else (f"key {number}",)


def _composite_key(number: int) -> tuple[str, ...]:
    return _REGIONS[number % 4], str(number // 4 - 3), f"20{number % 5:02}-01-01"


def _uuid_key(number: int) -> tuple[str, ...]:
    return (str(uuid.uuid5(uuid.NAMESPACE_OID, str(number))),)


def _integer_key(number: int) -> tuple[str, ...]:
    return (str(number - 20),)


TABLES = (
    WorkTable(
        "public.every_type",
        (
            "create type mood as enum ('calm', 'stormy', 'it''s')",
            "create domain positive as int check (value > 0)",
            "create table every_type (id bigint primary key, "
            + ", ".join(f"{name} {type_name}" for name, type_name in _EVERY_TYPE.items())
            + ")",
        ),
        _EVERY_TYPE,
        {"id": "bigint"},
        _integer_key,
        {"id": "1000000 + g", "c00": "g % 2 = 0", "c02": "g", "c06": "g / 100.0", "c11": "'bulk ' || g"},
    ),
    WorkTable(
        "public.text_key",
        ("create table text_key (code text primary key, quantity int4, note text)",),
        {"quantity": "int4", "note": "text"},
        {"code": "text"},
        _text_key,
        {"code": "'bulk ' || g", "quantity": "g", "note": "md5(g::text)"},
    ),
    WorkTable(
        "public.composite_key",
        (
            "create table composite_key (amount numeric(12,4), region text, number int, day date, note text, "
            "primary key (region, number, day))",
        ),
        {"amount": "numeric(12,4)", "note": "text"},
        {"region": "text", "number": "int", "day": "date"},
        _composite_key,
        {"region": "'bulk'", "number": "g", "day": "date '2020-01-01' + g % 1000", "amount": "g"},
    ),
    WorkTable(
        "public.uuid_key",
        ("create table uuid_key (id uuid primary key, at timestamptz, doc jsonb)",),
        {"at": "timestamptz", "doc": "jsonb"},
        {"id": "uuid"},
        _uuid_key,
        {"id": "md5(g::text)::uuid", "at": "timestamptz '2020-01-01' + g * interval '1 second'"},
    ),
    WorkTable(
        "public.keyless",
        ("create table keyless (number bigint, label text, amount numeric(12,4))",),
        {"label": "text", "amount": "numeric(12,4)"},
        {"number": "bigint"},
        _integer_key,
        {"number": "g", "label": "'bulk'"},
        unique=False,
    ),
    WorkTable(
        "public.documents",
        (
            "create table documents (id int primary key, title text, body text, attachment bytea, doc jsonb)",
            "alter table documents alter body set storage external, alter attachment set storage external, "
            "alter doc set storage external",
        ),
        {"title": "text", "body": "large text", "attachment": "large bytea", "doc": "large jsonb"},
        {"id": "int"},
        _integer_key,
        {"id": "1000000 + g", "title": "'bulk ' || g"},
    ),
    WorkTable(
        "public.full_identity",
        (
            "create table full_identity (id int primary key, name text, body text)",
            "alter table full_identity replica identity full",
            "alter table full_identity alter body set storage external",
        ),
        {"name": "text", "body": "large text"},
        {"id": "int"},
        _integer_key,
        {"id": "1000000 + g", "name": "'bulk'"},
    ),
    WorkTable(
        "public.index_identity",
        (
            "create table index_identity (id bigserial primary key, code text not null, variant int not null, "
            "body text, price numeric(12,4))",
            "create unique index index_identity_code on index_identity (variant, code)",
            "alter table index_identity replica identity using index index_identity_code",
            "alter table index_identity alter body set storage external",
        ),
        {"body": "large text", "price": "numeric(12,4)"},
        {"code": "text", "variant": "int"},
        lambda number: (_text_key(number // 2)[0], str(number % 2)),
        {"code": "'bulk ' || g", "variant": "g % 3", "price": "g / 7.0"},
    ),
    WorkTable(
        "public.partitioned",
        (
            "create table partitioned (id int, region text, note text, primary key (id, region)) "
            "partition by list (region)",
            "create table partitioned_north partition of partitioned for values in ('north')",
            "create table partitioned_rest partition of partitioned default",
        ),
        {"note": "text"},
        {"id": "int", "region": "text"},
        lambda number: (str(number // 4), _REGIONS[number % 4]),
        {"id": "1000000 + g", "region": "case when g % 2 = 0 then 'north' else 'bulk' end", "note": "'bulk'"},
    ),
    WorkTable(
        '"Odd Schema"."Bücher ""und"" Mehr"',
        (
            'create schema "Odd Schema"',
            'create table "Odd Schema"."Bücher ""und"" Mehr" ("Ident No" int primary key, "select" text, '
            '"dot.ted" text, "größe ""q"" `b`" numeric(12,4))',
        ),
        {'"select"': "text", '"dot.ted"': "text", '"größe ""q"" `b`"': "numeric(12,4)"},
        {'"Ident No"': "int"},
        _integer_key,
        {'"Ident No"': "1000000 + g", '"select"': "'bulk'"},
    ),
)
