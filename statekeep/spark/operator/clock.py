"""The time of a batch, and times as parts of stored keys."""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from statekeep.errors import ConfigError

TIME_BYTES: Final = 8
"""Length of what `encode_time` returns."""

LAST_TIME_MS: Final = (1 << 63) - 1

_BIAS: Final = 1 << 63


class TimeMode(Enum):
    """Which clock a processor's timers go by. A time to live goes by processing time only."""

    NONE = "None"
    PROCESSING = "ProcessingTime"
    EVENT = "EventTime"

    @classmethod
    def parse(cls, name: str) -> "TimeMode":
        """Return the mode of a name in any case, as Spark takes it.

        Raises:
            ConfigError: Spark has no such mode.
        """
        for mode in cls:
            if mode.value.lower() == name.lower():
                return mode
        known = ", ".join(mode.value for mode in cls)
        raise ConfigError(
            f"[STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE] unknown time mode: timeMode={name!r}",
            hint=f"use one of {known}",
        )


@dataclass(frozen=True, slots=True)
class BatchClock:
    """The time of a batch, as Spark recorded it before the first run: a replay has the same."""

    processing_time_ms: int
    watermark_ms: int
    late_watermark_ms: int = 0
    """The watermark of the batch before: rows that are not newer are dropped in event time."""

    def now_ms(self, mode: TimeMode) -> int:
        """Return the time up to which timers of a mode fire."""
        return self.watermark_ms if mode is TimeMode.EVENT else self.processing_time_ms

    def without_watermark(self) -> "BatchClock":
        """Return the same time for an operator that no watermark reaches: it has 0, as in Spark."""
        return replace(self, watermark_ms=0, late_watermark_ms=0)


def encode_time(time_ms: int) -> bytes:
    """Return a time in milliseconds as bytes whose order is that of times."""
    return (time_ms + _BIAS).to_bytes(TIME_BYTES, "big")


def decode_time(data: bytes) -> int:
    """Return the time that the first bytes of ``data`` stand for."""
    return int.from_bytes(data[:TIME_BYTES], "big") - _BIAS
