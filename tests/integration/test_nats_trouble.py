"""What a NATS server refuses, tried against real servers: each one clear line, and nothing lost."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import nats as nats_client
import pyarrow as pa
import pytest

from penstock.config.destinations import NatsDestination as NatsSection
from penstock.destinations.nats.destination import NatsDestination
from penstock.destinations.nats.nkey import encode, public_text, sign
from penstock.destinations.stream_contract import TOPIC_TYPE, Publisher, Records, ShardPlace, StreamId
from penstock.errors import ConfigError, DestinationUnreachable, PenstockError, RecordRefused, StreamBroken
from penstock.model.place import place_at
from stream_benches import read_nats
from stream_servers import Server, free_port, make_certificates, nats_server

SHOP = StreamId("shop", "history 1", place_at(100))
SEED = bytes(range(32))
OPERATOR, ACCOUNT, USER = 14 << 3, 0, 20 << 3
GUARDED = """
max_payload: 4096
accounts {
  A { jetstream: enabled, users: [
    {user: app, password: s3cret}
    {user: reader, password: s3cret, permissions: {publish: {deny: ["$JS.API.STREAM.CREATE.>"]}}}
    {nkey: %s}
  ] }
  B { users: [{user: plain, password: s3cret}] }
}
"""


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with nats_server(GUARDED % public_text(SEED)) as server:
        yield server


def destination(server: Server, stream: str = "SHOP", login: str = "", **settings: Any) -> NatsDestination:
    url = f"nats://{login}127.0.0.1:{server.port}"
    return NatsDestination(NatsSection(type="nats", stream=stream, **{"url": url, "timeout": 5, **settings}))


def publish(publisher: Publisher, *texts: str, topic: str = "public.orders", end: int = 200) -> None:
    count = len(texts)
    at = publisher.open()
    given = Records(
        pa.array([f"{at.place[:-4]}{number:04x}" for number in range(count)]),
        pa.array([b"k", *[None] * (count - 1)], pa.binary()),
        pa.array([text.encode() for text in texts], pa.binary()),
        pa.array([topic] * count, TOPIC_TYPE),
        pa.array([0] * count, pa.int32()),
        (("kind", pa.array([b"new", *[None] * (count - 1)], pa.binary())),),
    )
    publisher.publish([given], lambda: ShardPlace(place_at(end)))


def opened(made: NatsDestination) -> Publisher:
    made.ensure(SHOP)
    return made.publisher("shop", 0)


def one_line(error: PenstockError) -> str:
    text = str(error)
    assert "\n" not in text
    assert error.solution
    assert "s3cret" not in text
    return text


def asked(server: Server, act: Callable[[Any], Awaitable[Any]]) -> Any:
    """Do something as any other client does it."""

    async def go() -> Any:
        client = await nats_client.connect(f"nats://127.0.0.1:{server.port}")
        try:
            return await act(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(go())


def test_messages_have_subjects_keys_and_headers(nats: Server) -> None:
    made = destination(nats, "HEADERS")
    publish(opened(made), "one", "two", topic="headers.public.odd *table> 50%")
    made.publisher("shop", 0).open()
    first, second = read_nats(nats, "HEADERS")
    assert first["subject"] == "headers.public.odd%20%2Atable%3E%2050%25"
    own = {name: value for name, value in first["headers"].items() if not name.startswith("Nats-")}
    assert own == {"Penstock-Place": place_at(100), "Penstock-Key": "k", "kind": "new"}
    assert second["headers"]["Penstock-Upto"]
    assert "kind" not in second["headers"]


def test_moving_the_place_alone_leaves_one_message(nats: Server) -> None:
    publisher = opened(destination(nats, "IDLE"))
    for end in (300, 400, 500):
        publisher.open()
        publisher.advance(ShardPlace(place_at(end)))
    assert asked(nats, lambda stream: stream.stream_info("IDLE")).state.messages == 1
    assert publisher.open() == ShardPlace(place_at(500))


def test_passwords_tokens_and_keys(guarded: Server, tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    seed.write_text(encode(0, SEED, seed_of=USER))
    publish(opened(destination(guarded, "ONE", "app:s3cret@")), "a")
    publish(opened(destination(guarded, "ONE", user="app", password="s3cret")), "b", end=300)
    publish(opened(destination(guarded, "ONE", credentials=str(seed))), "c", end=400)
    found = read_nats(guarded, "ONE", user="app", password="s3cret")
    assert [message["data"] for message in found] == [b"a", b"b", b"c"]
    for refused_login in ({"login": "app:wrong@"}, {}, {"token": "wrong"}):
        with pytest.raises(DestinationUnreachable) as refused:
            destination(guarded, "ONE", **refused_login).ensure(SHOP)
        assert "refuses the user, the token or the credentials" in one_line(refused.value)
    with nats_server('authorization { token: "s3cret" }') as server:
        publish(opened(destination(server, token="s3cret")), "a")
    seed.write_text("no seed")
    with pytest.raises(ConfigError) as wrong:
        destination(guarded, "ONE", credentials=str(seed))
    assert "no nkey seed" in one_line(wrong.value)


def _jwt(claims: dict[str, Any], signer: bytes, issuer: int) -> str:
    """A token as nsc makes it."""
    claims = {**claims, "iat": int(time.time()), "iss": public_text(signer, issuer)}
    digest = hashlib.new("sha512_256", json.dumps(claims).encode()).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    parts = [json.dumps(part).encode() for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, claims)]
    text = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
    return f"{text}.{base64.urlsafe_b64encode(sign(signer, text.encode())).decode().rstrip('=')}"


def test_a_credentials_file(tmp_path: Path) -> None:
    operator, system, account, user = (bytes([number]) * 32 for number in (1, 2, 3, 4))
    without_end = (
        "subs",
        "data",
        "payload",
        "imports",
        "exports",
        "conn",
        "leaf",
        "disk_storage",
        "streams",
        "consumer",
    )
    limits = {**dict.fromkeys(without_end, -1), "wildcards": True}
    own = {"sub": public_text(operator, OPERATOR), "nats": {"type": "operator", "version": 2}}
    accounts = {
        public_text(seed, ACCOUNT): _jwt(
            {"sub": public_text(seed, ACCOUNT), "nats": {"type": "account", "version": 2, "limits": given}},
            operator,
            OPERATOR,
        )
        for seed, given in ((system, {**limits, "disk_storage": 0, "streams": 0, "consumer": 0}), (account, limits))
    }
    rights = {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1}
    of_user = _jwt({"sub": public_text(user), "nats": rights}, account, ACCOUNT)
    preloaded = "\n".join(f'{key}: "{text}"' for key, text in accounts.items())
    settings = (
        f'operator: "{_jwt(own, operator, OPERATOR)}"\nsystem_account: {public_text(system, ACCOUNT)}\n'
        f"resolver: MEMORY\nresolver_preload {{\n{preloaded}\n}}"
    )
    credentials = tmp_path / "user.creds"
    credentials.write_text(
        f"-----BEGIN NATS USER JWT-----\n{of_user}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{encode(0, user, seed_of=USER)}\n------END USER NKEY SEED------\n"
    )
    with nats_server(settings) as server:
        made = destination(server, credentials=str(credentials))
        publish(opened(made), "a")
        assert made.places("shop") == [ShardPlace(place_at(200))]
        with pytest.raises(DestinationUnreachable, match="refuses the user"):
            destination(server).ensure(SHOP)


def test_rights_that_are_missing(guarded: Server) -> None:
    with pytest.raises(DestinationUnreachable) as refused:
        destination(guarded, "NEW", "reader:s3cret@").ensure(SHOP)
    assert "Permissions Violation" in one_line(refused.value)
    with pytest.raises(DestinationUnreachable) as refused:
        destination(guarded, "NEW", "plain:s3cret@").ensure(SHOP)
    assert "JetStream does not answer" in one_line(refused.value)


def test_nobody_there_and_another_server_of_the_list(nats: Server) -> None:
    away = f"nats://127.0.0.1:{free_port()}"
    with pytest.raises(DestinationUnreachable) as refused:
        destination(nats, url=away).ensure(SHOP)
    assert "Connection refused" in one_line(refused.value)
    publish(opened(destination(nats, "LISTED", url=[away, f"nats://127.0.0.1:{nats.port}"])), "a")


def test_tls(tmp_path: Path) -> None:
    certificate, key = make_certificates(tmp_path)
    with nats_server(f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}') as server:
        url = f"tls://localhost:{server.port}"
        publish(opened(destination(server, url=url, ca_file=str(certificate))), "a")
        with pytest.raises(DestinationUnreachable) as refused:
            destination(server, url=url).ensure(SHOP)
        assert "not trusted" in one_line(refused.value)


def test_another_writer_is_named_and_the_stream_goes_on_without_it(nats: Server) -> None:
    made = destination(nats, "FOREIGN")
    publisher = opened(made)
    publish(publisher, "a")
    asked(nats, lambda stream: stream.publish("foreign.public.orders", b"from elsewhere"))
    with pytest.raises(StreamBroken) as broken:
        publish(publisher, "b", end=300)
    assert "has another writer: message 2 on subject foreign.public.orders" in one_line(broken.value)
    asked(nats, lambda stream: stream.delete_msg("FOREIGN", 2))
    publish(publisher, "b", end=300)
    assert [message["data"] for message in read_nats(nats, "FOREIGN")] == [b"a", b"b"]
    assert made.places("shop") == [ShardPlace(place_at(300))]


def test_a_stream_that_is_full_or_was_purged(nats: Server) -> None:
    asked(nats, lambda stream: stream.add_stream(name="FULL", subjects=["full.>"], max_msgs=3, discard="new"))
    publisher = opened(destination(nats, "FULL", create=False))
    publish(publisher, "a", "b")
    with pytest.raises(PenstockError):  # the first of these is stored
        publish(publisher, "c", "d", "e", end=300)
    at = publisher.open()
    assert place_at(200) < at.place < place_at(300)
    with pytest.raises(DestinationUnreachable) as refused:
        publish(publisher, "d", "e", end=300)
    assert "maximum messages exceeded" in one_line(refused.value)
    asked(nats, lambda stream: stream.purge_stream("FULL"))
    with pytest.raises(StreamBroken) as broken:
        publisher.open()
    assert "are gone (expired or purged)" in one_line(broken.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"subjects": ["other.*"]}, "takes other.*, and not other.>"),
        ({"subjects": ["other.>"], "retention": "workqueue"}, "has retention workqueue"),
    ],
)
def test_a_stream_of_another_configuration(nats: Server, settings: dict[str, Any], said: str) -> None:
    asked(nats, lambda stream: stream.add_stream(name="OTHER", **settings))
    try:
        with pytest.raises(StreamBroken) as broken:
            destination(nats, "OTHER").ensure(SHOP)
        assert said in one_line(broken.value)
    finally:
        asked(nats, lambda stream: stream.delete_stream("OTHER"))


def test_streams_of_others_and_subjects_that_overlap(nats: Server) -> None:
    asked(nats, lambda stream: stream.add_stream(name="USED", subjects=["used.>"]))
    asked(nats, lambda stream: stream.publish("used.x", b"somebody's"))
    with pytest.raises(StreamBroken, match="holds 1 messages that penstock did not publish"):
        destination(nats, "USED").ensure(SHOP)
    with pytest.raises(DestinationUnreachable) as refused:
        destination(nats, "OVERLAP", subject="used.${source.table}").ensure(SHOP)
    assert "overlap" in one_line(refused.value)
    with pytest.raises(DestinationUnreachable) as missing:
        destination(nats, "MISSING", create=False).ensure(SHOP)
    assert "nats stream add MISSING --subjects 'missing.>'" in one_line(missing.value)
    destination(nats, "TAKEN").ensure(SHOP)
    with pytest.raises(StreamBroken, match="is the stream of source shop"):
        destination(nats, "TAKEN").ensure(StreamId("other", "history 1", place_at(100)))


def test_records_that_a_message_cannot_hold(guarded: Server) -> None:
    publisher = opened(destination(guarded, "SMALL", "app:s3cret@"))
    with pytest.raises(RecordRefused) as refused:
        publish(publisher, "x" * 5000, "fits")
    assert list(refused.value.reasons) == [place_at(100)]
    publish(publisher, "fits")
