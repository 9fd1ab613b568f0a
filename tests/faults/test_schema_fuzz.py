"""Random structure changes among random rows, with kills: in the end every column of the lake equals the source's."""

from __future__ import annotations

import random

import pytest

from databases import Database
from lake import Lake
from running import PipelineFactory, PipelineFile, await_condition, running
from schema_following import differing
from schema_fuzz import Fuzzer


def await_ready(file: PipelineFile) -> None:
    """Also a table that was Errored without a key is Ready again, now that it has one."""
    try:
        await_condition(lambda: not others(file), "every table to be Ready", 120, every=0.5)
    except AssertionError as late:
        raise AssertionError(f"{late}; not so: {others(file)}") from None


def others(file: PipelineFile) -> list[tuple[str, str, str]]:
    tables = file.status()["tables"]
    return [(table["table"], table["state"], table["error"]) for table in tables if table["state"] != "Ready"]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 6))])
def test_random_sequences_of_ddl_and_dml(
    pipeline: PipelineFactory, postgres: Database, lake: Lake, full: bool, seed: int
) -> None:
    """10 sequences, or 40 for each of five seeds; each is a table's own, and all run side by side.
    The even seeds have the DDL trigger."""
    sequences, rounds, kills = (40, 12, 3) if full else (10, 6, 1)
    chance = random.Random(seed)
    fuzzers = [Fuzzer(f"f{number}", random.Random(f"{seed} {number}")) for number in range(sequences)]
    with postgres.connect() as connection:
        for fuzzer in fuzzers:
            fuzzer.create(connection)
        file = pipeline(copy={"discover_every": "500ms"})
        if seed % 2 == 0:
            assert file.command("source", "ddl-trigger", "install", "FILE").returncode == 0
        for life in range(kills + 1):
            with running(file) as run:
                if life == 0:
                    run.drain()
                for turn in range(rounds):
                    for fuzzer in fuzzers:
                        fuzzer.turn(connection)
                    if turn == rounds // 2 and life == 0:
                        run.capture().kill()
                if life < kills:
                    if chance.random() < 0.5:
                        run.drain()
                    run.kill()
                    continue
                for fuzzer in fuzzers:
                    fuzzer.settle(connection)
                run.drain()
                await_ready(file)
                run.drain()
                wrong = differing(lake, postgres, *(f"public.{fuzzer.name}" for fuzzer in fuzzers))
                told = [
                    f"{wrong[name]}\n" + ";\n".join(fuzzer.history)
                    for fuzzer in fuzzers
                    if (name := f"public.{fuzzer.name}") in wrong
                ]
                assert not told, "\n\n".join(told) + "\n\n" + run.text()[-20_000:]
