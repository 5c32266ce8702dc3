"""Writes the table of metrics in ``docs/reference/metrics.md`` from `statekeep.metrics.figures`.

``python -m statekeep.metrics.document`` writes it; with ``--check`` it changes nothing and exits with
1 if the page is out of date.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from statekeep.metrics.figures import METRICS, Metric

_PAGE: Final = Path("docs/reference/metrics.md")
_BEGIN: Final = "<!-- Written by `python -m statekeep.metrics.document`: begin -->\n"
_END: Final = "<!-- end -->\n"


def table() -> str:
    """Return the table in Markdown."""
    head = "| OpenTelemetry | unit | Prometheus | kind | attributes | meaning |\n"
    return head + "| -- | -- | -- | -- | -- | -- |\n" + "".join(map(_row, METRICS))


def with_table(page: str) -> str:
    """Return a page with the table between its marks."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{table()}\n{_END}{after}"


def _row(metric: Metric) -> str:
    attributes = ", ".join(f"`{name}`" for name in metric.attributes)
    return (
        f"| `{metric.otel_name}` | {metric.unit} | `{metric.prometheus_name}` | {metric.kind} |"
        f" {attributes} | {metric.description} |\n"
    )


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    is_check = parser.parse_args().check
    page = _PAGE.read_text(encoding="utf-8")
    wanted = with_table(page)
    if not is_check:
        _PAGE.write_text(wanted, encoding="utf-8")
    return int(is_check and wanted != page)


if __name__ == "__main__":
    sys.exit(main())
