"""What a user reads of a query that failed: the error itself first, Spark's account of it behind."""

import re
from typing import Any, Final

from pyspark.errors import PythonException, StreamingQueryException

from statekeep.config.redact import redact_text

_LONGEST_LINE: Final = 500
_TRACEBACK: Final = "Traceback (most recent call last):\n"
_END: Final = re.compile(r"^(\tat | SQLSTATE|JVM stacktrace|$)")
"""How the line begins that follows the text of a worker's error."""
_FRAMEWORK: Final = re.compile(r"[/\\](statekeep|pyspark)[/\\]")
_DATA_LOSS: Final = ("KAFKA_DATA_LOSS", "Some data may have been lost")
"""Spark's name for records that a topic does not have any more, and, if they go while a batch reads
them, its words: then the name is left out."""
_DATA_LOSS_HINT: Final = (
    "hint: the topic has lost records that the state has not taken in. Put them back, or start anew"
    " under another job.name with another checkpoint location; read_state still reads what was"
    " committed. failOnDataLoss=false would leave them out without a word. To keep records longer,"
    " raise retention.ms of the topic"
)
_NOT_THERE: Final = re.compile(r"ModuleNotFoundError: No module named '([^'.]+)")
_NOT_THERE_HINT: Final = (
    "hint: the Python of Spark's workers has no package %s. Install it on every host, or name a Python"
    " that has it in PYSPARK_PYTHON (spark.pyspark.python), or send an environment with spark.archives"
)


def explain(
    failure: StreamingQueryException, error: BaseException | None
) -> StreamingQueryException:
    """Put what went wrong before Spark's text of a failed query, which has hundreds of lines.

    Args:
        failure: As PySpark made it. It stays the same object, and of the same error class.
        error: What was raised within a batch: by the processor, the sink or the runtime.
    """
    told = f"{failure} {error}"
    raw: Any = failure
    if error is not None and hasattr(raw, "_desc"):  # PySpark builds the text of it at each look
        raw._desc = f"{summarise(error)}\n\nSpark's own text:\n{raw._desc}"  # noqa: SLF001
    if any(words in told for words in _DATA_LOSS):
        failure.add_note(_DATA_LOSS_HINT)
    return failure


def summarise(error: BaseException) -> str:
    """Return class and message of an error; of one in a worker also where the user's code stood."""
    if not isinstance(error, PythonException):
        return f"{type(error).__name__}: {error}"
    frames, message = _parse(str(error).rpartition(_TRACEBACK)[2])
    own = [frame for frame in frames if not _FRAMEWORK.search(frame.splitlines()[0])]
    missing = _NOT_THERE.match(message)
    hints = [] if missing is None else [_NOT_THERE_HINT % missing[1]]
    return "\n".join([message, *hints, *own])


def first_line(error: BaseException) -> str:
    """Return what went wrong in one line, for logs and events; without secrets of URIs."""
    return redact_text(summarise(error).partition("\n")[0])[:_LONGEST_LINE]


def _parse(traceback: str) -> tuple[list[str], str]:
    """Take a worker's traceback apart: its frames, each with its lines, and the error's own text."""
    frames: list[str] = []
    message: list[str] = []
    for line in traceback.splitlines():
        if message and _END.match(line):
            break
        if message or not line.startswith(" "):
            message.append(line)
        elif line.startswith("  File "):
            frames.append(line)
        elif frames:
            frames[-1] += f"\n{line}"
    return frames, "\n".join(message)
