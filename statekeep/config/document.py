"""Writes ``docs/reference/settings.md`` from the fields that are the settings, and their docstrings.

``python -m statekeep.config.document`` writes the file; with ``--check`` it changes nothing and
exits with 1 if the file is out of date.
"""

import argparse
import ast
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from statekeep.config.key import Key, keys_of
from statekeep.config.keys import GROUPS, UNSUPPORTED

_INTRODUCTION = """\
# Settings

<!-- Written by `python -m statekeep.config.document`; change `statekeep/config/` instead. -->

Settings come from a dict, a Java `.properties` file, a TOML file, the environment, or a Spark conf.
A key that is not listed here is an error that names the nearest one. The text in italics says why the default is what it is.

## How to write them

| where | how |
| -- | -- |
| a dict | `sk.grouped(df.groupBy("id"), {"task.commit.ms": "30s"})` |
| a file | `sk.grouped(data, "job.properties")` or `"job.toml"`; `sk.read_state` takes a path, too |
| TOML | tables and dotted keys are the same, and a list may be an array. Put a name in quotes if it is both a setting and the beginning of another one |
| the environment | `STATEKEEP__TASK__COMMIT__MS=30s`: the prefix `STATEKEEP__`, and two underscores for a dot |
| a Spark conf | `spark.statekeep.task.commit.ms` |

| value | how |
| -- | -- |
| a duration | milliseconds, or a number with a unit: `500ms`, `60s`, `5m`, `2h`, `1d` |
| a size | bytes, or a number with a unit: `64KiB`, `128MiB`, `1GiB`, `1GB` |
| a list | separated by commas; an empty one means none |

## Which one wins

The environment wins over files, dict and Spark conf. On Spark it is the driver's environment; in plain Python `sk.load_job("job.properties")` reads both. On the
command line `--set-file` and `--set` win over the environment. The local directory has one more source: the variable `LOGGED_STORE_BASE_DIR`
gives its default.

For a store, its own key (`stores.<store>.*`) wins over the key for all stores, and that over the default. For a backend, `backends.<name>.*` wins over
the key for all backends of its kind.

## Secrets

Put a secret into the environment, into a file that only you can read (on the command line `--set-file FILE`), or into the dict that the
program gives to `grouped`. Do not put it into `--set` or a Spark conf: every user of the machine sees the arguments of a process. Spark's UI and
event log show a Spark conf too, unless `spark.redaction.regex` hides it, as in a session of `sk.session_builder()`. Without that, a
secret in `spark.statekeep.*` is refused.

Logs, errors and `config explain` hide the value of a key whose name suggests a secret: a password, passphrase, pin, token, key, credential,
authentication, JAAS, signature or connection string. They show a URI without its user and query. Settings that are not ours (`client.*`,
`storage.options.*`, those of a plug-in) are hidden too, unless the last word of the name is known to be harmless, such as `uri`, `region` or
`ms`.
"""


def render() -> str:
    """Return the text of the page."""
    parts = [_INTRODUCTION]
    for title, sections in GROUPS.items():
        rows = [row for section in sections for row in _rows(section)]
        head = ("Key", "Type", "Default", "What it does, and why that default")
        parts.append(f"## {title}\n\n{_table(head, rows)}")
    refused = [(f"`{name}`", reason) for name, reason in sorted(UNSUPPORTED.items())]
    parts.append(
        "## Refused\n\nSettings of Apache Samza that have no meaning here:\n\n"
        + _table(("Key", "Why"), refused)
    )
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the page and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m statekeep.config.document")
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    parser.add_argument("path", nargs="?", type=Path, default=Path("docs/reference/settings.md"))
    options = parser.parse_args(arguments)
    path: Path = options.path
    text = render()
    if not options.check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{path} is out of date: run python -m statekeep.config.document\n")
    return 1


def texts_of(section: type) -> Mapping[str, str]:
    """Return the docstrings of a dataclass's fields, each in one line."""
    (tree,) = ast.parse(inspect.getsource(section)).body
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    return {
        declared.target.id: " ".join(docstring.value.value.split())
        for declared, docstring in pairwise(body)
        if isinstance(declared, ast.AnnAssign)
        and isinstance(declared.target, ast.Name)
        and isinstance(docstring, ast.Expr)
        and isinstance(docstring.value, ast.Constant)
        and isinstance(docstring.value.value, str)
    }


def _rows(section: type) -> Iterator[tuple[str, ...]]:
    texts = texts_of(section)
    for field, key in keys_of(section).items():
        yield _name_cell(key), key.type.name, _default_cell(key), texts[field]


def _name_cell(key: Key[Any]) -> str:
    cell = f"`{key.name}`"
    if key.job_name is not None:
        cell += f"; all stores: `{key.job_name}`"
    aliases = (*key.aliases, *key.job_aliases)
    if aliases:
        cell += "; also " + ", ".join(f"`{alias}`" for alias in aliases)
    return cell


def _default_cell(key: Key[Any]) -> str:
    return key.default_text if key.default_text is not None else f"`{key.shown_default}`"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["--"] * len(head), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in cells] for cells in lines)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in escaped)


if __name__ == "__main__":
    raise SystemExit(main())
