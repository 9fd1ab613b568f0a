"""Debezium's records in Avro, as Kafka Connect's converter makes them of the engine's records.

The engine hands every record over with its Connect schema; what Avro becomes of it is up to Connect's `AvroData`, which
Confluent's and Apicurio's converters share. Confluent's jars are not on Maven Central, Apicurio's are.

`python tests/support/debezium_avro.py` converts the recorded records (`debezium_workload.py`) and writes
`debezium_avro.json`: schemas, and each record's bytes under them. With `--full` the test does the same again.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import JavaGateway

from debezium_workload import recorded

RECORDED = Path(__file__).with_name("debezium_avro.json")
JARS = Path("build/debezium-avro").absolute()
IVY = """<ivy-module version="2.0">
  <info organisation="penstock" module="debezium-avro"/>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-utils-converter" rev="2.6.13.Final" conf="default"/>
    <dependency org="org.apache.kafka" name="connect-json" rev="4.3.1" conf="default"/>
  </dependencies>
</ivy-module>
"""


@dataclass(frozen=True)
class AvroRecord:
    """One record: its topic, and schema and bytes of key and value, where it has them."""

    topic: str
    key: tuple[Any, bytes] | None
    value: tuple[Any, bytes] | None


def recorded_avro() -> list[AvroRecord]:
    """Return what was recorded, in the order of `recorded`."""
    found = json.loads(RECORDED.read_text())

    def side(one: list[Any] | None) -> tuple[Any, bytes] | None:
        return None if one is None else (found["schemas"][one[0]], bytes.fromhex(one[1]))

    return [AvroRecord(topic, side(key), side(value)) for topic, key, value in found["records"]]


def _java() -> JavaGateway:
    if not (JARS / "ready").exists():
        JARS.mkdir(parents=True, exist_ok=True)
        (JARS / "ivy.xml").write_text(IVY)
        (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
        retrieve = ("-retrieve", f"{JARS}/[artifact]-[revision].[ext]", "-types", "jar", "bundle")
        command = ["java", "-cp", str(ivy), "org.apache.ivy.Main", "-ivy", str(JARS / "ivy.xml"), *retrieve]
        subprocess.run(command, check=True, capture_output=True)
        (JARS / "ready").touch()
    (py4j,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    classpath = ":".join(str(one) for one in sorted(JARS.glob("*.jar")))
    return JavaGateway.launch_gateway(jarpath=str(py4j), classpath=classpath, die_on_exit=True)


def converted() -> dict[str, Any]:
    """Convert the recorded records: schemas, and records that name theirs by number."""
    gateway = _java()
    try:
        jvm: Any = gateway.jvm
        from_json = jvm.org.apache.kafka.connect.json.JsonConverter()
        settings = jvm.java.util.HashMap()
        settings.put("schemas.enable", "true")
        from_json.configure(settings, False)
        data = jvm.io.apicurio.registry.utils.converter.avro.AvroData(100)
        schemas: list[Any] = []
        connect: dict[tuple[str, str], Any] = {}
        records = []
        for record in recorded():
            sides: list[Any] = [record["topic"]]
            for name in ("key", "value"):
                one = record[name]
                if one is None:
                    sides.append(None)
                    continue
                schema = connect[record["topic"], name] = one.get("schema") or connect[record["topic"], name]
                text = json.dumps({"schema": schema, "payload": one["payload"]}).encode()
                both = from_json.toConnectData(record["topic"], text)
                for side, image in one["payload"].items():
                    for column, value in image.items() if side in ("before", "after") and image else ():
                        if value == "NaN":  # which JsonConverter writes as a text, and reads as 0
                            both.value().getStruct(side).put(column, float("nan"))
                avro = data.fromConnectSchema(both.schema())
                described = json.loads(avro.toString())
                if described not in schemas:
                    schemas.append(described)
                out = jvm.java.io.ByteArrayOutputStream()
                encoder = jvm.org.apache.avro.io.EncoderFactory.get().directBinaryEncoder(out, None)
                writer = jvm.org.apache.avro.generic.GenericDatumWriter(avro)
                writer.write(data.fromConnectData(both.schema(), both.value()), encoder)
                encoder.flush()
                sides.append([schemas.index(described), bytes(out.toByteArray()).hex()])
            records.append(sides)
        return {"schemas": schemas, "records": records}
    finally:
        gateway.shutdown()


if __name__ == "__main__":
    made = converted()
    lines = [",\n".join(json.dumps(one, ensure_ascii=False) for one in made[name]) for name in ("schemas", "records")]
    RECORDED.write_text('{"schemas": [\n' + lines[0] + '\n], "records": [\n' + lines[1] + "\n]}\n")
