"""Schemas of state variables, also where no JVM is there to read a DDL string."""

import re
from collections.abc import Callable
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from statekeep.errors import StateSchemaError
from statekeep.spark.releases import RELEASE, TimeType

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)*`)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<word>\w+)|(?P<sign>[<>,:()]))"
)

_ATOMIC: Final[dict[str, Callable[[], DataType]]] = {
    "boolean": BooleanType,
    "tinyint": ByteType,
    "byte": ByteType,
    "smallint": ShortType,
    "short": ShortType,
    "int": IntegerType,
    "integer": IntegerType,
    "bigint": LongType,
    "long": LongType,
    "float": FloatType,
    "real": FloatType,
    "double": DoubleType,
    "date": DateType,
    "timestamp": TimestampType,
    "timestamp_ltz": TimestampType,
    "timestamp_ntz": TimestampNTZType,
    "string": StringType,
    "binary": BinaryType,
    "variant": VariantType,
    "void": NullType,
}

_DEFAULT_PRECISION: Final = 10
_INTERVAL_UNITS: Final = ("day", "hour", "minute", "second")
"""Of an interval of days and times; Python has no type for one of years and months."""


def parse_schema(schema: StructType | str) -> StructType:
    """Return the struct that ``schema`` names: itself, or the columns of a DDL string.

    The DDL is Spark's: ``n long, tags array<string>``, ``struct<n: long>``, names in back
    quotes, ``NOT NULL``, ``COMMENT``.

    Raises:
        StateSchemaError: The text is not such a schema, or names a type that state cannot hold.
    """
    if isinstance(schema, StructType):
        return schema
    return _Parser(schema).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._next = 0

    def parse(self) -> StructType:
        if self._peek().lower() == "struct" and self._peek(1) == "<":
            parsed = self._type()
            if not isinstance(parsed, StructType):
                raise self._error("expected a struct")
        else:
            parsed = StructType(self._fields(end=""))
        if self._peek():
            raise self._error("unexpected text after the schema")
        return parsed

    def _split(self, text: str) -> list[str]:
        tokens: list[str] = []
        at = 0
        stripped = text.rstrip()
        while at < len(stripped):
            match = _TOKEN.match(stripped, at)
            if match is None:
                raise StateSchemaError(f"schema cannot be read: schema={text!r} column={at + 1}")
            tokens.append(match.group().strip())
            at = match.end()
        return tokens

    def _error(self, problem: str) -> StateSchemaError:
        return StateSchemaError(
            f"schema cannot be read: {problem}: schema={self._text!r} near={self._peek()!r}"
        )

    def _peek(self, ahead: int = 0) -> str:
        at = self._next + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _accept(self, *words: str) -> bool:
        if [self._peek(i).lower() for i in range(len(words))] != list(words):
            return False
        self._next += len(words)
        return True

    def _expect(self, sign: str) -> None:
        if not self._accept(sign):
            raise self._error(f"expected {sign!r}")

    def _fields(self, end: str) -> list[StructField]:
        fields: list[StructField] = []
        while self._peek() != end:
            fields.append(self._field())
            if not self._accept(","):
                break
            if self._peek() == end:
                raise self._error("expected another column")
        return fields

    def _field(self) -> StructField:
        token = self._take()
        if token.startswith("`"):
            name = token[1:-1].replace("``", "`")
        elif token.isidentifier() or token.isalnum():
            name = token
        else:
            self._next -= 1
            raise self._error("expected a column name")
        self._accept(":")
        data_type = self._type()
        is_nullable = not self._accept("not", "null")
        if self._accept("comment"):
            self._take()
        return StructField(name, data_type, is_nullable)

    def _type(self) -> DataType:
        word = self._take().lower()
        if word in _ATOMIC:
            return _ATOMIC[word]()
        if word in ("decimal", "dec", "numeric"):
            precision, scale = self._decimal_arguments()
            return DecimalType(precision, scale)
        if word in ("char", "varchar"):
            self._number_arguments()
            return StringType()
        if word == "time" and RELEASE >= (4, 1):
            return TimeType(*self._number_arguments()[:1])
        if word == "interval" and self._peek().lower() in _INTERVAL_UNITS:
            return self._interval()
        if word in ("array", "map", "struct"):
            return self._nested(word)
        self._next -= 1
        raise self._error("unknown type")

    def _interval(self) -> DataType:
        first = last = _INTERVAL_UNITS.index(self._take().lower())
        if self._accept("to"):
            unit = self._take().lower()
            if unit not in _INTERVAL_UNITS[first + 1 :]:
                self._next -= 1
                raise self._error("expected a smaller unit")
            last = _INTERVAL_UNITS.index(unit)
        return DayTimeIntervalType(first, last)

    def _nested(self, word: str) -> DataType:
        self._expect("<")
        nested: DataType
        if word == "array":
            nested = ArrayType(self._type())
        elif word == "map":
            key_type = self._type()
            self._expect(",")
            nested = MapType(key_type, self._type())
        else:
            nested = StructType(self._fields(end=">"))
        self._expect(">")
        return nested

    def _decimal_arguments(self) -> tuple[int, int]:
        match self._number_arguments():
            case []:
                return _DEFAULT_PRECISION, 0
            case [precision]:
                return precision, 0
            case [precision, scale]:
                return precision, scale
            case _:
                raise self._error("expected precision and scale")

    def _number_arguments(self) -> list[int]:
        numbers: list[int] = []
        if not self._accept("("):
            return numbers
        while True:
            if not self._peek().isdigit():
                raise self._error("expected a number")
            numbers.append(int(self._take()))
            if self._accept(")"):
                return numbers
            self._expect(",")
