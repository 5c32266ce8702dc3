"""``import statekeep as sk``: the names are there, documented, and cost nothing until they are used."""

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages_kit import text_of

import statekeep as sk
from statekeep import errors


def test_every_public_name_is_there() -> None:
    assert dir(sk) == sorted(sk.__all__)
    assert all(callable(getattr(sk, name)) for name in sk.__all__)
    assert sk.grouped is sk.grouped  # no module takes its place once it is loaded


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'statekeep' has no attribute 'gruoped'"):
        getattr(sk, "gruoped")  # noqa: B009 - a checker of types finds it otherwise


def test_a_checker_of_types_sees_the_names_that_a_program_gets() -> None:
    imports = {
        alias.name: node.module
        for node in ast.walk(ast.parse(Path(sk.__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("statekeep.")
        for alias in node.names
    }
    assert imports == {name: getattr(sk, name).__module__ for name in sk.__all__}


def test_a_program_can_catch_every_error() -> None:
    found = inspect.getmembers(errors, inspect.isclass)
    assert {name for name, kind in found if issubclass(kind, Exception)} <= {*sk.__all__}


def test_every_public_name_is_documented() -> None:
    documented = re.findall(
        r"^::: statekeep\.([\w.]+)$", text_of("docs/reference/api.md"), re.MULTILINE
    )
    pages = {name.rpartition(".")[2] for name in documented}
    of_errors = {name for name in sk.__all__ if getattr(sk, name).__module__ == "statekeep.errors"}
    assert {*sk.__all__} <= pages | of_errors
    assert "errors" in pages


def test_the_import_loads_no_other_module_of_ours() -> None:
    program = (
        "import json, sys, statekeep;"
        " print(json.dumps([name for name in sys.modules if name.startswith('statekeep.')]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(done.stdout) == []
