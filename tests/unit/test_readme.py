"""What README.md prints beside its programs for Spark, which tests/spark/test_readme_on_spark.py runs."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from readme_kit import PAGE, block, printed

from statekeep.backends.registry import BackendRegistry
from statekeep.config.load import load_dict

ROOT = Path(__file__).parents[2]
PLUG_IN = "Plug in a backend"

RUN = [
    ("", "console"),  # here
    ("", "diff"),  # tests/spark/test_readme_on_spark.py
    ("", ""),  # `make` here
    ("Choose where state goes", "python"),  # tests/spark/test_readme_on_spark.py
    ("Read state", "python"),  # tests/spark/test_readme_on_spark.py
    ("Read state", "console"),  # tests/spark/test_readme_on_spark.py
    ("Move state to another backend", "python"),  # tests/spark/test_readme_on_spark.py
    ("Move state to another backend", "console"),  # tests/spark/test_readme_on_spark.py
    (PLUG_IN, "toml"),  # here
    (PLUG_IN, "python"),  # tests/conformance/test_readme_backend.py
]


def test_every_block_of_the_readme_is_run_by_a_test() -> None:
    assert [(heading, language) for heading, language, _ in printed()] == RUN


def test_the_extras_that_the_readme_installs_are_those_of_the_package() -> None:
    named = re.findall(r"pip install '\.\[([a-z0-9,]+)\]'", PAGE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert named
    assert {extra for names in named for extra in names.split(",")} < set(
        extras["optional-dependencies"]
    )


@pytest.mark.parametrize("target", sorted(set(re.findall(r"make ([a-z][a-z-]+)", PAGE))))
def test_make_knows_what_the_readme_asks_of_it(target: str) -> None:
    dry_run = ["make", "--dry-run", target]
    result = subprocess.run(dry_run, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", ["make demo", ".venv/bin/python -m statekeep.demo"])
def test_the_demonstrations_end_well(command: str) -> None:
    assert command in PAGE
    target = command.removeprefix("make ")
    if target != command:  # without the set-up, which has made what runs this test
        recipe = re.search(
            rf"^{target}:.*\n\t@\$\(VENV\)/(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
        )
        assert recipe is not None
        command = recipe[1]
    _, *words = shlex.split(command)
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, stdin=subprocess.DEVNULL)


def test_an_entry_point_as_printed_makes_a_backend_known_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tape_backend.py").write_text(
        "from statekeep.backends.blob.factory import BlobBackendFactory\n"
        "class TapeBackendFactory(BlobBackendFactory): pass\n"
    )
    announced = tomllib.loads(block(PLUG_IN, "toml"))["project"]["entry-points"]
    installed = tmp_path / "tape_backend-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: tape-backend\nVersion: 1\n")
    lines = [
        line
        for group, names in announced.items()
        for line in (f"[{group}]", *(f"{name} = {path}" for name, path in names.items()))
    ]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    (listed,) = re.findall(r"`stores\.state\.backup\.factories = ([^`]+)`", PAGE)
    for name in (listed, "tape_backend:TapeBackendFactory"):
        config = load_dict({"stores.state.backup.factories": name, "blob.store.uri": "file:///t"})
        (factory,) = BackendRegistry(config).factories().values()
        assert type(factory).__name__ == "TapeBackendFactory"
