"""Protobuf in columns: what Protobuf's own library writes comes back, and each reason why data does not decode."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import grpc_tools
import pytest
from grpc_tools import protoc
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_waltz.decode.formats import own_columns, read_schema
from pyspark_waltz.decode.protobuf_schema import message_type
from pyspark_waltz.decode.settings import DecodeSettings
from tests.unit.spark_source.decode.own_schema import decoded_rows
from waltz_log.errors import InvalidSetting

UTC = dt.UTC
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 250_000, UTC)
THIRD = """
syntax = "proto3";
package m;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/empty.proto";
message R {
  enum E { A = 0; B = 1; }
  message S { double x = 1; repeated E es = 2; }
  string k = 1; optional int32 n = 2; uint32 u = 3; uint64 v = 4; repeated int32 l = 5; map<string, int32> mm = 6;
  google.protobuf.Timestamp at = 7; E e = 8; S s = 9; map<int32, S> ms = 10; bytes b = 11; bool t = 12; float f = 13;
  oneof one { string o = 14; int64 p = 15; google.protobuf.Empty nothing = 18; }
  google.protobuf.Duration d = 16; repeated google.protobuf.Timestamp ats = 17;
}
message Tree { repeated Tree of = 1; }
message Nothing {}
"""
SECOND = """
syntax = "proto2";
package m2;
message R {
  enum E { A = 0; B = 1; }
  message In { required int32 q = 1; }
  required string k = 1; optional int32 n = 2 [default = 5]; optional E e = 3; optional string z = 4; repeated E es = 5; optional In i = 6;
  map<string, int32> mm = 7; map<string, In> ins = 8; repeated In list = 9;
}
message Odd { optional int32 HasField = 1; optional int32 IsInitialized = 2; required int32 DESCRIPTORS = 3; }
"""


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("proto")
    (made / "third.proto").write_text(THIRD)
    (made / "second.proto").write_text(SECOND)
    bundled = Path(str(grpc_tools.__file__)).parent / "_proto"
    for name, more in (("all.desc", ["--include_imports"]), ("alone.desc", [])):
        given = ["protoc", f"-I{made}", f"-I{bundled}", *more, f"--descriptor_set_out={made / name}", "third.proto", "second.proto"]
        assert protoc.main(given) == 0
    return made / "all.desc"


def message(descriptors: Path, name: str = "m.R") -> Any:
    return message_type(descriptors.read_bytes(), name).made


def decoded(descriptors: Path, data: list[bytes | None], name: str = "m.R", **more: Any) -> list[Any]:
    """The values of each transaction by their columns, or the reason why it does not decode."""
    return decoded_rows(DecodeSettings(format="protobuf", descriptor=str(descriptors), message=name, **more), data)


def test_each_type_is_a_column_as_spark_declares_it(descriptors: Path) -> None:
    assert message_type(descriptors.read_bytes(), "m.R").columns.simpleString() == (
        "struct<k:string,n:int,u:bigint,v:decimal(20,0),l:array<int>,mm:map<string,int>,at:timestamp,e:string,s:struct<x:double,es:array<string>>,"
        "ms:map<int,struct<x:double,es:array<string>>>,b:binary,t:boolean,f:float,o:string,p:bigint,d:struct<seconds:bigint,nanos:int>,ats:array<timestamp>>"
    )


def test_values_come_back_and_unsigned_numbers_keep_theirs(descriptors: Path) -> None:
    made = message(descriptors)
    given = made(k="é", n=-4, u=2**32 - 1, v=2**64 - 1, l=[1, -2], mm={"b": 1, "a": 2}, e=1, s=made.S(x=1, es=[1, 0]), b=b"\xff", t=True, f=0.5, p=7)
    given.at.FromDatetime(MOMENT)
    given.ats.add().FromDatetime(MOMENT)
    given.d.seconds, given.d.nanos = -3, -5
    given.ms[5].x, given.ms[3].x = 2, 1
    (found,) = decoded(descriptors, [given.SerializeToString()])
    assert found == {
        "k": "é",
        "n": -4,
        "u": 2**32 - 1,
        "v": Decimal(2**64 - 1),
        "l": [1, -2],
        "mm": [("a", 2), ("b", 1)],
        "at": MOMENT,
        "e": "B",
        "s": {"x": 1.0, "es": ["B", "A"]},
        "ms": [(3, {"x": 1.0, "es": []}), (5, {"x": 2.0, "es": []})],
        "b": b"\xff",
        "t": True,
        "f": 0.5,
        "o": None,
        "p": 7,
        "d": {"seconds": -3, "nanos": -5},
        "ats": [MOMENT],
    }


def test_a_field_with_presence_is_null_if_absent_and_another_one_has_its_default(descriptors: Path) -> None:
    third, second = decoded(descriptors, [b""])[0], decoded(descriptors, [b"\x0a\x01a"], "m2.R")[0]
    assert {name for name, value in third.items() if value is None} == {"n", "at", "s", "o", "p", "d"}
    assert (third["k"], third["u"], third["v"], third["e"], third["l"], third["mm"]) == ("", 0, Decimal(0), "A", [], [])
    assert second == {"k": "a", "n": None, "e": None, "z": None, "es": [], "i": None, "mm": [], "ins": [], "list": []}


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("m.R", None, "no data"),
        ("m.R", b"\xff", "is not a Protobuf message m.R: Wire format was corrupt"),
        ("m.R", b"\x0a\x7f", "is not a Protobuf message m.R: Wire format was corrupt"),
        ("m.R", b"\x0a\x01\xff", "is not a Protobuf message m.R: String field had bad UTF-8"),
        ("m.R", b"\x08\x05", "k is not STRING: data of another type or value"),
        ("m.R", b"\x3a\x03\x0a\x01x", "at is not TIMESTAMP: data of another type or value"),
        ("m.R", b"\x4a\x02\x08\x05", "s.x is not DOUBLE: data of another type or value"),
        ("m.R", b"\x52\x06\x08\x01\x12\x02\x08\x05", "ms.x is not DOUBLE: data of another type or value"),
        ("m.R", b"\x40\x07", "e is the number 7: not a value of the enum m.R.E"),
        ("m.R", b"\x4a\x03\x12\x01\x07", "s.es is the number 7: not a value of the enum m.R.E"),
        ("m.R", b"\x3a\x02\x10\x05", "at is the number 5: it counts less than a microsecond; to cut that, set nanoseconds to truncate"),
        ("m.R", b"\x3a\x0b\x10" + b"\xff" * 9 + b"\x01", "at is not TIMESTAMP: 0 seconds and -1 nanoseconds"),
        ("m2.R", b"", "k is missing or null"),
        ("m2.R", b"\x0a\x01a\x32\x00", "i.q is missing or null"),
        ("m2.R", b"\x0a\x01a\x42\x05\x0a\x01\xff\x12\x00", "a required field is missing or null"),
        ("m2.R", b"\x0a\x01a\x4a\x00", "a required field is missing or null"),
        ("m2.R", b"\x0a\x01\xff", "k is not UTF-8"),
        ("m2.R", b"\x0a\x01a\x18\x07", "e is the number 7: not a value of the enum m2.R.E"),
        ("m2.R", b"\x0a\x01a\x28\x07\x28\x01", "es is the number 7: not a value of the enum m2.R.E"),
        ("m2.R", b"\x0a\x01a\x3a\x05\x0a\x01\xff\x10\x01", "mm has a key that is not UTF-8"),
    ],
)
def test_data_that_does_not_decode_says_where_and_why(descriptors: Path, name: str, data: bytes | None, reason: str) -> None:
    good = b"\x0a\x01a"
    first, found, last = decoded(descriptors, [good, data, good], name)
    assert found == reason
    assert first["k"] == last["k"] == "a"


def test_times_are_held_to_their_bounds_and_may_be_cut(descriptors: Path) -> None:
    made = message(descriptors)
    late, fine = made(), made()
    late.at.seconds, fine.at.nanos = 1_700_000_000_000, 1_999
    (found,) = decoded(descriptors, [late.SerializeToString()])
    assert found.startswith("at is the number 1700000000000000000: as microseconds from 1970, out of bounds: its producer may count in another unit")
    assert decoded(descriptors, [fine.SerializeToString()], nanoseconds="truncate")[0]["at"] == dt.datetime(1970, 1, 1, 0, 0, 0, 1, UTC)


def test_fields_of_a_later_schema_are_ignored(descriptors: Path) -> None:
    assert decoded(descriptors, [b"\x0a\x01a\xa2\x06\x01x\xa8\x06\x05"])[0]["k"] == "a"


@pytest.mark.parametrize(
    ("file", "name", "setting", "reason"),
    [
        ("all.desc", "m.Q", "message", "no such message"),
        ("all.desc", "m.Nothing", "message", "has no fields"),
        ("all.desc", "m.Tree", "descriptor", "of: the message m.Tree holds itself"),
        ("alone.desc", "m.R", "descriptor", "--include_imports"),
        ("third.proto", "m.R", "descriptor", "is not a descriptor set"),
        ("none.desc", "m.R", "descriptor", "cannot be read"),
    ],
)
def test_a_schema_that_no_table_can_hold_is_refused(descriptors: Path, file: str, name: str, setting: str, reason: str) -> None:
    decode = DecodeSettings(format="protobuf", descriptor=str(descriptors.with_name(file)), message=name)
    with pytest.raises(InvalidSetting, match=reason) as caught:
        own_columns(decode, read_schema(decode) or b"")
    assert caught.value.name == setting
    assert caught.value.nearest == ("m.R" if name == "m.Q" else None)


def test_a_field_may_have_the_name_of_a_method(descriptors: Path) -> None:
    assert decoded(descriptors, [b"\x10\x07\x18\x01", b"\x08\x05"], "m2.Odd") == [
        {"HasField": None, "IsInitialized": 7, "DESCRIPTORS": 1},
        "DESCRIPTORS is missing or null",
    ]


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=60))
def test_no_bytes_are_more_than_a_problem(descriptors: Path, data: bytes) -> None:
    for name in ("m.R", "m2.R"):
        (found,) = decoded(descriptors, [data], name)
        assert isinstance(found, str | dict)
