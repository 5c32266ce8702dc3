"""The story of a query on a terminal or in a notebook: start, restore, replay, commits, recovery."""

import logging
import sys
from typing import Final

from typing_extensions import override

_PACKAGE: Final = logging.getLogger("statekeep")


class _Story(logging.Handler):
    """Writes to whatever stderr is now, until the program sets up logging."""

    def __init__(self) -> None:
        super().__init__()
        form = "%(asctime)s %(levelname)s statekeep: %(message)s"
        self.setFormatter(logging.Formatter(form, "%y/%m/%d %H:%M:%S"))

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()


def show() -> None:
    """Show the package's INFO log on a terminal or in a notebook, unless logging is set up.

    A program that sets a handler or a level for the logger ``statekeep``, or a handler for all
    loggers, decides itself what is shown.
    """
    is_set_up = _PACKAGE.hasHandlers() or _PACKAGE.level != logging.NOTSET
    if not is_set_up and (sys.stderr.isatty() or "ipykernel" in sys.modules):
        _PACKAGE.addHandler(_Story())
        _PACKAGE.setLevel(logging.INFO)
