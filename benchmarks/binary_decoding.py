"""`python -m benchmarks.binary_decoding [--rows N]`: Avro and Protobuf into columns, in one Python process: rows/s of one core.

- `decode.avro`, `decode.protobuf`: the demo's 14 columns, each of which may be null.
- `fastavro`: the same records into dictionaries by that library, for comparison.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2
from pyspark.sql.pandas.types import to_arrow_type

from pyspark_waltz.decode.avro_schema import avro_record
from pyspark_waltz.decode.formats import make_decoder
from pyspark_waltz.decode.problems import Problems
from pyspark_waltz.decode.protobuf_schema import message_type
from pyspark_waltz.decode.settings import DecodeSettings

__all__ = ["main"]

ROWS = 20_000
TURNS = 5
TEXTS = ("tail", "carrier", "origin", "dest", "flight")
NUMBERS = ("leg", "dep_delay", "arr_delay", "distance", "air_time", "hour", "minute")
DATE, TIME = {"type": "int", "logicalType": "date"}, {"type": "long", "logicalType": "timestamp-millis"}
KINDS: list[tuple[str, Any]] = [*((name, "string") for name in TEXTS), *((name, "int") for name in NUMBERS), ("day", DATE), ("at", TIME)]
SCHEMA = {"type": "record", "name": "Flight", "fields": [{"name": name, "type": ["null", kind]} for name, kind in KINDS]}


def flight(n: int) -> dict[str, Any]:
    texts = {"tail": f"N{n % 4000}", "carrier": "UA", "origin": "EWR", "dest": "LAX", "flight": f"UA{n}"}
    numbers = {"leg": n % 9, "dep_delay": n % 60, "arr_delay": n % 60 - 20, "distance": 2475, "air_time": n % 400, "hour": n % 24, "minute": n % 60}
    return {**texts, **numbers, "day": 15_706 + n % 28, "at": 1_357_000_000_000 + n * 60_000}


def descriptors() -> bytes:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="m", syntax="proto2")
    message = file.message_type.add(name="Flight")
    for number, (name, kind) in enumerate(KINDS, 1):
        made = kinds.TYPE_STRING if kind == "string" else kinds.TYPE_INT64 if kind == TIME else kinds.TYPE_INT32
        message.field.add(name=name, number=number, type=made, label=kinds.LABEL_OPTIONAL)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def per_second(rows: int, run: Callable[[], object]) -> float:
    """Rows per second of processor time, in the fastest of some turns."""
    spent = []
    for _ in range(TURNS):
        began = time.process_time()
        run()
        spent.append(time.process_time() - began)
    return rows / min(spent)


def decoding(settings: DecodeSettings, columns: Any, schema: bytes, documents: list[bytes]) -> Callable[[], None]:
    arrow = [to_arrow_type(field.dataType, timezone="UTC") for field in columns.fields]
    decoder = make_decoder(columns, arrow, settings, "UTC", schema)
    data = pa.array(documents, pa.binary())

    def run() -> None:
        problems = Problems()
        decoder.decode(data, problems)
        if problems.reasons:
            raise RuntimeError(f"a record of the benchmark did not decode: {problems.reasons}")

    return run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.binary_decoding", description="Avro and Protobuf into columns.")
    parser.add_argument("--rows", type=int, default=ROWS)
    rows: int = parser.parse_args().rows
    parsed, text = fastavro.parse_schema(SCHEMA), json.dumps(SCHEMA)
    records = []
    for n in range(rows):
        sink = io.BytesIO()
        fastavro.schemaless_writer(sink, parsed, flight(n))
        records.append(sink.getvalue())
    avro = decoding(DecodeSettings(format="avro", avro_schema=text), avro_record(text.encode())[0], text.encode(), records)
    print(f"decode.avro {per_second(rows, avro):,.0f} rows/s and core")
    alone = per_second(rows, lambda: [fastavro.schemaless_reader(io.BytesIO(record), parsed, None) for record in records])
    print(f"fastavro {alone:,.0f} rows/s and core, into dictionaries")
    schema = descriptors()
    kind = message_type(schema, "m.Flight")
    messages = [kind.made(**flight(n)).SerializeToString() for n in range(rows)]
    settings = DecodeSettings(format="protobuf", descriptor="unused", message="m.Flight")
    print(f"decode.protobuf {per_second(rows, decoding(settings, kind.columns, schema, messages)):,.0f} rows/s and core")


if __name__ == "__main__":
    main()
