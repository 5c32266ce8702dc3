"""Values of a state variable whose schema has changed since they were written.

Each schema that a variable ever had in a store has a number. An entry of schema 0 is as it always was;
any other begins with a header that holds the number of its schema. An entry is read in its own schema
and converted, field by field and by name, when it is asked for; it is written in the declared one.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StructType,
)
from typing_extensions import override

from statekeep.errors import CheckpointCorruptError
from statekeep.spark.operator.codec import ValueCodec, list_header
from statekeep.spark.operator.rows import row_maker

MAX_SCHEMA_NUMBER: Final = 255

_HEADER: Final = b"\xd4\x01"
"""An extension of MessagePack of one byte, which begins no value and no list: the number follows."""
_HEADER_BYTES: Final = 3
_WIDE: Final = Context(prec=100)
_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_DIGITS: Final[Mapping[type[DataType], int]] = {
    ByteType: 3,
    ShortType: 5,
    IntegerType: 10,
    LongType: 19,
}
_EXACT: Final[Mapping[type[DataType], tuple[type[DataType], ...]]] = {
    FloatType: (ByteType, ShortType),
    DoubleType: (ByteType, ShortType, IntegerType, FloatType),
}
"""Of each floating type, the types all of whose values it holds."""

Convert = Callable[[Any], Any]


class EvolutionError(ValueError):
    """Raised when values of one type cannot be read as another one.

    Attributes:
        field: Path of the field.
        stored: Its type in the store.
        declared: Its type in the declaration.
    """

    def __init__(self, field: str, stored: DataType, declared: DataType) -> None:
        self.field = field
        self.stored = stored.simpleString()
        self.declared = declared.simpleString()
        super().__init__(f"field={field} stored={self.stored} declared={self.declared}")


def schema_header(number: int) -> bytes:
    """Return what an entry of the schema ``number`` begins with."""
    return _HEADER + bytes([number]) if number else b""


def split_header(data: bytes) -> tuple[int, bytes]:
    """Return the number of an entry's schema, and the entry without its header.

    Raises:
        CheckpointCorruptError: It ends within its header.
    """
    if data[:2] != _HEADER:
        return 0, data
    if len(data) < _HEADER_BYTES:
        raise CheckpointCorruptError("stored value ends before the number of its schema")
    return data[2], data[_HEADER_BYTES:]


class EvolvedCodec(ValueCodec):
    """A `ValueCodec` of the declared schema that also reads what was written in other ones."""

    def __init__(self, schema: StructType, number: int, others: Mapping[int, StructType]) -> None:
        """Prepare for ``schema``.

        Args:
            schema: The declared one.
            number: Its number.
            others: The other schemas of the variable, by their numbers; `evolution` has found that
                their values can be read as the declared one.

        Raises:
            StateSchemaError: A type cannot be kept in state.
        """
        super().__init__(schema)
        self.header = schema_header(number)
        self._number = number
        self._others = others
        self._readers: dict[int, tuple[ValueCodec, Convert]] = {}
        """Of the other schemas that entries were met in."""

    @override
    def encode(self, value: object) -> bytes:
        return self.header + self.encode_item(value)

    @override
    def decode(self, data: bytes) -> tuple[Any, ...]:
        number, body = split_header(data)
        if number == self._number:
            return super().decode(body)
        codec, convert = self._other(number)
        values: tuple[Any, ...] = convert(codec.decode(body))
        return values

    @override
    def decode_list(self, data: bytes) -> list[tuple[Any, ...]]:
        number, body = split_header(data)
        if number == self._number:
            return super().decode_list(body)
        codec, convert = self._other(number)
        return [convert(values) for values in codec.decode_list(body)]

    @override
    def list_body(self, data: bytes) -> bytes:
        number, body = split_header(data)
        if number == self._number:
            return body
        items = [self.encode_item(values) for values in self.decode_list(data)]
        return list_header(len(items)) + b"".join(items)

    def _other(self, number: int) -> tuple[ValueCodec, Convert]:
        reader = self._readers.get(number)
        if reader is None:
            stored = self._others.get(number)
            if stored is None:
                raise CheckpointCorruptError(
                    f"stored value has a schema that is not registered: number={number}"
                )
            reader = self._readers[number] = ValueCodec(stored), evolution(stored, self.schema)
        return reader


def evolution(stored: StructType, declared: StructType) -> Convert:
    """Return what turns a tuple of the stored schema into one of the declared schema.

    Fields are found by name. One that was not stored is null, one that is not declared is left out, a
    number may get a type that holds every value of the stored one.

    Raises:
        EvolutionError: Naming the first field that cannot be read.
    """
    return _fields(stored, declared, "", tuple)


def _fields(
    stored: StructType, declared: StructType, path: str, make: Callable[[Sequence[Any]], Any]
) -> Convert:
    positions = {name: at for at, name in enumerate(stored.names)}
    sources: list[tuple[int, Convert | None] | None] = []
    for field in declared.fields:
        at = positions.get(field.name)
        if at is None:
            sources.append(None)
        else:
            convert = _conversion(stored.fields[at].dataType, field.dataType, path + field.name)
            sources.append((at, convert))

    def convert_fields(values: Sequence[Any]) -> Any:  # noqa: ANN401 - a tuple or a Row
        return make([_taken(values, source) for source in sources])

    return convert_fields


def _taken(values: Sequence[Any], source: tuple[int, Convert | None] | None) -> object:
    if source is None:
        return None
    at, convert = source
    value = values[at]
    return value if convert is None or value is None else convert(value)


def _conversion(stored: DataType, declared: DataType, path: str) -> Convert | None:
    """Return what turns a present value into one of the declared type; None: it is one."""
    if stored.simpleString() == declared.simpleString() or isinstance(stored, NullType):
        return None
    match stored, declared:
        case StructType(), StructType():
            return _fields(stored, declared, f"{path}.", row_maker(declared.names))
        case ArrayType(), ArrayType():
            element = _conversion(stored.elementType, declared.elementType, f"{path}[]")
            return _of_items(element)
        case MapType(), MapType():
            return _of_entries(stored, declared, path)
        case _:
            return _widened(stored, declared, path)


def _of_items(element: Convert | None) -> Convert | None:
    if element is None:
        return None
    return lambda items: [None if item is None else element(item) for item in items]


def _of_entries(stored: MapType, declared: MapType, path: str) -> Convert | None:
    if stored.keyType.simpleString() != declared.keyType.simpleString():
        # Two keys might become one.
        raise EvolutionError(f"{path}.key", stored.keyType, declared.keyType)
    value = _conversion(stored.valueType, declared.valueType, f"{path}.value")
    if value is None:
        return None
    return lambda entries: {
        key: None if item is None else value(item) for key, item in entries.items()
    }


def _widened(stored: DataType, declared: DataType, path: str) -> Convert | None:
    source, target = type(stored), type(declared)
    if source in _INTEGERS and target in _INTEGERS[_INTEGERS.index(source) + 1 :]:
        return None
    if source in _EXACT.get(target, ()):
        return float
    if isinstance(declared, DecimalType):
        whole = declared.precision - declared.scale
        is_exact = _DIGITS.get(source, whole + 1) <= whole
        if isinstance(stored, DecimalType):
            is_exact = stored.scale <= declared.scale and stored.precision - stored.scale <= whole
        if is_exact:
            step = Decimal(1).scaleb(-declared.scale)
            return lambda number: Decimal(number).quantize(step, context=_WIDE)
    raise EvolutionError(path, stored, declared)
