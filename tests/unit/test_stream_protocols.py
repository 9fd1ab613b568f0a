"""The protocols of Redis and NATS without a socket: bytes in, bytes out; subjects, keys and what the file may say."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pydantic import ValidationError

from penstock.config.destinations import NatsDestination, RedisDestination
from penstock.destinations.nats.nkey import BadKey, encode, public_key, public_text, seed_bytes, sign
from penstock.destinations.nats.protocol import Line, Message, Parser, chain, parse_headers
from penstock.destinations.nats.subjects import Subjects, fixed_prefix, takes
from penstock.destinations.redis.layout import StreamLayout
from penstock.destinations.redis.protocol import Incomplete, RedisError, added, command, read, xadds
from penstock.destinations.stream_contract import TOPIC_TYPE, Records

ANSWER = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$3\r\n1-0\r\n+OK\r\n"
SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")


def test_entries_are_whole_commands() -> None:
    records = Records(
        pa.array(["p1", "p2"]),
        pa.array([b"k", None], pa.binary()),
        pa.array([b"v\r\n", b""], pa.binary()),
        pa.array(["a", "b"], TOPIC_TYPE),
        pa.array([0, 0], pa.int32()),
    )
    made = bytes(xadds(records, [(b"key", records.keys), (b"value", records.values)], 5))
    first = command("XADD", "a", "MAXLEN", "~", "5", "*", "key", "k", "value", "v\r\n")
    assert made == first + command("XADD", "b", "MAXLEN", "~", "5", "*", "value", "")


@pytest.mark.parametrize("length", range(len(ANSWER) + 1))
def test_an_answer_is_understood_however_it_arrives(length: int) -> None:
    assert added(ANSWER[:length], 1) is (True if length == len(ANSWER) else None)


@pytest.mark.parametrize(
    "answer",
    [
        b"-OOM command not allowed\r\n",
        b"+OK\r\n-OOM command not allowed\r\n",
        b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*-1\r\n",
        b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n-WRONGTYPE it is a list\r\n",
    ],
)
def test_an_answer_that_is_not_plain_success_is_looked_into(answer: bytes) -> None:
    assert added(answer, 1) is False


def test_answers_of_every_kind() -> None:
    octets = b"*5\r\n:7\r\n$-1\r\n$4\r\na\r\nb\r\n-ERR no\r\n*0\r\n"
    found, end = read(octets)
    assert (found, end) == ([7, None, b"a\r\nb", RedisError("ERR no"), []], len(octets))
    assert found[3].code == "ERR"
    for length in range(len(octets)):
        with pytest.raises(Incomplete):
            read(octets[:length])


def test_streams_stay_in_their_shard() -> None:
    """Streams exist that were divided by it."""
    assert [StreamLayout(7).shard_of(name) for name in ("public.orders", "public.people", "é")] == [6, 6, 4]


def test_messages_are_a_chain() -> None:
    subjects, values, keys, replies = (
        pa.array(one, pa.binary()) for one in ([b"s", b"t"], [b"v", b""], [b"k", None], [b"", b" r"])
    )
    made = chain(subjects, values, [("Key", keys)], after=41, replies=replies)
    first = b"NATS/1.0\r\nNats-Expected-Last-Sequence: 41\r\nKey: k\r\n\r\n"
    second = b"NATS/1.0\r\nNats-Expected-Last-Sequence: 42\r\n\r\n"
    assert bytes(made) == (
        b"HPUB s %d %d\r\n%sv\r\n" % (len(first), len(first) + 1, first)
        + b"HPUB t r %d %d\r\n%s\r\n" % (len(second), len(second), second)
    )
    assert parse_headers(first) == {"Nats-Expected-Last-Sequence": "41", "Key": "k"}


def test_what_a_server_sends_is_taken_apart_however_it_arrives() -> None:
    octets = b"PING\r\nMSG in.1 1 4\r\na\r\nb\r\nHMSG in.2 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n-ERR 'Slow'\r\n"
    parser, found = Parser(), []
    for number in range(len(octets)):
        parser.feed(octets[number : number + 1])
        while (one := parser.next()) is not None:
            found.append(one)
    assert [type(one) for one in found] == [Line, Message, Message, Line]
    assert (found[0], found[3]) == (Line("PING"), Line("-ERR", "'Slow'"))
    assert isinstance(found[1], Message)
    assert isinstance(found[2], Message)
    assert (found[1].data, found[1].status, found[2].status) == (b"a\r\nb", 0, 503)


def test_signatures_are_those_of_the_standard() -> None:
    """RFC 8032, 7.1, the first test."""
    assert public_key(SEED).hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert sign(SEED, b"").hex() == (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe"
        "24655141438e7a100b"
    )
    text = encode(0, SEED, seed_of=20 << 3)
    assert text.startswith("SU")
    assert seed_bytes(text) == SEED
    assert public_text(SEED).startswith("U")
    for wrong in (
        "",
        "SU",
        text.replace(text[20], "A" if text[20] != "A" else "B", 1),
        public_text(SEED),
        "not base32!",
    ):
        with pytest.raises(BadKey):
            seed_bytes(wrong)


def test_subjects() -> None:
    one, several = Subjects("shop"), Subjects("shop.eu", 3)
    assert (one.all, one.own, one.of("shop.public.orders")) == ("shop.>", "shop._penstock", "shop.public.orders")
    assert several.of("shop.eu.public.orders") == "shop.eu.3.public.orders"
    odd = [one.of(f"shop.{name}") for name in ("a b", "a%20b", "a..b", "a.", "*", ">", "tab\t", "ä")]
    assert len(set(odd)) == len(odd), "no two names become one"
    assert not any(set(subject) & set(" *>\t") or ".." in subject or subject.endswith(".") for subject in odd)
    assert fixed_prefix("shop.eu.${source.schema}.x") == "shop.eu"
    assert fixed_prefix("shop.t_${source.table}") == "shop"
    assert fixed_prefix("shop.changes") == "shop"
    assert takes("shop.>", "shop.>")
    assert takes(">", "shop.>")
    assert takes("shop.*.orders", "shop.public.orders")
    for pattern, subject in (("shop.*", "shop.>"), ("shop.>", "shop"), ("shop.*", "shop.a.b"), ("shop.a", "shop.b")):
        assert not takes(pattern, subject)


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "http://host"},
        {"url": "nats://"},
        {"url": []},
        {"subject": "${source.table}"},
        {"subject": "shop"},
        {"subject": "shop.${source.nonsense}"},
        {"stream": "a b"},
        {"stream": "a.b"},
        {"user": "me"},
        {"token": "t", "user": "me", "password": "p"},
        {"credentials": "x", "token": "t"},
        {"deletes": "tombstone"},
    ],
)
def test_what_nats_cannot_be_told(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as refused:
        NatsDestination.model_validate({"type": "nats", "url": "nats://u:s3cret@h", "stream": "S", **settings})
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "http://host"},
        {"url": "redis://:s3cret@"},
        {"url": "redis://h:99999"},
        {"maxlen": 0},
        {"fields": "other"},
        {"stream": "${after.}"},
        {"deletes": "both"},
    ],
)
def test_what_redis_cannot_be_told(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as refused:
        RedisDestination.model_validate({"type": "redis", "url": "redis://u:s3cret@h", **settings})
    assert "s3cret" not in str(refused.value)


def test_passwords_are_never_shown() -> None:
    redis = RedisDestination.model_validate({"type": "redis", "url": "rediss://u:s3cret@h:1"})
    nats = NatsDestination.model_validate(
        {"type": "nats", "url": ["nats://u:s3cret@h", "tls://g"], "stream": "S", "token": "s3cret"}
    )
    assert (redis.where, nats.where) == ("Redis at rediss://h:1", "NATS at nats://h, tls://g")
    assert "s3cret" not in repr(redis) + repr(nats)
