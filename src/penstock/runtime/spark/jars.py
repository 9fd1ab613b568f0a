"""The jars that Spark needs beside itself: which, where they are kept, and how they get there.

The first start of Spark fetches them through Spark's own Ivy; `penstock jars fetch` does so beforehand, and `make
install` calls that. They are kept in the virtual environment, or in the user's cache where the environment cannot be
written to. What Ivy brings is compared with the checksums below before it is put in its place.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pyspark

from penstock.destinations.destination_type import CompiledJar, DestinationSettings
from penstock.destinations.registry import compiled_jars, packages, reading_packages, store_packages
from penstock.errors import EnvironmentMissing

PACKAGES = (*packages(), *reading_packages())

# SHA-256 of each jar. A new version needs a new line: `sha256sum` of a jar that was fetched on two machines.
CHECKSUMS = {
    "delta-spark_4.1_2.13-4.4.0.jar": "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
    "delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "iceberg-aws-bundle-1.12.0.jar": "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
    "iceberg-spark-runtime-4.1_2.13-1.12.0.jar": "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    "sqlite-jdbc-3.50.3.0.jar": "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08",
}

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
    """Return the folder of the jars: in the virtual environment if possible, else in the user's cache.

    The environment's is taken if it exists or can be written to. There are no links in the path: Java's class archive
    knows jars by their paths.
    """
    prefix = Path(sys.prefix).resolve()
    kept = prefix / "share" / "penstock" / "jars"
    if kept.is_dir() or os.access(prefix, os.W_OK):
        return kept
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve()
    environment = hashlib.sha256(str(prefix).encode()).hexdigest()[:12]  # an archive of classes fits one environment
    return cache / "penstock" / f"jars-{environment}"


def class_archive() -> Path:
    """Return where `class_archive.build` puts what it makes of the jars.

    Spark starts faster with the archive, and well without.
    """
    return folder() / "classes.jsa"


def installed() -> list[Path] | None:
    """Return the jars, if all are there."""
    jars = _wanted()
    return jars if all(jar.is_file() for jar in jars) else None


def fetch(begins: Callable[[Path, int], None] = lambda folder, count: None, stores: Sequence[str] = ()) -> list[Path]:
    """Bring the missing jars into the folder and return all of them. A jar appears there whole or not at all.

    `stores` are packages that reach object stores, which not everybody needs. `begins` is called with the folder and
    the number of jars before anything is fetched; not at all if nothing is missing. EnvironmentMissing if the jars
    cannot be had, or are not the ones that this version of penstock was tested with."""
    present = installed()
    missing = [package for package in stores if not (folder() / _file_name(package)).is_file()]
    wanted = missing if present is not None else [*PACKAGES, *missing]
    classes = compiled_jars() if present is None else ()
    more = [folder() / _file_name(package) for package in stores]
    if not wanted:
        return [*_wanted(), *more]
    begins(folder(), len(wanted))
    try:
        folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentMissing(
            f"{folder()} cannot be made: {error.strerror}", "Install penstock into an environment that you may write to"
        ) from error
    with tempfile.TemporaryDirectory(prefix="penstock-jars-") as scratch:
        resolved = _resolve(Path(scratch), wanted, classes)
        for package in wanted:
            source = next((jar for jar in resolved if jar.name.endswith(_file_name(package))), None)
            if source is None:
                raise EnvironmentMissing(
                    f"{package} was not found by Ivy",
                    "See that Maven Central or its mirror can be reached and try again",
                )
            _require_checksum(source, _file_name(package))
            _put(source, folder() / _file_name(package))
        for jar in classes:
            _put(Path(scratch) / jar.file_name, folder() / jar.file_name)
    return [*_wanted(), *more]


def for_writing() -> list[Path]:
    """Return the jars that a run needs: those by which tables are only read back stay out of its class path.

    They must have been fetched.
    """
    others = {_file_name(package) for package in reading_packages()}
    return [jar for jar in _wanted() if jar.name not in others]


def for_reading(destinations: Sequence[DestinationSettings]) -> list[Path]:
    """Return the jars that a session which reads the tables of these destinations needs besides."""
    return [folder() / _file_name(package) for package in reading_packages(destinations)]


def for_stores(destinations: Sequence[DestinationSettings]) -> list[Path]:
    """Return the jars by which Java reaches the object stores of these destinations."""
    return [folder() / _file_name(package) for package in store_packages(destinations)]


def _wanted() -> list[Path]:
    return [folder() / name for name in (*map(_file_name, PACKAGES), *(jar.file_name for jar in compiled_jars()))]


def _require_checksum(jar: Path, name: str) -> None:
    with jar.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != CHECKSUMS[name]:
        raise EnvironmentMissing(
            f"{name} is not the jar that penstock was tested with: its SHA-256 is {found}, not {CHECKSUMS[name]}",
            f"Remove {jar} and try again; if it comes again, ask whoever runs your mirror of Maven Central",
        )


def _put(source: Path, target: Path) -> None:
    partial = target.with_suffix(".partial")
    shutil.copyfile(source, partial)
    partial.replace(target)


def _file_name(package: str) -> str:
    _, artifact, version = package.split(":")
    return f"{artifact}-{version}.jar"


def _resolve(scratch: Path, wanted: Sequence[str], classes: Sequence[CompiledJar]) -> list[Path]:
    """Resolve packages with a small application, for Spark does so before it starts one; compile our own classes."""
    sources = [scratch / Path(jar.file_name).with_suffix(".java") for jar in classes]
    for place, jar in zip(sources, classes, strict=True):
        place.write_text(jar.source)
    (scratch / "application.py").write_text(APPLICATION)
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--master", "local[1]", "--conf", "spark.ui.enabled=false", "--packages", ",".join(wanted)),
        *("--conf", f"spark.pyspark.python={sys.executable}", str(scratch / "application.py")),
        *map(str, sources),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("JARS=")), None)
    if done.returncode or line is None:
        said = done.stderr.strip().splitlines() or ["spark-submit said nothing"]
        reason = next((line.strip() for line in said if "Exception" in line), said[-1])
        raise EnvironmentMissing(
            f"the jars {', '.join(wanted)} could not be fetched: {reason}",
            "See that Java 17 is there and that Maven Central or its mirror can be reached, and try again. Without a "
            f"network, run `penstock jars fetch` on a machine that has one, and copy its folder to {folder()}",
        )
    return [Path(jar.removeprefix("file://").removeprefix("file:")) for jar in line.removeprefix("JARS=").split(",")]
