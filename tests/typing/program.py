"""What a program writes; checked by mypy and pyright, never run."""

from typing import assert_type

import statekeep as sk
from statekeep.config.model import Config


def run() -> sk.Config:
    """Use a function, a class and an error."""
    try:
        config = sk.load_file("job.properties")
    except sk.ConfigError as exc:
        assert_type(exc.key, str | None)
        raise
    assert_type(config, Config)
    assert_type(sk.__version__, str)
    return config


sk.gruoped  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # the mistake  # noqa: B018
