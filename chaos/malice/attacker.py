"""An attacker that changes, exchanges, sets back and adds what a job has stored, by a seed."""

import json
import random
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from chaos.malice.prey import LocalPrey, Prey, Topics
from chaos.plain.schedule import happens

_ODD_NAMES: Final = (
    "foreign",
    "..data",
    ".tmp-0-x",
    "%2e%2e",
    "a\nb",
    "é" * 60,
    "x" * 200,
    "-rf",
)
_NUMBERED: Final = re.compile(r"\d{20}")
_MIB: Final = 1 << 20
_SIZES_ON_SERVERS: Final = (8 * _MIB, 300 * _MIB)
_SIZES: Final = (8 * _MIB, 200 * _MIB, 300 * _MIB, 5 << 30, 1 << 40)
_DEEP: Final = 200_000

KINDS: Final[Mapping[str, re.Pattern[str]]] = {
    "record": re.compile(r".*/log/\d{20}\.json"),
    "events": re.compile(r".*/checkpoints/events-.*"),
    "index": re.compile(r".*-snapshot-index-[^/]*"),
    "content": re.compile(r".*/state-.*"),
    "manifest": re.compile(r".*/SEAL-MANIFEST"),
    "checkpoint": re.compile(r".*/CHECKPOINT-V2"),
    "work": re.compile(r".*/work-.*"),
    "image": re.compile(r".*/db/.*"),
    "changes": re.compile(r".*\.delta"),
}
"""What a name is of; the first that fits."""

_WEIGHTS: Final = {"record": 4, "index": 4, "content": 5, "events": 1, "work": 2, "checkpoint": 1}
_WEIGHT: Final = 3
_LOCAL_KINDS: Final = ("manifest", "checkpoint", "work", "image", "changes")


def kind_of(name: str) -> str:
    """Return what a name is of; empty where it is nothing that is attacked."""
    return next((kind for kind, form in KINDS.items() if form.fullmatch(name)), "")


@dataclass(frozen=True, slots=True)
class Attack:
    """What was done."""

    act: str
    """Such as ``exchange.index``."""
    subject: str
    undo: Callable[[], None] | None
    """Puts back what was there; None where that is not possible."""


@dataclass(slots=True)
class Attacker:
    """Attacks the files of some places and a local disk.

    Attributes:
        places: Of the job, by name.
        local: The job's local disk.
        plain: What a job of the same name has stored that does not encrypt; empty where the job
            does not either.
        spoils: What was ever seen of each prey, oldest first.
    """

    places: Mapping[str, Prey]
    local: LocalPrey
    plain: Mapping[str, bytes]
    job: str
    spoils: dict[str, dict[str, bytes]] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        """How often it strikes where there are others."""
        return _WEIGHT * len(self.places) or 1

    def poll(self) -> None:
        """Record everything that is there: some of it will be gone, and can be put back."""
        for name, prey in self._all().items():
            seen = self.spoils.setdefault(name, {})
            for file, data in sorted(prey.contents().items()):
                seen.setdefault(file, data)

    def strike(self, draw: random.Random) -> Attack | None:
        """Do one thing; None where there is nothing to do it to."""
        place = draw.choice([*self.places] * 3 + ["local"])
        prey = self._all()[place]
        there = {name: data for name, data in prey.contents().items() if self._is_own(place, name)}
        kinds = sorted({kind_of(name) for name in there} - {""})
        if not kinds:
            return None
        kind = draw.choices(kinds, [_WEIGHTS.get(k, _WEIGHT) for k in kinds])[0]
        names = sorted((n for n in there if kind_of(n) == kind), key=self._age(place))
        # What is newest matters most.
        name = names[-1] if happens(draw, 0.4) else draw.choice(names)
        target = _Target(prey, place, kind, name, there[name], names)
        acts = [
            self._mutate,
            self._mutate,
            self._truncate,
            self._exchange,
            self._exchange,
            self._replay,
            self._replay,
            self._inflate,
            self._drop_foreign,
            self._lose,
        ]
        acts += [self._strip, self._strip, self._strip] if self.plain else [self._nest]
        if prey.is_local:
            acts += [self._put_odd_thing]
        return draw.choice(acts)(draw, target)

    def _all(self) -> Mapping[str, Prey]:
        return {**self.places, "local": self.local}

    def _is_own(self, place: str, name: str) -> bool:
        return place == "local" or name.startswith(f"{self.job}/")

    def _age(self, place: str) -> Callable[[str], int]:
        order = {name: number for number, name in enumerate(self.spoils.get(place, ()))}
        return lambda name: order.get(name, len(order))

    def _mutate(self, draw: random.Random, target: "_Target") -> Attack | None:
        data = bytearray(target.data or b"\0")
        for _ in range(draw.choice((1, 1, 2, 8))):
            at = draw.randrange(len(data))
            data[at] ^= 1 << draw.randrange(8)
        if happens(draw, 0.2):
            at = draw.randrange(len(data))
            data[at : at + 64] = draw.randbytes(min(64, len(data) - at))
        return target.replaced("mutate", bytes(data), is_through=happens(draw, 0.5))

    def _truncate(self, draw: random.Random, target: "_Target") -> Attack | None:
        if happens(draw, 0.3):
            return target.replaced("extend", target.data + draw.randbytes(draw.randrange(1, 99)))
        size = draw.choice((0, draw.randrange(len(target.data) + 1)))
        return target.replaced("truncate", target.data[:size])

    def _exchange(self, draw: random.Random, target: "_Target") -> Attack | None:
        """Give two things of a kind each other's name: of any task, store, version or job."""
        if target.kind in _LOCAL_KINDS and happens(draw, 0.3):
            return self._exchange_versions(draw, target)
        seen = self.spoils.get(target.place, {})
        others = [n for n, d in seen.items() if kind_of(n) == target.kind and d != target.data]
        if not others:
            return None
        other = draw.choice(others)
        if other in target.names and happens(draw, 0.7):
            undo = target.undo(other, seen[other])
            target.prey.write(target.name, seen[other])
            target.prey.write(other, target.data)
            return Attack(f"exchange.{target.kind}", f"{target.name} and {other}", undo)
        return target.replaced("exchange", seen[other], f" by {other}")

    def _exchange_versions(self, draw: random.Random, target: "_Target") -> Attack | None:
        versions = sorted(
            {name.rpartition("/")[0] for name in target.names if "/work-" not in name}
        )
        if not versions[1:] or not isinstance(target.prey, LocalPrey):
            return None
        one, other = draw.sample(versions, 2)
        prey = target.prey
        if one.startswith(f"{other}/") or other.startswith(f"{one}/"):
            return None
        prey.exchange(one, other)
        return Attack("exchange.version", f"{one} and {other}", lambda: prey.exchange(one, other))

    def _replay(self, draw: random.Random, target: "_Target") -> Attack | None:
        """Put back what was there before: under its own name, or under that of something newer."""
        seen = self.spoils.get(target.place, {})
        gone = [n for n in seen if kind_of(n) == target.kind and n not in target.names]
        if gone and happens(draw, 0.4):
            name = draw.choice(gone)
            return target.of(name).written("replay", seen[name])
        scope = target.name.rpartition("/")[0].rpartition("/")[0]
        older = [
            name
            for name in seen
            if kind_of(name) == target.kind and name.startswith(scope) and name < target.name
        ]
        if not older:
            return None
        name = draw.choice(older)
        return target.replaced("replay", seen[name], f" by {name}")

    def _strip(self, draw: random.Random, target: "_Target") -> Attack | None:
        """Put what is plain in the place of what is encrypted or authenticated."""
        if target.kind == "record" and happens(draw, 0.7):
            inner = target.data.partition(b"\n")[2].partition(b"\n")[2]
            if inner and happens(draw, 0.5):
                inner = _forged(inner, draw)
            return target.replaced("plain", inner) if inner else None
        others = [data for name, data in self.plain.items() if kind_of(name) == target.kind]
        return target.replaced("plain", draw.choice(others)) if others else None

    def _inflate(self, draw: random.Random, target: "_Target") -> Attack | None:
        zeros = draw.choice(_SIZES if target.prey.is_local else _SIZES_ON_SERVERS)
        undo = target.undo()
        target.prey.write(target.name, target.data, zeros=zeros)
        return Attack(f"inflate.{target.kind}", f"{target.name} by {zeros}", undo)

    def _nest(self, _draw: random.Random, target: "_Target") -> Attack | None:
        """Put JSON in its place that is nested deeply, in a whole frame where there was one."""
        payload = b'{"type":"commit","x":' + b"[" * _DEEP + b"]" * _DEEP + b"}"
        if target.data.startswith(b"statekeep "):
            kind = target.data.split(b" ", 3)[2]
            payload = framed(kind, payload)
        return target.replaced("nest", payload)

    def _drop_foreign(self, draw: random.Random, target: "_Target") -> Attack | None:
        """Add what the job has not written, under a name that is odd, or one that seems to be ours."""
        directory = target.name.rpartition("/")[0]
        names = [f"{directory}/{name}" for name in _ODD_NAMES]
        if target.kind == "record":
            newest = max(int(n[-25:-5]) for n in target.names if n.startswith(directory))
            for number in (newest + 1, newest + 7, 10**20 - 1):
                names.append(f"{directory}/{number:020d}.json")
                names.append(f"{directory}-floor/{number:020d}")
            names.append(f"{directory}-floor/{draw.randrange(newest + 1):020d}")
        name = draw.choice(names)
        data = draw.choice((b"", b"\0\xff garbage", target.data, draw.randbytes(300)))
        if happens(draw, 0.2):
            other = target.of(f"{name}-directory")
            target.prey.make_directory(other.name)
            return Attack(f"foreign.{target.kind}", other.name, other.undo())
        return target.of(name).written("foreign", data)

    def _lose(self, _draw: random.Random, target: "_Target") -> Attack | None:
        """Remove it; not the end of a log, which looks like a log that ends there."""
        undo = target.undo()
        log = target.name.rpartition("/")[0]
        if target.kind == "record" and target.name == max(n for n in target.names if log in n):
            return None
        target.prey.delete(target.name)
        return Attack(f"lose.{target.kind}", target.name, undo)

    def _put_odd_thing(self, draw: random.Random, target: "_Target") -> Attack | None:
        """Put what is no file in its place."""
        prey, undo = target.prey, target.undo()
        assert isinstance(prey, LocalPrey)  # noqa: S101 - where `is_local`
        match draw.choice(("directory", "pipe", "link", "endless", "loop")):
            case "directory":
                prey.make_directory(target.name)
            case "pipe":
                prey.make_pipe(target.name)
            case "link":
                prey.link(target.name, "/nowhere")
            case "endless":
                prey.link(target.name, "/dev/zero")
            case _:
                prey.link(target.name, target.name.rpartition("/")[2])
        return Attack(f"odd.{target.kind}", target.name, undo)


@dataclass(frozen=True, slots=True)
class _Target:
    """One file that is there."""

    prey: Prey
    place: str
    kind: str
    name: str
    data: bytes
    names: Sequence[str]
    """Of all that is there of its kind."""

    def of(self, name: str) -> "_Target":
        """Return another name, at which there is nothing."""
        return _Target(self.prey, self.place, self.kind, name, b"", ())

    def undo(self, other: str = "", others_data: bytes = b"") -> Callable[[], None]:
        """Return what puts this back, and another one."""
        prey, name, data, was_there = self.prey, self.name, self.data, bool(self.names)

        def put_back() -> None:
            prey.delete(name)
            if was_there:
                prey.write(name, data)
            if other:
                prey.write(other, others_data)

        return put_back

    def replaced(
        self, act: str, data: bytes, how: str = "", *, is_through: bool = False
    ) -> Attack | None:
        """Put other bytes in its place; None where they are the same."""
        if data == self.data:
            return None
        undo = self.undo()
        if is_through and isinstance(self.prey, LocalPrey) and self.place == "local":
            self.prey.write_through(self.name, data)
        else:
            self.prey.write(self.name, data)
        return Attack(f"{act}.{self.kind}", f"{self.name}{how}", undo)

    def written(self, act: str, data: bytes) -> Attack:
        """Put bytes where there is nothing."""
        undo = self.undo()
        self.prey.write(self.name, data)
        return Attack(f"{act}.{self.kind}", self.name, undo)


@dataclass(slots=True)
class TopicAttacker:
    """Attacks the topics of a place on a broker: nothing can be undone there."""

    topics: Topics
    job: str
    spoils: dict[tuple[str, int], dict[int, tuple[bytes, bytes | None]]] = field(
        default_factory=dict
    )

    @property
    def weight(self) -> int:
        """How often it strikes where there are others."""
        return _WEIGHT

    def poll(self) -> None:
        """Record every record."""
        for place, records in self.topics.records().items():
            seen = self.spoils.setdefault(place, {})
            seen.update({offset: (key, value) for offset, key, value in records})

    def strike(self, draw: random.Random) -> Attack | None:
        """Do one thing; None where there is nothing to do it to."""
        there = self.topics.records()
        own = [p for p in there if f".{self.job}." in p[0] and there[p]]
        if not own:
            return None
        topic, partition = draw.choice(own)
        records = there[topic, partition]
        kind = "job-log" if topic.endswith("job-log") else "changelog"
        twice = ("garbage", "mutate", "replay", "exchange")
        acts = [*twice, *twice, "huge", "tombstone", "rewrite"]
        if kind == "job-log":
            acts.append("cut")  # which a broker refuses where a topic is compacted
        act = draw.choice(acts)
        _, key, value = draw.choice(records)
        match act:
            case "cut":
                offset = draw.choice(records)[0] + 1
                self.topics.cut(topic, partition, offset)
            case "rewrite":
                self._rewrite(draw, topic, there)
            case _:
                key, value = self._record(draw, act, (topic, partition), key, value)
                self.topics.write(topic, partition, [(key, value)])
        return Attack(f"{act}.{kind}", f"{topic} {partition}", None)

    def _record(
        self,
        draw: random.Random,
        act: str,
        place: tuple[str, int],
        key: bytes,
        value: bytes | None,
    ) -> tuple[bytes, bytes | None]:
        match act:
            case "garbage":
                return draw.choice((b"", b"\xff", draw.randbytes(20), key)), draw.randbytes(99)
            case "mutate":
                data = bytearray(value or b"\0")
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
                return key, bytes(data)
            case "huge":
                return key, bytes(900_000)
            case "tombstone":
                return key, None
            case "exchange":
                others = [p for p in self.spoils if p != place and self.spoils[p]]
                place = draw.choice(others) if others else place
        return draw.choice([*self.spoils[place].values()])

    def _rewrite(
        self,
        draw: random.Random,
        topic: str,
        there: Mapping[tuple[str, int], Sequence[tuple[int, bytes, bytes | None]]],
    ) -> None:
        """Make a topic anew with its own records, but for one."""
        partitions = [
            [(key, value) for _, key, value in records]
            for (name, _), records in sorted(there.items())
            if name == topic
        ]
        records = draw.choice([p for p in partitions if p])
        at = draw.randrange(len(records))
        key, value = records[at]
        if happens(draw, 0.3):
            records.clear()
        elif happens(draw, 0.5):
            del records[at]
        else:
            records[at] = key, (value or b"") + b"!"
        self.topics.rewrite(topic, partitions)


def framed(kind: bytes, payload: bytes) -> bytes:
    """Return a frame as the formats page describes it, with a checksum that is right."""
    crc = zlib.crc32(payload, zlib.crc32(kind))
    return b"statekeep 1 %s %08x %d\n" % (kind, crc, len(payload)) + payload


def _forged(data: bytes, draw: random.Random) -> bytes:
    """Return a record that says something else, with a checksum that is right."""
    head, _, payload = data.partition(b"\n")
    document = json.loads(payload)
    field = draw.choice(sorted(document.keys() - {"type"}))
    value = document[field]
    document[field] = value + draw.choice((-1, 1, 1000)) if isinstance(value, int) else "forged"
    return framed(head.split(b" ")[2], json.dumps(document).encode())
