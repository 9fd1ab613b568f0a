"""Every type through the whole pipeline, before the slot and after it: what Spark reads is what SELECT gives."""

from __future__ import annotations

from databases import Database
from lake import Lake
from penstock.config.load import load
from penstock.control.verify.proof import prove
from penstock.source.factory import source_of
from running import PipelineFactory, PipelineFile, running
from type_tables import columns_of, create, insert, types_of

TABLES = ("alone", "lists", "rows")


def test_spark_reads_what_select_gives(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    """Also choices, unchanged cells that were rescued, and what status says of them."""
    types = types_of(postgres)
    tables = {name: columns_of(types, name) for name in TABLES}
    postgres.execute(
        *create(types, tables),
        *insert(tables, 0),
        "create table chosen (id int primary key, amount numeric, costs numeric[], payload jsonb, at timestamptz)",
        "create table fits (id int primary key, amount numeric)",
        "insert into chosen values (1, 1.5, '{1.25,NaN}', '{}', 'infinity')",
        "create table toasted (id int primary key, big numeric, note text)",
        "alter table toasted alter big set storage external",
        "insert into toasted select g, repeat('7', 20000)::numeric, 'old' from generate_series(1, 2) g",
    )
    choices = {"amount": "decimal(9,1)", "payload": "text", "pg:timestamptz": "text"}
    rules = [{"match": "public.chosen", "types": choices}, {"match": "public.*"}]
    file = pipeline(tables=rules)
    with running(file) as run:
        postgres.execute(
            *insert(tables, 1000),
            "insert into chosen values (2, 'NaN', '{}', '[1]', '2024-01-01 00:00+00')",
            "insert into fits values (1, 1.5)",
            "insert into toasted values (3, repeat('8', 20000)::numeric, 'old')",
        )
        run.drain()
        postgres.execute("update toasted set note = 'new' where id <> 2")
        run.drain()
        names = [f"public.{name}" for name in (*TABLES, "fits", "toasted")]
        lake.assert_equals(postgres, names)
        status = {table["table"]: table for table in file.status()["tables"]}
        shown = file.command("status", "FILE").stdout
    _assert_proved(file, postgres, lake)
    lake.assert_equals_in_pyiceberg(postgres, [f"public.{name}" for name in ("alone", "lists", "fits", "toasted")])
    assert {table["state"] for table in status.values()} == {"Ready"}
    assert status["public.fits"]["rescued"] == []
    (amount,) = (count for count in status["public.chosen"]["rescued"] if count["column"] == "amount")
    assert (amount["cells"], amount["sample"]) == (1, "NaN")
    (costs,) = (count for count in status["public.chosen"]["rescued"] if count["column"] == "costs")
    assert (costs["cells"], costs["sample"], costs["place"]) == (1, "{1.25,NaN}", "range 0 of its copy")
    assert "public.chosen.amount: 1 cell rescued, the last 'NaN' at " in " ".join(shown.split())
    found, kinds = lake.read("public.chosen")
    assert dict(kinds)["amount"] == "decimal(9,1)"
    assert dict(kinds)["at"] == "string"
    rows = {row["id"]: row for row in found.to_pylist()}
    assert rows[1]["at"] == "infinity"
    assert rows[1]["_rescued"] == [("costs", "{1.25,NaN}")]
    assert rows[2]["_rescued"] == [("amount", "NaN")]
    assert "_rescued" not in lake.read("public.fits")[0].column_names


def _assert_proved(file: PipelineFile, postgres: Database, lake: Lake) -> None:
    """What `verify` and the demo compare by is the same on both sides, for every type and every rescued cell."""
    pipeline = load(file.path)
    with source_of(pipeline.source).connect() as session:
        found = session.discover(pipeline)
        tables = {schema.table: pipeline.carried(schema) for schema in found}
        proofs = prove(session, lake.spark, lake.readable, tables)
    assert len(proofs) > len(TABLES)
    assert [str(proof.table) for proof in proofs if not proof.equal] == []
