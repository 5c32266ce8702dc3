"""The source of ticks, as the JVM sees it; the rest is tested on Spark."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from statekeep.spark.driver.ticks import Ticks, has_ticks


@dataclass
class Offset:
    """Spark's ``SerializedOffset``."""

    text: str

    @classmethod
    def apply(cls, text: str) -> "Offset":
        return cls(text)

    def json(self) -> str:
        return self.text


class Path:
    """A package of the JVM: every name in it is another one, or the offsets' class."""

    def __getattr__(self, name: str) -> Any:
        return Offset if name == "SerializedOffset" else self


def ticks() -> Ticks:
    context = SimpleNamespace(_jvm=Path(), _gateway=None)
    return Ticks(SimpleNamespace(sparkContext=context))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def latest(source: Ticks, start: Offset) -> Offset:
    found: Offset = source._stream.latestOffset(start, None)
    return found


def test_an_offset_is_the_next_one_if_the_run_wants_a_batch_and_else_the_same() -> None:
    source = ticks()
    start = source._stream.initialOffset()
    assert latest(source, start) == start
    source.follow(lambda *, is_available_now: not is_available_now)
    following = latest(source, start)
    assert following == Offset('{"statekeepTick":1}')
    assert latest(source, source._stream.deserializeOffset(following.json())).text[-2] == "2"
    source._stream.prepareForTriggerAvailableNow()
    assert latest(source, following) == following


def test_the_late_end_of_a_run_does_not_silence_the_next_one() -> None:
    source = ticks()
    start = source._stream.initialOffset()

    def first(*, is_available_now: bool) -> bool:
        return True

    def second(*, is_available_now: bool) -> bool:
        return True

    source.follow(first)
    source.follow(second)
    source.leave(first)
    assert latest(source, start) != start
    source.leave(second)
    assert latest(source, start) == start


def test_offsets_of_a_query_say_whether_it_has_ticks() -> None:
    metadata = '{"batchWatermarkMs":0,"batchTimestampMs":1}'
    assert has_ticks(f'v1\n{metadata}\n{{"logOffset":3}}\n{{"statekeepTick":7}}')
    assert not has_ticks(f'v1\n{metadata}\n{{"logOffset":3}}\n7')
