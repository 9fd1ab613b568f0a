"""A throw-away Kafka server (KRaft, one node) for tests and benchmarks, from the jars of Maven Central.

The jars are fetched once, by the Ivy that comes with Spark, into `{sys.prefix}/share/penstock/kafka-VERSION`. The
server listens on 127.0.0.1 only, in plain text, with TLS, and with SASL over TLS; who comes in plain text may do
everything.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import pyspark
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from penstock.demo.server import free_port
from penstock.errors import EnvironmentMissing

VERSION = "4.3.1"
USER, PASSWORD = "penstock", "correct horse"
START_SECONDS = 90.0
FETCH_SECONDS = 600.0
IVY = f"""<ivy-module version="2.0">
  <info organisation="penstock" module="kafka-server"/>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{VERSION}" conf="default"/>
    <dependency org="org.apache.kafka" name="kafka-tools" rev="{VERSION}" conf="default" transitive="false"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default"/>
  </dependencies>
</ivy-module>
"""


def jars() -> Path:
    """Return the folder of the server's jars, fetching them first if they are not there."""
    folder = Path(sys.prefix).resolve() / "share" / "penstock" / f"kafka-{VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes run side by side
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(prefix="kafka-", dir=folder.parent) as scratch:
                _fetch(Path(scratch))
                (Path(scratch) / "jars").rename(folder)
    return folder


def _fetch(scratch: Path) -> None:
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    (scratch / "ivy.xml").write_text(IVY)
    done = subprocess.run(
        [
            *("java", "-cp", str(ivy), "org.apache.ivy.Main", "-ivy", str(scratch / "ivy.xml")),
            *("-retrieve", f"{scratch}/jars/[artifact]-[revision].[ext]", "-types", "jar", "bundle"),
        ],
        capture_output=True,
        text=True,
        timeout=FETCH_SECONDS,
        check=False,
    )
    if done.returncode or not (scratch / "jars" / f"kafka_2.13-{VERSION}.jar").is_file():
        raise EnvironmentMissing(
            f"the jars of Kafka {VERSION} could not be fetched: {done.stdout[-800:]}{done.stderr[-800:]}",
            "See that Java 17 is there and that Maven Central or its mirror can be reached, and try again",
        )


class KafkaServer:
    """One server in a folder of its own. `kill` and `start` may follow each other; `remove` ends it for good.

    `settings` are added to `server.properties`; `options` are Java's."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        options: tuple[str, ...] = ("-Xmx288m", "-Xms96m", "-XX:TieredStopAtLevel=1"),
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-kafka-", dir="/tmp"))
        self._port, self._tls, self._sasl, self._controller = (free_port() for _ in range(4))
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._certificates()
        self._properties = self.folder / "server.properties"
        lines = {**self._settings(), **(settings or {})}
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        try:
            self.run("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(self._properties))
            self.start()
        except BaseException:
            self.remove()
            raise

    @property
    def brokers(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def tls_brokers(self) -> str:
        """Where the server listens with TLS, without a login. Its certificate is for `localhost`."""
        return f"localhost:{self._tls}"

    @property
    def sasl_brokers(self) -> str:
        """Where the server listens with SASL (PLAIN) over TLS."""
        return f"localhost:{self._sasl}"

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        admin = AdminClient({"bootstrap.servers": self.brokers, "log_level": 0})
        while True:
            try:
                admin.list_topics(timeout=1)
                return
            except KafkaException as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    said = (self.folder / "server.log").read_text(errors="replace")[-2000:]
                    raise EnvironmentMissing(f"Kafka did not start: {said}", "Look at the lines above") from error

    def kill(self) -> None:
        """Send SIGKILL, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop answering, with all connections open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, main: str, *arguments: str, seconds: float = 300) -> str:
        """Run a Java program of Kafka's to its end, and return what it says."""
        done = subprocess.run(
            self._java(main, *arguments), capture_output=True, text=True, timeout=seconds, check=False
        )
        if done.returncode:
            raise EnvironmentMissing(f"{main} failed: {done.stdout[-800:]}{done.stderr[-800:]}", "")
        return done.stdout

    def __enter__(self) -> KafkaServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()

    def _java(self, main: str, *arguments: str) -> list[str]:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return ["java", *self._options, "-XX:+UseSerialGC", quiet, "-cp", f"{jars()}/*", main, *arguments]

    def _settings(self) -> dict[str, str]:
        login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAIN",
            "listeners": f"PLAIN://{self.brokers},CONTROLLER://127.0.0.1:{self._controller},"
            f"TLS://{self.tls_brokers},SASL://{self.sasl_brokers}",
            "listener.security.protocol.map": "PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL,SASL:SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": login,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "server.both"),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "num.network.threads": "2",
            "num.io.threads": "2",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "2",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": str(4 << 20),
        }

    def _certificates(self) -> None:
        """An authority, and a certificate of its for `localhost`."""
        key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        (self.folder / "names").write_text("subjectAltName=DNS:localhost\n")
        for command in (
            f"req -x509 {key} -days 2 -subj /CN=ca -addext basicConstraints=CA:TRUE -keyout ca.key -out ca.pem",
            f"req {key} -subj /CN=localhost -keyout server.key -out server.csr",
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem",
        ):
            subprocess.run(["openssl", *command.split()], cwd=self.folder, check=True, capture_output=True)
        both = (self.folder / "server.key").read_text() + (self.folder / "server.pem").read_text()
        (self.folder / "server.both").write_text(both)
