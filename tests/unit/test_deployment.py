"""What people install: the wheel has every file, and the files under deploy/ say what penstock understands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import COMMANDS
from penstock.config.load import load

PROJECT = Path(__file__).parent.parent.parent
DEPLOY = PROJECT / "deploy"


def _documents(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / file).read_text()))


def _is_a_command(words: list[str]) -> bool:
    return any(tuple(words[: len(command.words)]) == command.words for command in COMMANDS)


def test_the_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    source = tmp_path / "source"
    tracked = subprocess.run(
        [
            "git",
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "src",
            "pyproject.toml",
            "README.md",
            "LICENSE",
        ],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    tracked = [name for name in tracked if (PROJECT / name).is_file()]
    for name in tracked:  # a build leaves folders behind: not in the project's own
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((PROJECT / name).read_bytes())
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(source)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("penstock-*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    missing = {name.removeprefix("src/") for name in tracked if name.startswith("src/penstock/")} - packed
    assert not missing, "add them to [tool.setuptools.package-data]"


def test_the_image_is_built_as_the_linter_wants_it() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, DEPLOY / "Containerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_image_copies_and_installs_what_there_is(tmp_path: Path) -> None:
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    for copied in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        assert all((PROJECT / name).exists() for name in copied.split()), copied
    (extras,) = re.findall(r'"\.\[(.+?)\]"', text)
    declared = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= set(declared)
    (constraints,) = re.findall(r"RUN (grep .+?) > constraints.txt", text)
    made = subprocess.run(["bash", "-c", constraints], cwd=PROJECT, capture_output=True, text=True, check=True)
    lines = made.stdout.splitlines()
    assert len(lines) > 50
    assert all(re.fullmatch(r"[\w.-]+==[\w.!+-]+", line) for line in lines)
    (arguments,) = re.findall(r"^CMD (\[.+\])$", text, re.MULTILINE)
    assert _is_a_command(yaml.safe_load(arguments))


def test_the_unit_runs_commands_that_exist() -> None:
    unit = (DEPLOY / "penstock@.service").read_text()
    commands = re.findall(r"^ExecStart(?:Pre)?=/opt/penstock/bin/penstock (.+)$", unit, re.MULTILINE)
    assert len(commands) == 2
    assert all(_is_a_command(shlex.split(command)) for command in commands)
    assert "RestartPreventExitStatus=2" in unit, "what a mistake in the file exits with"


def test_the_manifest_has_a_pipeline_that_can_be_read(tmp_path: Path) -> None:
    config, stateful = _documents("kubernetes/penstock.yaml")
    file = tmp_path / "pipeline.yaml"
    file.write_text(config["data"]["pipeline.yaml"])
    pipeline = load(file)
    spec = stateful["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert _is_a_command(container["args"])
    address = container["args"][container["args"].index("--listen") + 1]
    assert {port["containerPort"] for port in container["ports"]} == {int(address.rpartition(":")[2])}
    probed = {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert probed == {"/health", "/ready"}, "which need no token"
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(pipeline.home).startswith("/data/")
    assert mounts == {"/pipeline", "/data"}
    assert stateful["spec"]["replicas"] == 1, "two runs of one pipeline are refused"


def test_compose_starts_the_image_of_this_project() -> None:
    (compose,) = _documents("compose.yaml")
    build = compose["services"]["penstock"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    assert "wal_level=logical" in compose["services"]["postgres"]["command"]


@pytest.mark.full
def test_an_empty_environment_runs_the_installed_wheel(tmp_path: Path) -> None:
    """`pip install` of the wheel in an empty environment, jars into it at the first start, and the demo's proof."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, str(PROJECT)], check=True, capture_output=True, timeout=600)
    demo = subprocess.run(
        [str(environment / "bin" / "penstock"), "demo"], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert demo.returncode == 0, demo.stderr
    assert "equal" in demo.stdout
