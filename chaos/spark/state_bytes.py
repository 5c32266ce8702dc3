"""The tally's state as a store has it, taken apart by what the formats page says, without the runtime.

The key of an entry is the variable's id in 2 bytes, then each field of the grouping key and of the
map's key: ``01`` and the value, a string ended by ``00 00``, an integer as 8 bytes whose sign bit is
flipped. A time is 8 bytes like that, without the ``01``. Values are MessagePack, behind the time of their
end where they have one. Under the id 0 stands the list of the variables, in JSON.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from chaos.spark.expected import TIMERS, Entry, Held

_BIAS: Final = 1 << 63
_TIME_BYTES: Final = 8
_INTEGER_BYTES: Final = 9
_numbers: Final = msgspec.msgpack.Decoder(list[int])


def held_in(stores: Iterable[Mapping[bytes, bytes]]) -> Held:
    """Return the state that the stores of all tasks of an operator hold together.

    Raises:
        ValueError: A key is not of this layout, two stores have it, or an index of times has other
            entries than what it is an index of.
    """
    found: Held = {}
    for content in stores:
        held = _held(content)
        twice = found.keys() & held.keys()
        if twice:
            raise ValueError(f"a key that two stores have: {min(twice)}")
        found |= held
    return found


def _held(content: Mapping[bytes, bytes]) -> Held:
    variables = _variables(content)
    found: Held = {}
    indexed: set[tuple[int, Entry]] = set()
    ends: set[tuple[int, Entry]] = set()
    for key, value in content.items():
        variable = variables.get(key[:2])
        if variable is None:
            continue
        name, kind, rest = variable["name"], variable["kind"], key[2:]
        if kind == "by_time":
            target = TIMERS if name.endswith("_byTime") else name.removeprefix("$ttl_")
            word, rest = _string(rest[_TIME_BYTES:])
            time_ms = _time(key[2:])
            indexed.add((time_ms, (target, word, time_ms if target == TIMERS else _integer(rest))))
            continue
        word, rest = _string(rest)
        if kind == "timers":
            entry = (TIMERS, word, _time(rest))
            found[entry] = ()
            ends.add((entry[2], entry))
        elif variable.get("expires"):
            entry = (name, word, _integer(rest))
            found[entry] = (*_numbers.decode(value[_TIME_BYTES:]), _time(value))
            ends.add((found[entry][-1], entry))
        else:
            found[name, word, _integer(rest) if rest else 0] = tuple(_numbers.decode(value))
    if indexed != ends:
        raise ValueError(f"an index of times differs: {sorted(indexed ^ ends)[:3]}")
    return found


def _variables(content: Mapping[bytes, bytes]) -> Mapping[bytes, Mapping[str, Any]]:
    stored = content.get(b"\x00\x00")
    if stored is None:
        return {}
    variables: dict[str, Any] = json.loads(stored)["variables"]
    return {int(v["id"]).to_bytes(2, "big"): {"name": name, **v} for name, v in variables.items()}


def _string(key: bytes) -> tuple[str, bytes]:
    end = key.find(b"\x00\x00")
    if key[:1] != b"\x01" or end < 0:
        raise ValueError(f"not a string: {key.hex()}")
    return key[1:end].decode(), key[end + 2 :]


def _integer(key: bytes) -> int:
    if key[:1] != b"\x01" or len(key) != _INTEGER_BYTES:
        raise ValueError(f"not an integer: {key.hex()}")
    return _time(key[1:])


def _time(data: bytes) -> int:
    return int.from_bytes(data[:_TIME_BYTES], "big") - _BIAS
