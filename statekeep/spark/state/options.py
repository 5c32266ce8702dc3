"""The options of the data source, as a request."""

import json
from collections.abc import Mapping
from typing import Any, Final

from statekeep.config.load import load_dict, load_file, merge
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.commit_choice import CommitChoice, parse_time
from statekeep.inspection.job_of_location import with_location
from statekeep.inspection.nearest import nearest_hint
from statekeep.spark.given_settings import read_settings
from statekeep.spark.state.plan import StateRequest, named_variable

SETTINGS: Final = "settings"
"""Settings as JSON: names of options lose their upper case, and names of stores must not."""

# Spark's statestore source has the same names for the same things.
_KNOWN: Final = (
    "path",
    "config",
    SETTINGS,
    "stateVarName",
    "readRegisteredTimers",
    "key",
    "operator",
    "task",
    "commit",
    "batchId",
    "asOf",
    "backend",
    "columns",
    "readChangeFeed",
    "changeStartCommit",
    "changeStartBatchId",
    "changeEndBatchId",
)


def key_of(options: Mapping[str, str]) -> str | None:
    """Return the text of the one key to read; None: all keys."""
    return next((text for name, text in options.items() if name.lower() == "key"), None)


def request_of(options: Mapping[str, str]) -> StateRequest:
    """Return the request that options make.

    Args:
        options: By name, in any case. A name with a dot is a setting of the job.

    Raises:
        ConfigError: An option or a setting is unknown, or has a wrong value.
    """
    given = {name.lower(): text for name, text in options.items()}
    settings = {name: text for name, text in given.items() if "." in name}
    known = {name.lower(): name for name in _KNOWN}
    for name in given:
        if name not in known and name not in settings:
            raise ConfigError(
                f"no such option: option={name} options={','.join(_KNOWN)}",
                hint=nearest_hint(name, _KNOWN, "the settings of a job have a dot in their names"),
            )
    read = _Options({known[name]: text for name, text in given.items() if name in known})
    is_feed = read.flag("readChangeFeed")
    since = CommitChoice(read.text("changeStartCommit"), _before(read.number("changeStartBatchId")))
    if is_feed is (since == CommitChoice()):
        raise ConfigError(
            "a change feed needs a start: "
            f"readChangeFeed={str(is_feed).lower()} changeStartCommit={since.name}",
            hint="set readChangeFeed to true together with changeStartCommit or changeStartBatchId",
        )
    misplaced, placed = ("batchId", "changeEndBatchId")[:: 1 if is_feed else -1]
    if read.text(misplaced) is not None:
        raise ConfigError(
            f"the option does not go with readChangeFeed={str(is_feed).lower()}: option={misplaced}",
            hint=f"use {placed}",
        )
    as_of = read.text("asOf")
    batch = read.number(placed)
    columns = read.text("columns")
    return StateRequest(
        _config(read, settings),
        named_variable(read.text("stateVarName"), timers=read.flag("readRegisteredTimers")),
        CommitChoice(read.text("commit"), batch, None if as_of is None else parse_time(as_of)),
        since if is_feed else None,
        read.text("operator"),
        read.text("backend"),
        None if columns is None else tuple(name.strip() for name in columns.split(",")),
        read.text("task"),
    )


class _Options:
    """Options by their names, each of one type."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def text(self, name: str) -> str | None:
        return self._given.get(name)

    def flag(self, name: str) -> bool:
        text = self._given.get(name, "false").lower()
        if text not in ("true", "false"):
            raise _not_of_type(name, text, "true or false")
        return text == "true"

    def number(self, name: str) -> int | None:
        text = self._given.get(name)
        if text is None:
            return None
        if not text.isdecimal():
            raise _not_of_type(name, text, "a number of a batch")
        return int(text)


def _not_of_type(name: str, text: str, expected: str) -> ConfigError:
    return ConfigError(f"the option has a wrong value: {name}={text!r} expected={expected!r}")


def _before(batch: int | None) -> int | None:
    """Return the batch whose state a feed begins with that shows the changes from a batch on."""
    return None if batch is None else batch - 1


def _config(read: _Options, settings: Mapping[str, str]) -> Config:
    """Return the settings: a file, over it JSON, over that options; the environment over all."""
    layers: list[Config] = []
    path = read.text("config")
    if path is not None:
        layers.append(load_file(path))
    text = read.text(SETTINGS)
    if text is not None:
        layers.append(load_dict(_parsed(text), f"option {SETTINGS}"))
    config = read_settings(merge(*layers, load_dict(settings, "options")))
    location = read.text("path")
    return config if location is None else with_location(config, location)


def _parsed(text: str) -> dict[str, Any]:
    try:
        parsed: dict[str, Any] = dict(json.loads(text))
    except (ValueError, TypeError):
        # The text is not shown: it may hold a secret.
        raise ConfigError(f"the option is not JSON: option={SETTINGS}") from None
    return parsed
