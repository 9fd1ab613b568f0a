"""The jars that Spark needs beside itself: which, where they are kept, and how they get there.

`python -m penstock.runtime.spark.jars` fetches them through Spark's own Ivy into `{sys.prefix}/share/penstock/jars`;
`make install` calls it. `runtime.spark` uses that folder, and lets Spark fetch the jars itself when they are not there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from penstock.destinations.registry import compiled_jars, packages
from penstock.errors import EnvironmentMissing

PACKAGES = packages()

APPLICATION = """
import sys, zipfile
from pathlib import Path
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
for source in sys.argv[1:]:
    compiler = spark._jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(spark._jsparkSession.sharedState().jarClassLoader())
    compiler.cook(Path(source).read_text())
    with zipfile.ZipFile(Path(source).with_suffix(".jar"), "w") as jar:
        for name, code in compiler.getBytecodes().items():
            jar.writestr(name.replace(".", "/") + ".class", bytes(code))
print("JARS=" + spark.sparkContext.getConf().get("spark.jars", ""))
spark.stop()
"""


def folder() -> Path:
    """Without links in its path: Java's class archive knows jars by their paths."""
    return Path(sys.prefix).resolve() / "share" / "penstock" / "jars"


def class_archive() -> Path:
    """Return where `class_archive.build` puts what it makes of the jars; Spark starts faster with it, and
    well without."""
    return folder() / "classes.jsa"


def installed() -> list[Path] | None:
    """Return the jars, if all are there."""
    jars = _wanted()
    return jars if all(jar.is_file() for jar in jars) else None


def fetch() -> list[Path]:
    """Bring the missing jars into the folder. A jar appears there whole or not at all."""
    present = installed()
    if present is not None:
        return present
    try:
        folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentMissing(
            f"{folder()} cannot be made: {error.strerror}", "Install penstock into an environment that you may write to"
        ) from error
    with tempfile.TemporaryDirectory(prefix="penstock-jars-") as scratch:
        resolved = _resolve(Path(scratch))
        for package in PACKAGES:
            source = next((jar for jar in resolved if jar.name.endswith(_file_name(package))), None)
            if source is None:
                raise EnvironmentMissing(
                    f"{package} was not found by Ivy",
                    "See that Maven Central or its mirror can be reached and try again",
                )
            _put(source, folder() / _file_name(package))
        for jar in compiled_jars():
            _put(Path(scratch) / jar.file_name, folder() / jar.file_name)
    return _wanted()


def _wanted() -> list[Path]:
    return [folder() / name for name in (*map(_file_name, PACKAGES), *(jar.file_name for jar in compiled_jars()))]


def _put(source: Path, target: Path) -> None:
    partial = target.with_suffix(".partial")
    shutil.copyfile(source, partial)
    partial.replace(target)


def _file_name(package: str) -> str:
    _, artifact, version = package.split(":")
    return f"{artifact}-{version}.jar"


def _resolve(scratch: Path) -> list[Path]:
    """Spark resolves packages before it starts an application, so a small one does; it compiles our own classes
    besides.
    """
    sources = [scratch / Path(jar.file_name).with_suffix(".java") for jar in compiled_jars()]
    for place, jar in zip(sources, compiled_jars(), strict=True):
        place.write_text(jar.source)
    (scratch / "application.py").write_text(APPLICATION)
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--master", "local[1]", "--conf", "spark.ui.enabled=false", "--packages", ",".join(PACKAGES)),
        *("--conf", f"spark.pyspark.python={sys.executable}", str(scratch / "application.py")),
        *map(str, sources),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("JARS=")), None)
    if done.returncode or line is None:
        reason = (done.stderr.strip().splitlines() or ["spark-submit said nothing"])[-1]
        raise EnvironmentMissing(
            f"the jars {', '.join(PACKAGES)} could not be fetched: {reason}",
            "See that Java 17 is there and that Maven Central or its mirror can be reached, and try again",
        )
    return [Path(jar.removeprefix("file://").removeprefix("file:")) for jar in line.removeprefix("JARS=").split(",")]


if __name__ == "__main__":
    try:
        fetch()
    except EnvironmentMissing as missing:
        sys.exit(f"penstock: {missing}")
