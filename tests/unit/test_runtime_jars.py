"""The jars that Spark needs: where they are kept, and that only the tested ones get there."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from penstock.destinations.registry import store_packages
from penstock.errors import EnvironmentMissing
from penstock.runtime.spark import jars


def test_every_package_has_a_checksum() -> None:
    names = {f"{package.split(':')[1]}-{package.split(':')[2]}.jar" for package in (*jars.PACKAGES, *store_packages())}
    assert set(jars.CHECKSUMS) == names


def test_jars_are_kept_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert jars.folder() == tmp_path.resolve() / "share" / "penstock" / "jars"


def test_jars_go_to_the_cache_where_the_environment_is_read_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = jars.folder()
    assert first.parent == tmp_path.resolve() / "cache" / "penstock"
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "another"))
    assert jars.folder() != first, "an archive of classes fits one environment"


def test_a_read_only_environment_that_has_the_jars_keeps_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    kept = tmp_path.resolve() / "share" / "penstock" / "jars"
    kept.mkdir(parents=True)
    assert jars.folder() == kept


def test_only_tested_jars_are_put_in_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ivy is stood in for: no mirror can be made to serve a damaged jar."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    name = "tested-1.0.jar"
    fetched = tmp_path / "ivy" / f"org.example_{name}"
    fetched.parent.mkdir()
    monkeypatch.setattr(jars, "PACKAGES", ("org.example:tested:1.0",))
    monkeypatch.setattr(jars, "compiled_jars", lambda: ())
    monkeypatch.setattr(jars, "_resolve", lambda scratch, wanted, classes: [fetched])
    monkeypatch.setattr(jars, "CHECKSUMS", {name: hashlib.sha256(b"as tested").hexdigest()})
    said: list[Path] = []

    def say(folder: Path, count: int) -> None:
        said.append(folder)

    fetched.write_bytes(b"damaged")
    with pytest.raises(EnvironmentMissing, match=r"tested-1\.0\.jar is not the jar that penstock was tested with"):
        jars.fetch(say)
    assert jars.installed() is None

    fetched.write_bytes(b"as tested")
    assert jars.fetch(say) == [jars.folder() / name]
    assert said == [jars.folder()] * 2
    jars.fetch(say)
    assert len(said) == 2, "nothing is missing any more"
