"""Which state variables a store holds: written beside them, checked whenever it is opened."""

import json
from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from statekeep.checkpoint.framing import decode_json
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.errors import CheckpointCorruptError, StateSchemaError, UnknownFormatError
from statekeep.spark.operator.changes import ChangeWriter
from statekeep.spark.operator.codec import ValueCodec
from statekeep.spark.operator.evolution import (
    MAX_SCHEMA_NUMBER,
    EvolutionError,
    EvolvedCodec,
    evolution,
)
from statekeep.stores.base import KeyValueStore

FORMAT_VERSION: Final = 2
"""Of the registry, the layout of keys and the codecs of keys and values."""

_FIRST_VERSION: Final = 1
"""Of a store all of whose variables have had one schema, and that has neither timers nor a time to live:
older releases go on reading it."""

REGISTRY_KEY: Final = b"\x00\x00"
"""Id 0 with nothing after it: before every entry of every variable."""

VariableKind = Literal["value", "list", "map", "timers", "by_time"]
"""The first three are a processor's. ``timers`` are times by grouping key; ``by_time`` is an index:
a time, then the grouping key of a timer, or an entry's key in its variable."""

PROCESSOR_KINDS: Final = frozenset({"value", "list", "map"})

_MAX_VARIABLE_ID: Final = (1 << 16) - 1


class RegisteredVariable(msgspec.Struct, frozen=True, omit_defaults=True):
    """One state variable, as a store has it."""

    id: int
    kind: VariableKind
    schema: str
    """JSON of the values' Spark schema."""
    map_key_schema: str | None
    """JSON of the map keys' Spark schema; None unless the kind is ``map``."""
    number: int = 0
    """Of ``schema``: entries of another schema than number 0 begin with it."""
    others: dict[str, str] = {}
    """``{number: JSON}`` of the other schemas that entries may have."""

    @property
    def schemas(self) -> dict[int, str]:
        """Every schema that entries may have, by number."""
        others = {int(number): text for number, text in self.others.items()}
        return {self.number: self.schema, **others}

    def with_schemas(self, schemas: Mapping[int, str], number: int) -> "RegisteredVariable":
        """Return the variable with these schemas, declared as the one of ``number``."""
        others = {str(other): text for other, text in schemas.items() if other != number}
        return msgspec.structs.replace(self, schema=schemas[number], number=number, others=others)

    expires: bool = False
    """Whether its entries have a time to live."""

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

    def __init__(
        self,
        store: KeyValueStore,
        key_schema: StructType,
        writer: ChangeWriter,
        operator: str = MAIN_OPERATOR,
    ) -> None:
        """Read what ``store`` holds.

        Args:
            store: The state of a task.
            key_schema: Of the grouping key.
            writer: Gets every change.
            operator: Whose task it is, for errors.

        Raises:
            StateSchemaError: It is of another grouping key.
            UnknownFormatError: A newer version of Statekeep wrote it.
            CheckpointCorruptError: It cannot be read.
        """
        self._writer = writer
        self._operator = operator
        stored = store.get(REGISTRY_KEY)
        if stored is None:
            self._content = _Content(_FIRST_VERSION, key_schema.json(), 1, {})
        else:
            self._content = _read(stored)
            _require_same("grouping key", "schema", self._content.key_schema, key_schema)

    def register(
        self,
        name: str,
        kind: VariableKind,
        schema: StructType,
        map_key_schema: StructType | None = None,
        *,
        expires: bool = False,
    ) -> RegisteredVariable:
        """Return the variable ``name`` with ``schema``, making it if it is new.

        Raises:
            StateSchemaError: The store holds it with another kind, with a schema whose values cannot be
                read as those of ``schema``, or with a time to live where now there is none, or the
                other way round.
        """
        known = self._content.variables.get(name)
        if known is None:
            return self._add(name, kind, schema, map_key_schema, expires=expires)
        if known.kind != kind:
            label = "[STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE] kind"
            raise _changed(f"state variable {name}", label, known.kind, kind)
        if known.expires != expires:
            stored, declared = ("set" if is_set else "none" for is_set in (known.expires, expires))
            raise _changed(f"state variable {name}", "ttlDurationMs", stored, declared)
        if known.map_key_schema is not None and map_key_schema is not None:
            _require_same(
                f"state variable {name}", "map key schema", known.map_key_schema, map_key_schema
            )
        current = evolved(name, known, schema, self._operator)
        if current is not known:
            self._content.variables[name] = current
            self._announce()
        return current

    @property
    def names(self) -> frozenset[str]:
        """The names of all variables of a processor that the store holds."""
        return _processor_names(self._content)

    def remove(self, name: str) -> bool:
        """Delete the variable ``name`` with all its state; return whether there was one."""
        known = self._content.variables.pop(name, None)
        if known is None:
            return False
        self._announce()
        self._writer.delete_prefix(known.prefix)
        return True

    @property
    def expiring(self) -> Mapping[str, RegisteredVariable]:
        """The variables that have a time to live."""
        return {n: variable for n, variable in self._content.variables.items() if variable.expires}

    def __contains__(self, name: str) -> bool:
        """Whether the store holds the variable ``name``."""
        return name in self._content.variables

    def _add(
        self,
        name: str,
        kind: VariableKind,
        schema: StructType,
        map_key_schema: StructType | None,
        *,
        expires: bool,
    ) -> RegisteredVariable:
        content = self._content
        if content.next_id > _MAX_VARIABLE_ID:
            raise StateSchemaError(f"the store has no id left for a state variable: name={name}")
        variable = RegisteredVariable(
            id=content.next_id,
            kind=kind,
            schema=schema.json(),
            map_key_schema=None if map_key_schema is None else map_key_schema.json(),
            expires=expires,
        )
        content.next_id += 1
        content.variables[name] = variable
        self._announce()
        return variable

    def _announce(self) -> None:
        self._writer.announce(REGISTRY_KEY, _encode(self._content))


def _encode(content: _Content) -> bytes:
    is_first = not any(
        variable.others or variable.expires or variable.kind not in PROCESSOR_KINDS
        for variable in content.variables.values()
    )
    content.format_version = _FIRST_VERSION if is_first else FORMAT_VERSION
    return msgspec.json.encode(content, order="sorted")


def _read(stored: bytes) -> _Content:
    version = decode_json(_version_decoder, stored, _DAMAGE).format_version
    if not _FIRST_VERSION <= version <= FORMAT_VERSION:
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


def simple_schema(text: str) -> str:
    """Return what makes a stored schema another one: names and types, not nullability or metadata.

    Raises:
        CheckpointCorruptError: It is none.
    """
    return read_schema(text).simpleString()


def value_codec(variable: RegisteredVariable) -> ValueCodec:
    """Return the codec of a variable's values.

    Raises:
        StateSchemaError: A type cannot be kept in state.
        CheckpointCorruptError: A schema cannot be read.
    """
    schema = read_schema(variable.schema)
    if not variable.others:
        return ValueCodec(schema)
    others = {int(number): read_schema(text) for number, text in variable.others.items()}
    return EvolvedCodec(schema, variable.number, others)


def check_evolution(variable: RegisteredVariable) -> None:
    """Check that whatever is stored of a variable can be read in its ``schema``.

    Raises:
        EvolutionError: Not in another of its schemas.
        CheckpointCorruptError: A schema cannot be read.
    """
    schema = read_schema(variable.schema)
    for text in variable.others.values():
        evolution(read_schema(text), schema)


def evolved(
    name: str, known: RegisteredVariable, schema: StructType, operator: str = MAIN_OPERATOR
) -> RegisteredVariable:
    """Return the variable as it is with the declared schema: itself if that has not changed.

    Raises:
        StateSchemaError: What is stored cannot be read in that schema.
    """
    stored = known.schemas
    kinds = {simple_schema(text): number for number, text in stored.items()}
    number = kinds.get(schema.simpleString())
    if number == known.number:
        return known
    if number is None:
        number = max(stored) + 1
        if number > MAX_SCHEMA_NUMBER:
            raise StateSchemaError(f"a state variable has had too many schemas: variable={name}")
        stored[number] = schema.json()
    declared = known.with_schemas(stored, number)
    try:
        check_evolution(declared)
    except EvolutionError as exc:
        error = StateSchemaError(
            "stored state cannot be read as it is declared:"
            " [STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION] Schema evolution is not possible: "
            f"operator={operator} variable={name} {exc}"
        )
        error.add_note(
            "hint: declare a type that holds every stored value, or the field under another name;"
            " deleteIfExists in init() drops the variable"
        )
        raise error from None
    return declared


def _require_same(what: str, part: str, stored: str, declared: StructType) -> None:
    found = simple_schema(stored)
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
    return (StructType(), {}) if stored is None else decode_registry(stored)


def decode_registry(registry: bytes) -> tuple[StructType, Mapping[str, RegisteredVariable]]:
    """Return the grouping key's schema and the variables that a stored registry names.

    Raises:
        CheckpointCorruptError: It cannot be read.
        UnknownFormatError: A newer version of Statekeep wrote it.
    """
    content = _read(registry)
    return read_schema(content.key_schema), content.variables


def variables_in(registry: bytes) -> frozenset[str]:
    """Return the variables of a processor that a stored registry names.

    Raises:
        CheckpointCorruptError: It cannot be read.
        UnknownFormatError: A newer version of Statekeep wrote it.
    """
    return _processor_names(_read(registry))


def _processor_names(content: _Content) -> frozenset[str]:
    variables = content.variables.items()
    return frozenset(name for name, variable in variables if variable.kind in PROCESSOR_KINDS)


def encode_registry(key_schema: StructType, variables: Mapping[str, RegisteredVariable]) -> bytes:
    """Return what stands under `REGISTRY_KEY` in a store that holds these variables."""
    next_id = 1 + max((variable.id for variable in variables.values()), default=0)
    return _encode(_Content(FORMAT_VERSION, key_schema.json(), next_id, dict(variables)))
