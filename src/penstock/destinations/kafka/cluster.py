"""A Kafka cluster as the pipeline file describes it, and what its errors mean to penstock.

librdkafka says why it cannot connect (refused, wrong password, unknown certificate) only to a callback; calls merely
time out. `Noted` keeps what it says, so that the reason is in the one line that an operator sees.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from penstock.errors import DestinationError, DestinationUnreachable, Overtaken, StreamBroken

REFUSED_LOGIN = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
FORBIDDEN = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.UNKNOWN_PRODUCER_ID,
    }
)
NO_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
SETTLING = NO_TOPIC | {  # of a topic that is there: it was just created, or its leader moves
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError._WAIT_CACHE,
}
AWAY = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_SAYS_WHY = REFUSED_LOGIN | {KafkaError._SSL, KafkaError._RESOLVE}


_SILENT = logging.getLogger("penstock.librdkafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


@dataclass(frozen=True)
class Cluster:
    """How to reach a cluster. Picklable. `client` are librdkafka's own settings, with passwords among them."""

    brokers: str
    client: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout: float = 30.0  # seconds without an answer after which it counts as away

    def settings(self, noted: Noted, /, **ours: str | int | bool) -> dict[str, Any]:
        """Return a client's settings: the operator's win over `ours`, whose names have `_` for a dot."""
        return {
            **{name.replace("_", "."): value for name, value in ours.items()},
            **dict(self.client),
            "bootstrap.servers": self.brokers,
            "error_cb": noted.note,
            "logger": _SILENT,  # `noted` hears of errors
        }

    def failure(self, doing: str, error: KafkaError, noted: Noted | None = None) -> DestinationError:
        """Return what an error of the library means; `doing` says what was tried."""
        if noted is not None and noted.reason is not None and error.code() in AWAY:
            error = noted.reason
        where = f"Kafka at {self.brokers}"
        if error.code() in FENCED:
            return Overtaken(f"{where}: another writer has taken over: {error.str()}", "")
        if error.code() in REFUSED_LOGIN:
            return DestinationUnreachable(
                f"{where} refuses the login: {error.str()}",
                "Check `sasl.username`, `sasl.password`, `sasl.mechanism` and `security.protocol` under `client`",
            )
        if error.code() == KafkaError._SSL:
            return DestinationUnreachable(
                f"{where}: TLS failed: {error.str()}",
                "Check `security.protocol` and `ssl.ca.location` under `client`, and the server's certificate",
            )
        if error.code() in FORBIDDEN:
            return DestinationUnreachable(
                f"{where} does not allow {doing}: {error.str()}",
                "Grant the user of `client` the rights that docs/kafka.md lists",
            )
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return DestinationUnreachable(
                f"{where}: {error.str()}", "Set `transaction.timeout.ms` under `client` to what the brokers allow"
            )
        return DestinationUnreachable(
            f"{where}: {doing} failed: {error.str()}", "Check that the brokers run and can be reached from every host"
        )

    def misconfigured(self, error: KafkaException) -> StreamBroken:
        """Return what the library says of settings that it does not take."""
        return StreamBroken(
            f"Kafka's client does not take its settings: {kafka_error(error).str()}", "Correct them under `client`"
        )


class Noted:
    """The newest error that a client has reported beside its calls; one that says more is kept before others."""

    def __init__(self) -> None:
        self.reason: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        if self.reason is None or _rank(error) >= _rank(self.reason):
            self.reason = error

    def forget(self) -> None:
        self.reason = None


def _rank(error: KafkaError) -> int:
    """Return how much an error says: that all brokers are down follows from what is wrong with each."""
    return 2 if error.code() in _SAYS_WHY else 0 if error.code() == KafkaError._ALL_BROKERS_DOWN else 1


def kafka_error(error: KafkaException) -> KafkaError:
    """Return the library's error in an exception."""
    found: KafkaError = error.args[0]
    return found
