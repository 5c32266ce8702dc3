"""The tally's state as a store has it, taken apart by what the layout promises, without the runtime.

The key of an entry is the variable's id in 2 bytes, then each field of the grouping key and of the
map's key: ``01`` and the value, a string ended by ``00 00``, an integer as 8 bytes whose sign bit is
flipped. Values are MessagePack. Under the id 0 stands the list of the variables, in JSON.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from chaos.spark.expected import Expected

_BIAS: Final = 1 << 63
_INTEGER_BYTES: Final = 9
_numbers: Final = msgspec.msgpack.Decoder(list[int])


def tally_of(stores: Iterable[Mapping[bytes, bytes]]) -> Expected:
    """Return the state that the stores of all tasks hold together.

    Raises:
        ValueError: A key is not of this layout, or two stores have it.
    """
    found = Expected()
    for content in stores:
        names = _variables(content)
        for key, value in content.items():
            name = names.get(key[:2])
            if name is None:
                continue
            word, rest = _string(key[2:])
            numbers = _numbers.decode(value)
            if name == "total":
                if rest or word in found.totals:
                    raise ValueError(f"a key that should not be there: {key.hex()}")
                found.totals[word] = (numbers[0], numbers[1])
            else:
                place = (word, _integer(rest))
                if place in found.residues:
                    raise ValueError(f"a key that two stores have: {key.hex()}")
                found.residues[place] = numbers[0]
    return found


def _variables(content: Mapping[bytes, bytes]) -> Mapping[bytes, str]:
    stored = content.get(b"\x00\x00")
    if stored is None:
        return {}
    variables: dict[str, Any] = json.loads(stored)["variables"]
    return {int(v["id"]).to_bytes(2, "big"): name for name, v in variables.items()}


def _string(key: bytes) -> tuple[str, bytes]:
    end = key.find(b"\x00\x00")
    if key[:1] != b"\x01" or end < 0:
        raise ValueError(f"not a string: {key.hex()}")
    return key[1:end].decode(), key[end + 2 :]


def _integer(key: bytes) -> int:
    if key[:1] != b"\x01" or len(key) != _INTEGER_BYTES:
        raise ValueError(f"not an integer: {key.hex()}")
    return int.from_bytes(key[1:], "big") - _BIAS
