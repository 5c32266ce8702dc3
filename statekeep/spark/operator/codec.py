"""Values of state variables as bytes: MessagePack of the declared types, never pickle.

A value is stored only if it reads back as what it was. A type that MessagePack lacks is stored
as Spark's internal form of it: a date as days, a timestamp as microseconds, a map as pairs.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    NullType,
    Row,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    VariantType,
)

from statekeep.errors import CheckpointCorruptError, StateSchemaError
from statekeep.spark.operator import scalars
from statekeep.spark.operator.rows import row_maker
from statekeep.spark.operator.scalars import MisfitError, ToWire
from statekeep.spark.releases import TimeType

LIST_HEADER_BYTES: Final = 5
"""Length of what `list_header` returns."""

_LIST_TAG: Final = b"\xdd"

# A Decimal or UUID must not pass for the string that MessagePack would make of it.
_UNREADABLE: Final = (
    msgspec.MsgspecError,
    RecursionError,
    ValueError,
    OverflowError,
    TypeError,
    ArithmeticError,
)
"""What the decoder raises, and then the conversions: a date, time or number out of range, a map's
key that cannot be one."""
_pack: Final = msgspec.msgpack.Encoder(decimal_format="number", uuid_format="bytes").encode


def list_header(count: int) -> bytes:
    """Return the bytes that make ``count`` encoded values, joined, one encoded list."""
    return _LIST_TAG + count.to_bytes(4, "big")


def list_count(data: bytes) -> int:
    """Return how many values the encoded list ``data`` has."""
    if data[:1] != _LIST_TAG:
        raise CheckpointCorruptError(f"stored list cannot be read: first_byte={data[:1].hex()}")
    return int.from_bytes(data[1:LIST_HEADER_BYTES], "big")


@dataclass(frozen=True, slots=True)
class _Wire:
    """How one type travels."""

    annotation: Any
    """What msgspec reads."""
    to_wire: ToWire
    """Checks a value and returns its stored form."""
    from_wire: Callable[[Any], Any] | None
    """Returns the user's form of a stored one; None: they are the same."""
    is_direct: bool
    """Whether msgspec may be given the user's value as it is."""


class ValueCodec:
    """Turns tuples of one schema into bytes and back.

    What is given may be a tuple, a list or a `Row`; what comes back is a tuple of the types that
    Spark gives to a processor (struct: `Row`; timestamp: naive, local). Decimals are rounded to
    their scale and floats to 32 bits, as Spark does; nothing else is changed.
    """

    header: bytes = b""
    """What an entry of the store begins with, before the value or the list."""

    def __init__(self, schema: StructType) -> None:
        """Prepare for ``schema``.

        Raises:
            StateSchemaError: A type in it cannot be kept in state.
        """
        self.schema = schema
        wires = [_wire(f.dataType, f.name, is_nullable=f.nullable) for f in schema.fields]
        annotation: Any = tuple[tuple(w.annotation for w in wires)]  # type: ignore[misc]  # built at run time
        self._to_wire = [w.to_wire for w in wires]
        self._from_wire = [w.from_wire for w in wires]
        self._is_direct = all(w.is_direct for w in wires)
        self._is_plain = not any(self._from_wire)
        self._unpack: Callable[[bytes], tuple[Any, ...]]
        self._unpack = msgspec.msgpack.Decoder(annotation).decode
        self._unpack_list: Callable[[bytes], list[tuple[Any, ...]]]
        self._unpack_list = msgspec.msgpack.Decoder(list[annotation]).decode
        self.make_row = row_maker(schema.names)

    def encode(self, value: object) -> bytes:
        """Return ``value`` as an entry; equal values of the same types give equal bytes.

        Raises:
            MisfitError: It does not fit the schema.
        """
        return self.encode_item(value)

    def encode_item(self, value: object) -> bytes:
        """Return ``value`` as it stands in a list, without a `header`.

        Raises:
            MisfitError: It does not fit the schema.
        """
        if self._is_direct:
            try:
                data = _pack(value)
                if self._unpack(data) == value:
                    return data
            except (TypeError, ValueError, OverflowError, RecursionError):
                pass  # the careful way names the field, or can normalise the value
        return self._encode_carefully(value)

    def encode_stored(self, values: Iterable[tuple[Any, ...]]) -> list[bytes]:
        """Return entries of values that fit the schema and have their stored form already."""
        if not self.header:
            return list(map(_pack, values))
        return [self.header + data for data in map(_pack, values)]

    def decode_stored(self, entries: Sequence[bytes]) -> list[tuple[Any, ...]]:
        """Return the values of entries in their stored form, all of this schema.

        Raises:
            CheckpointCorruptError: An entry is of another schema, or of none.
        """
        header = self.header
        if header and not all(entry.startswith(header) for entry in entries):
            raise self._unreadable()
        bodies = [entry[len(header) :] for entry in entries] if header else entries
        try:
            # One call for all is twice as fast as one for each.
            return self._unpack_list(list_header(len(bodies)) + b"".join(bodies))
        except _UNREADABLE as exc:
            raise self._unreadable() from exc

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Return the tuple that `encode` was given, normalised.

        Raises:
            CheckpointCorruptError: The bytes are not of this schema.
        """
        try:
            values = self._unpack(data)
            return values if self._is_plain else self._from(values)
        except _UNREADABLE as exc:
            raise self._unreadable() from exc

    def decode_list(self, data: bytes) -> list[tuple[Any, ...]]:
        """Return the tuples of an encoded list.

        Raises:
            CheckpointCorruptError: The bytes are not of this schema.
        """
        try:
            values = self._unpack_list(data)
            return values if self._is_plain else [self._from(item) for item in values]
        except _UNREADABLE as exc:
            raise self._unreadable() from exc

    def list_body(self, data: bytes) -> bytes:
        """Return the encoded list of an entry, without its header and in this schema.

        Raises:
            CheckpointCorruptError: The bytes are of no schema that the variable has had.
        """
        return data

    def _unreadable(self) -> CheckpointCorruptError:
        return CheckpointCorruptError(
            f"stored value cannot be read: schema={self.schema.simpleString()}"
        )

    def _from(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            value if convert is None else convert(value)
            for value, convert in zip(values, self._from_wire, strict=True)
        )

    def _encode_carefully(self, value: object) -> bytes:
        items = scalars.as_sequence(value)
        if items is None:
            raise MisfitError("", self.schema, value)
        if len(items) != len(self._to_wire):
            raise MisfitError(
                "", self.schema, value, found=f"{len(items)} values for {len(self._to_wire)} fields"
            )
        try:
            return _pack(tuple([f(item) for f, item in zip(self._to_wire, items, strict=True)]))
        except UnicodeEncodeError as exc:
            raise MisfitError("", self.schema, value, found="text that is not Unicode") from exc


def _wire(data_type: DataType, path: str, *, is_nullable: bool) -> _Wire:
    wire = _wire_of_present(data_type, path)
    if isinstance(data_type, NullType):
        return wire
    # Reading allows null everywhere: a schema may be tightened over state that holds nulls.
    return _Wire(
        wire.annotation | None,
        scalars.or_none(wire.to_wire) if is_nullable else wire.to_wire,
        None if wire.from_wire is None else scalars.or_none(wire.from_wire),
        wire.is_direct and is_nullable,
    )


def _wire_of_present(data_type: DataType, path: str) -> _Wire:
    match data_type:
        case ArrayType():
            return _array_wire(data_type, path)
        case MapType():
            return _map_wire(data_type, path)
        case StructType():
            return _struct_wire(data_type, path)
        case _:
            return _scalar_wire(data_type, path)


def _scalar_wire(data_type: DataType, path: str) -> _Wire:
    kind = type(data_type)
    if kind in _DIRECT:
        annotation, check = _DIRECT[kind]
        return _Wire(annotation, check(data_type, path), None, is_direct=True)
    if isinstance(data_type, IntegralType):
        bound = scalars.integer_bound(data_type)
        annotation = Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
        return _Wire(annotation, scalars.integer(data_type, path), None, is_direct=True)
    if isinstance(data_type, FloatType):
        return _Wire(float, scalars.single(data_type, path), None, is_direct=False)
    if isinstance(data_type, DecimalType):
        return _Wire(str, scalars.decimal(data_type, path), scalars.to_decimal, is_direct=False)
    if isinstance(data_type, VariantType):
        parts = tuple[bytes, bytes]
        return _Wire(parts, scalars.variant(data_type, path), scalars.to_variant, is_direct=False)
    if kind in _TEMPORAL:
        to_wire = scalars.temporal(data_type, path)
        return _Wire(int, to_wire, data_type.fromInternal, is_direct=False)
    raise StateSchemaError(
        "type cannot be kept in state or used as a key: "
        f"field={path} type={data_type.simpleString()}"
    )


_DIRECT: Final[dict[type[DataType], tuple[Any, Callable[[DataType, str], ToWire]]]] = {
    NullType: (None, scalars.nothing),
    BooleanType: (bool, scalars.boolean),
    DoubleType: (float, scalars.double),
    StringType: (str, scalars.text),
    CharType: (str, scalars.text),
    VarcharType: (str, scalars.text),
    BinaryType: (bytes, scalars.binary),
}

_TEMPORAL: Final = (DateType, TimeType, TimestampType, TimestampNTZType, DayTimeIntervalType)


def _array_wire(data_type: ArrayType, path: str) -> _Wire:
    element = _wire(data_type.elementType, f"{path}[]", is_nullable=data_type.containsNull)
    element_to, element_from = element.to_wire, element.from_wire

    def to_wire(value: object) -> list[Any]:
        items = scalars.as_sequence(scalars.plain(value))
        if items is None:
            raise MisfitError(path, data_type, value)
        return [element_to(item) for item in items]

    def from_wire(items: list[Any]) -> list[Any]:
        assert element_from is not None  # noqa: S101 - used only then
        return [element_from(item) for item in items]

    return _Wire(
        list[element.annotation],  # type: ignore[name-defined]  # built at run time
        to_wire,
        None if element_from is None else from_wire,
        element.is_direct,
    )


def _map_wire(data_type: MapType, path: str) -> _Wire:
    if _holds_list(data_type.keyType):
        raise StateSchemaError(
            "map's key has no hash in Python, so the map could not be read again: "
            f"field={path}.key type={data_type.keyType.simpleString()}"
        )
    key = _wire(data_type.keyType, f"{path}.key", is_nullable=False)
    value = _wire(data_type.valueType, f"{path}.value", is_nullable=data_type.valueContainsNull)
    key_to, value_to = key.to_wire, value.to_wire
    key_from = key.from_wire or scalars.same
    value_from = value.from_wire or scalars.same

    def to_wire(value: object) -> list[tuple[Any, Any]]:
        mapping = scalars.as_mapping(value)
        if mapping is None:
            raise MisfitError(path, data_type, value)
        pairs = {key_to(k): value_to(v) for k, v in mapping.items()}
        if len(pairs) != len(mapping):
            found = "keys that are the same once rounded"
            raise MisfitError(f"{path}.key", data_type.keyType, value, found=found)
        return list(pairs.items())

    def from_wire(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        return {key_from(k): value_from(v) for k, v in pairs}

    return _Wire(
        list[tuple[key.annotation, value.annotation]],  # type: ignore[name-defined]  # built at run time
        to_wire,
        from_wire,
        is_direct=False,
    )


def _holds_list(data_type: DataType) -> bool:
    if isinstance(data_type, StructType):
        return any(_holds_list(field.dataType) for field in data_type.fields)
    return isinstance(data_type, ArrayType | MapType)


def _struct_wire(data_type: StructType, path: str) -> _Wire:
    wires = [
        _wire(f.dataType, f"{path}.{f.name}", is_nullable=f.nullable) for f in data_type.fields
    ]
    names = data_type.names
    make_row = row_maker(names)
    from_wires = [w.from_wire or scalars.same for w in wires]

    def to_wire(value: object) -> tuple[Any, ...]:
        values = scalars.as_sequence(value)
        mapping = scalars.as_mapping(value)
        if mapping is not None and set(mapping) <= set(names):
            values = [mapping.get(name) for name in names]
        if values is None:
            raise MisfitError(path, data_type, value)
        if len(values) != len(names):
            found = f"{len(values)} values for {len(names)} fields"
            raise MisfitError(path, data_type, value, found=found)
        return tuple([wire.to_wire(item) for wire, item in zip(wires, values, strict=True)])

    def from_wire(values: tuple[Any, ...]) -> Row:
        return make_row([f(item) for f, item in zip(from_wires, values, strict=True)])

    annotation: Any = tuple[tuple(w.annotation for w in wires)]  # type: ignore[misc]  # built at run time
    return _Wire(annotation, to_wire, from_wire, all(w.is_direct for w in wires))
