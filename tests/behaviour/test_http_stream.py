"""What `type: http` promises: at least once, in order, and again only under the same Idempotency-Key.

It is the part of `destinations/stream_contract.py` that a receiver without a place can be held to, against a real
server that fails in every way that is listed in docs/http.md.
"""

from __future__ import annotations

import hashlib
import hmac
import pickle
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from penstock.destinations.http import shard as http_shard
from penstock.destinations.http.destination import HttpDestination, HttpStream
from penstock.destinations.http.endpoint import Endpoint, secret_bytes
from penstock.destinations.http.shard import HttpPublisher, Pace
from penstock.destinations.places.folder import Folder, LocalFolder, StoreFolder
from penstock.destinations.stream_contract import TOPIC_TYPE, Records, ShardPlace, StreamId
from penstock.errors import CommitUnknown, DestinationUnreachable, Overtaken, RecordRefused, StreamBroken
from penstock.model.place import place_at
from webhook import SECRET, Trouble, Webhook, is_genuine, webhook

START = place_at(100)
SHOP = StreamId("shop", "history 1", START)
TOKEN = "Bearer hunter2-hunter2"


class Killed(BaseException):
    """The process dies here."""


@pytest.fixture
def receiver() -> Iterator[Webhook]:
    with webhook() as made:
        yield made


@pytest.fixture(params=["local", "store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "local":
        return LocalFolder(tmp_path / "streams")
    return StoreFolder(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "streams", "store://streams")


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Die when a step is reached for the nth time; without a step, no more."""
    armed: dict[str, int] = {}

    def reached(name: str) -> None:
        if name in armed:
            armed[name] -= 1
            if not armed[name]:
                del armed[name]
                raise Killed(name)

    monkeypatch.setattr(http_shard, "reach", reached)

    def arm(step: str, nth: int = 1) -> None:
        armed[step] = nth

    return arm


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, signed by itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "server.crt", folder / "server.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=webhook"
    subject = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *subject], check=True, capture_output=True)
    return certificate, key


def settings(endpoint: Endpoint, batch: int = 4, shards: int = 1) -> HttpStream:
    return HttpStream("hooks", endpoint, batch, Pace(0.01, 0.05), shards)


def endpoint(receiver: Webhook, **changes: object) -> Endpoint:
    given: dict[str, object] = {"secret": secret_bytes(SECRET), "timeout": 0.5, "headers": (("Authorization", TOKEN),)}
    return Endpoint(receiver.url, **{**given, **changes})  # type: ignore[arg-type]


def publisher(receiver: Webhook, folder: Folder, *, batch: int = 4, **changes: object) -> HttpPublisher:
    destination = HttpDestination(settings(endpoint(receiver, **changes), batch), folder)
    destination.ensure(SHOP)
    made: HttpPublisher = pickle.loads(pickle.dumps(destination.publisher("shop", 0)))
    return made


def records(numbers: range | list[int]) -> Records:
    count = len(numbers)
    return Records(
        pa.array([place_at(number) for number in numbers]),
        pa.array([b"key"] * count, pa.binary()),
        pa.array([b'{"n":%d}' % number for number in numbers], pa.binary()),
        pa.array(["t"] * count).dictionary_encode().cast(TOPIC_TYPE),
        pa.array([0] * count, pa.int32()),
    )


def publish(one: HttpPublisher, end: int, numbers: range | list[int]) -> None:
    """Publish what lies behind the shard's place, as a task does; refused events are taken out, as the driver does."""
    out: set[int] = set()
    while True:
        at = one.open()
        left = [number for number in numbers if place_at(number) >= at.place and number not in out]
        upto = ShardPlace(max(at.place, place_at(end)))
        try:
            one.publish([records(left)] if left else [], lambda upto=upto: upto)  # type: ignore[misc]
        except RecordRefused as refused:
            out |= {number for number in numbers if place_at(number) in refused.reasons}
        else:
            return


def numbers(receiver: Webhook) -> list[int]:
    return [event["n"] for event in receiver.events()]


def test_events_arrive_in_order_in_signed_requests(receiver: Webhook, folder: Folder) -> None:
    one = publisher(receiver, folder)
    one.open()
    added = one.publish(iter([records(range(100, 106)), records(range(106, 108))]), lambda: ShardPlace(place_at(200)))
    assert added.records == 8
    assert [[event["n"] for event in request.events] for request in receiver.taken] == [
        [100, 101, 102, 103],
        [104, 105],
        [106, 107],
    ]
    for request in receiver.taken:
        assert is_genuine(request)
        assert request.headers["Authorization"] == TOKEN
        assert request.headers["Content-Type"] == "application/json"
    assert len({request.key for request in receiver.taken}) == 3
    publish(one, 300, range(200, 203))
    assert numbers(receiver) == [*range(100, 108), *range(200, 203)]
    assert receiver.connections == 1, "the connection is kept open over requests and batches"
    destination = HttpDestination(settings(endpoint(receiver)), folder)
    assert destination.places("shop") == [ShardPlace(place_at(300))]
    assert receiver.forged == 0


def test_single_events_and_a_signature_of_ones_own(receiver: Webhook, folder: Folder) -> None:
    one = publisher(receiver, folder, batch=1, signature_header="X-Hub-Signature-256", secret=b"plain")
    publish(one, 200, [100, 101])
    assert [request.body for request in receiver.taken] == [b'{"n":100}', b'{"n":101}']
    for request in receiver.taken:
        digest = hmac.new(b"plain", request.body, hashlib.sha256).hexdigest()
        assert request.headers["X-Hub-Signature-256"] == f"sha256={digest}"


@pytest.mark.parametrize(
    ("step", "nth"),
    [
        ("publish.file_written", 1),
        ("publish.recorded", 1),
        ("publish.taken", 1),
        ("publish.taken", 3),
        ("publish.committed", 1),
    ],
)
def test_what_is_sent_again_has_the_same_key(
    receiver: Webhook, folder: Folder, crash_at: Callable[..., None], step: str, nth: int
) -> None:
    publish(publisher(receiver, folder), 110, [100])
    crash_at(step, nth)
    with pytest.raises(Killed):
        publish(publisher(receiver, folder, batch=4), 200, range(110, 120))
    publish(publisher(receiver, folder, batch=3), 300, [*range(110, 120), *range(200, 205)])  # changed meanwhile
    assert numbers(receiver) == [100, *range(110, 120), *range(200, 205)], (
        "distinct() also checks that a key stands for one body"
    )
    assert sum(receiver.repeated().values()) == (nth if step == "publish.taken" else 0)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_events_that_are_blamed_are_found_by_halving_and_reported(
    receiver: Webhook, folder: Folder, status: int
) -> None:
    receiver.refuses = lambda event: status if event in (b'{"n": 103}', b'{"n": 104}') else 0
    one = publisher(receiver, folder, batch=8)
    one.open()
    with pytest.raises(RecordRefused) as refused:
        one.publish([records(range(100, 112))], lambda: ShardPlace(place_at(200)))
    assert set(refused.value.reasons) == {place_at(103), place_at(104)}
    assert all(str(status) in reason for reason in refused.value.reasons.values())
    assert publisher(receiver, folder).open().place == START, "the place moves when they are taken out"
    left = [number for number in range(100, 112) if number not in (103, 104)]
    before = len(receiver.taken)
    publish(publisher(receiver, folder, batch=8), 200, left)
    assert len(receiver.taken) == before, "what was sent is not sent again"
    assert numbers(receiver) == left
    assert one.open().place == place_at(200)


def test_refused_events_may_be_taken_after_all(receiver: Webhook, folder: Folder) -> None:
    receiver.refuses = lambda event: 422 if event == b'{"n": 102}' else 0
    one = publisher(receiver, folder)
    one.open()
    with pytest.raises(RecordRefused):
        one.publish([records(range(100, 106))], lambda: ShardPlace(place_at(200)))
    receiver.refuses = lambda event: 0
    publish(publisher(receiver, folder), 200, range(100, 106))
    assert sorted(numbers(receiver)) == list(range(100, 106))
    assert not receiver.repeated()


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_crash_while_a_request_is_halved_keeps_the_cuts(
    receiver: Webhook, folder: Folder, crash_at: Callable[..., None], nth: int
) -> None:
    receiver.refuses = lambda event: 400 if event == b'{"n": 105}' else 0
    crash_at("publish.taken", nth)
    with pytest.raises(Killed):
        publish(publisher(receiver, folder, batch=8), 200, range(100, 116))
    publish(publisher(receiver, folder, batch=8), 200, range(100, 116))
    assert sorted(numbers(receiver)) == [number for number in range(100, 116) if number != 105]


@pytest.mark.parametrize(
    "trouble",
    [
        Trouble(500),
        Trouble(503),
        Trouble(429),
        Trouble(408),
        Trouble(409),
        Trouble(),
        Trouble(taken=True),
        Trouble(503, taken=True),
        Trouble(200, after=0.8, taken=True),
    ],
    ids=str,
)
def test_what_may_pass_is_sent_again(receiver: Webhook, tmp_path: Path, trouble: Trouble) -> None:
    receiver.troubles = [trouble, trouble] if trouble.after == 0 else [trouble]
    publish(publisher(receiver, LocalFolder(tmp_path)), 200, range(100, 106))
    assert numbers(receiver) == list(range(100, 106))
    assert len({key for _, key, _ in receiver.seen}) == 2


def test_retry_after_is_obeyed(receiver: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = publisher(receiver, LocalFolder(tmp_path))
    receiver.troubles = [Trouble(429, {"Retry-After": "1"})]
    publish(one, 200, [100])
    (first, _, _), (second, _, _) = receiver.seen
    assert second - first >= 1.0
    receiver.troubles = [Trouble(503, {"Retry-After": "3600"})]
    with pytest.raises(DestinationUnreachable, match="503"):
        publish(one, 300, [200])
    asked = len(receiver.seen)
    with pytest.raises(DestinationUnreachable, match="left alone"):
        publish(publisher(receiver, LocalFolder(tmp_path)), 300, [200])
    assert len(receiver.seen) == asked, "nothing is sent before the hour is over, not even by another process"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    publish(publisher(receiver, LocalFolder(tmp_path)), 300, [200])
    assert numbers(receiver) == [100, 200]


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405, 410])
def test_a_receiver_that_is_not_in_order_is_waited_for(receiver: Webhook, tmp_path: Path, status: int) -> None:
    receiver.always = Trouble(status, text=f"who is {TOKEN}? not {SECRET}")
    one = publisher(receiver, LocalFolder(tmp_path))
    with pytest.raises(DestinationUnreachable, match=str(status)) as away:
        publish(one, 200, range(100, 106))
    assert "hunter2" not in str(away.value), "a header's value is secret, also when the receiver repeats it"
    assert SECRET.removeprefix("whsec_") not in str(away.value)
    receiver.always = None
    publish(publisher(receiver, LocalFolder(tmp_path)), 200, range(100, 106))
    assert numbers(receiver) == list(range(100, 106))


def test_a_receiver_that_is_killed_and_comes_back(
    receiver: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = publisher(receiver, LocalFolder(tmp_path))
    publish(one, 110, [100])
    receiver.kill()
    monkeypatch.setattr(http_shard, "PATIENCE", 0.2)
    with pytest.raises(DestinationUnreachable, match="refused"):
        publish(one, 200, range(110, 120))
    receiver.start()
    publish(one, 200, range(110, 120))
    assert numbers(receiver) == [100, *range(110, 120)]


def test_of_two_writers_one_goes_on_and_no_key_stands_for_two_requests(receiver: Webhook, folder: Folder) -> None:
    stale, other = publisher(receiver, folder), publisher(receiver, folder)
    stale.open()
    for end in (200, 300):
        publish(other, end, range(end - 50, end - 45))
    with pytest.raises((Overtaken, CommitUnknown)):
        stale.publish([records([999])], lambda: ShardPlace(place_at(999)))
    with pytest.raises((Overtaken, CommitUnknown)):
        stale.advance(ShardPlace(place_at(999)))
    assert 999 not in numbers(receiver)
    assert stale.open() == ShardPlace(place_at(300))


def test_places_stand_behind_and_survive(receiver: Webhook, folder: Folder) -> None:
    one = publisher(receiver, folder)
    one.open()
    one.publish([records([100])], lambda: ShardPlace(place_at(200), {"orders": place_at(150)}))
    at = publisher(receiver, folder).open()
    assert at == ShardPlace(place_at(200), {"orders": place_at(150)})
    one.open()
    one.advance(ShardPlace(place_at(250)))
    assert publisher(receiver, folder).open() == ShardPlace(place_at(250))


def test_what_the_records_raise_is_raised_and_nothing_is_sent(receiver: Webhook, folder: Folder) -> None:
    def failing() -> Iterator[Records]:
        yield records([100])
        raise ValueError("the log is gone")

    one = publisher(receiver, folder)
    one.open()
    with pytest.raises(ValueError, match="the log is gone"):
        one.publish(failing(), lambda: ShardPlace(place_at(200)))
    assert not receiver.seen


def test_an_outbox_that_is_lost_is_not_passed_over(
    receiver: Webhook, folder: Folder, crash_at: Callable[..., None]
) -> None:
    crash_at("publish.recorded")
    with pytest.raises(Killed):
        publish(publisher(receiver, folder), 200, [100])
    outbox = folder.under("shop").under("0000").under("_outbox")
    (name,) = outbox.names()
    outbox.delete(name)
    with pytest.raises(StreamBroken, match="events that were being sent"):
        publish(publisher(receiver, folder), 200, [100])


def test_another_history_or_number_of_shards_is_refused(receiver: Webhook, folder: Folder) -> None:
    publish(publisher(receiver, folder), 200, [100])
    with pytest.raises(StreamBroken, match="another change log"):
        HttpDestination(settings(endpoint(receiver)), folder).ensure(StreamId("shop", "history 2", START))
    with pytest.raises(StreamBroken, match="shards"):
        HttpDestination(settings(endpoint(receiver), shards=2), folder).ensure(SHOP)


def test_certificates_are_checked(
    tmp_path: Path, tls_files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_shard, "PATIENCE", 0.1)
    certificate, key = tls_files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with webhook(context) as receiver:
        stranger = publisher(receiver, LocalFolder(tmp_path))
        with pytest.raises(DestinationUnreachable, match="certificate"):
            publish(stranger, 200, [100])
        assert not receiver.seen
        publish(publisher(receiver, LocalFolder(tmp_path), ca_file=str(certificate)), 200, [100])
        assert numbers(receiver) == [100]


def test_nothing_secret_is_shown() -> None:
    made = Endpoint("https://user:pa55word@example.org/in?token=abcdef", headers=(("A", TOKEN),), secret=b"sesame")
    assert made.shown == "https://example.org"
    for secret in ("pa55word", "abcdef", "hunter2", "sesame"):
        assert secret not in repr(made)
