"""Which state variables a store holds: written beside them, checked whenever it is opened."""

import json
from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from statekeep.checkpoint.decoding import decode_json
from statekeep.errors import CheckpointCorruptError, StateSchemaError, UnknownFormatError
from statekeep.spark.operator.changes import ChangeWriter
from statekeep.stores.base import KeyValueStore

FORMAT_VERSION: Final = 1
"""Of the registry, the layout of keys and the codecs of keys and values."""

REGISTRY_KEY: Final = b"\x00\x00"
"""Id 0 with nothing after it: before every entry of every variable."""

VariableKind = Literal["value", "list", "map"]

_MAX_VARIABLE_ID: Final = (1 << 16) - 1


class RegisteredVariable(msgspec.Struct, frozen=True):
    """One state variable, as a store has it."""

    id: int
    kind: VariableKind
    schema: str
    """JSON of the values' Spark schema."""
    map_key_schema: str | None
    """JSON of the map keys' Spark schema; None unless the kind is ``map``."""

    @property
    def prefix(self) -> bytes:
        """What the key of each of its entries begins with."""
        return self.id.to_bytes(2, "big")


class _Content(msgspec.Struct):
    format_version: int
    key_schema: str
    next_id: int
    variables: dict[str, RegisteredVariable]


class _Versioned(msgspec.Struct):
    format_version: int


_decoder: Final = msgspec.json.Decoder(_Content)
_version_decoder: Final = msgspec.json.Decoder(_Versioned)
_DAMAGE: Final = "registry of state variables cannot be read"


class VariableRegistry:
    """The variables of one store. Ids are never used twice.

    A change is written together with the first change of state after it.
    """

    def __init__(self, store: KeyValueStore, key_schema: StructType, writer: ChangeWriter) -> None:
        """Read what ``store`` holds.

        Raises:
            StateSchemaError: It is of another grouping key.
            UnknownFormatError: A newer version of Statekeep wrote it.
            CheckpointCorruptError: It cannot be read.
        """
        self._writer = writer
        stored = store.get(REGISTRY_KEY)
        if stored is None:
            self._content = _Content(FORMAT_VERSION, key_schema.json(), 1, {})
        else:
            self._content = _read(stored)
            _require_same("grouping key", "schema", self._content.key_schema, key_schema)

    def register(
        self,
        name: str,
        kind: VariableKind,
        schema: StructType,
        map_key_schema: StructType | None = None,
    ) -> RegisteredVariable:
        """Return the variable ``name``, making it if it is new.

        Raises:
            StateSchemaError: The store holds it with another kind or schema.
        """
        known = self._content.variables.get(name)
        if known is None:
            return self._add(name, kind, schema, map_key_schema)
        if known.kind != kind:
            raise _changed(f"state variable {name}", "kind", known.kind, kind)
        _require_same(f"state variable {name}", "schema", known.schema, schema)
        if known.map_key_schema is not None and map_key_schema is not None:
            _require_same(
                f"state variable {name}", "map key schema", known.map_key_schema, map_key_schema
            )
        return known

    def remove(self, name: str) -> None:
        """Delete the variable ``name`` with all its state; a name that is not there is no error."""
        known = self._content.variables.pop(name, None)
        if known is not None:
            self._announce()
            self._writer.delete_prefix(known.prefix)

    def _add(
        self, name: str, kind: VariableKind, schema: StructType, map_key_schema: StructType | None
    ) -> RegisteredVariable:
        content = self._content
        if content.next_id > _MAX_VARIABLE_ID:
            raise StateSchemaError(f"the store has no id left for a state variable: name={name}")
        variable = RegisteredVariable(
            id=content.next_id,
            kind=kind,
            schema=schema.json(),
            map_key_schema=None if map_key_schema is None else map_key_schema.json(),
        )
        content.next_id += 1
        content.variables[name] = variable
        self._announce()
        return variable

    def _announce(self) -> None:
        self._writer.announce(REGISTRY_KEY, msgspec.json.encode(self._content, order="sorted"))


def _read(stored: bytes) -> _Content:
    version = decode_json(_version_decoder, stored, _DAMAGE).format_version
    if version != FORMAT_VERSION:
        raise UnknownFormatError(f"state variables of an unknown format: version={version}")
    return decode_json(_decoder, stored, _DAMAGE)


def read_schema(text: str) -> StructType:
    """Return the schema that a registry holds as JSON.

    Raises:
        CheckpointCorruptError: It is none.
    """
    try:
        return StructType.fromJson(json.loads(text))
    # pyspark takes the document apart without looking whether it is one of its own.
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        AssertionError,
        RecursionError,
        PySparkException,
    ) as exc:
        raise CheckpointCorruptError("schema of a state variable cannot be read") from exc


def _require_same(what: str, part: str, stored: str, declared: StructType) -> None:
    # Compared as Spark does for state: names and types, not nullability or metadata.
    found = read_schema(stored).simpleString()
    if found != declared.simpleString():
        raise _changed(what, part, found, declared.simpleString())


def _changed(what: str, part: str, stored: str, declared: str) -> StateSchemaError:
    error = StateSchemaError(
        f"{part} of {what} differs from the stored state: stored={stored} declared={declared}"
    )
    error.add_note("hint: deleteIfExists in init() drops a variable, a new name keeps both")
    return error


def stored_variables(
    store: KeyValueStore,
) -> tuple[StructType, Mapping[str, RegisteredVariable]]:
    """Return the grouping key's schema and the variables that a store holds, for readers.

    Raises:
        CheckpointCorruptError: The registry cannot be read.
        UnknownFormatError: A newer version of Statekeep wrote it.
    """
    stored = store.get(REGISTRY_KEY)
    if stored is None:
        return StructType(), {}
    content = _read(stored)
    return read_schema(content.key_schema), content.variables


def encode_registry(key_schema: StructType, variables: Mapping[str, RegisteredVariable]) -> bytes:
    """Return what stands under `REGISTRY_KEY` in a store that holds these variables."""
    next_id = 1 + max((variable.id for variable in variables.values()), default=0)
    content = _Content(FORMAT_VERSION, key_schema.json(), next_id, dict(variables))
    return msgspec.json.encode(content, order="sorted")
