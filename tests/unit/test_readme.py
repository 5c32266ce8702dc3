"""What README.md prints beside its program for Spark, which tests/spark/test_readme_on_spark.py runs."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pages_kit import PAGES, ROOT, block, commands, printed, text_of

from statekeep.backends.registry import BackendRegistry
from statekeep.config.load import load_dict

BACKEND = "docs/how-to/write-a-backend.md"
RUN = [
    ("Try it", "console"),  # here
    ("Use it", "console"),  # here
    ("Use it", "python"),  # tests/spark/test_readme_on_spark.py
]


def test_every_block_of_the_readme_is_run_by_a_test() -> None:
    assert [(heading, language) for heading, language, _ in printed("README.md")] == RUN


def test_the_readme_fits_three_screens() -> None:
    assert len(text_of("README.md").splitlines()) <= 3 * 36


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "docs/images").iterdir()))
def test_a_picture_has_colours_for_light_and_dark_pages(name: str) -> None:
    style = text_of(f"docs/images/{name}").partition("</style>")[0]
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    assert _coloured(light) == _coloured(dark) != set()
    assert any(f"images/{name}" in text_of(page) for page in PAGES)


def _coloured(style: str) -> set[str]:
    """Return what has colours of its own, and which."""
    found = re.findall(r"([.#\w ]+)\{([^{}]*)\}", style)
    return {
        f"{name} {what}" for name, rules in found for what in re.findall(r"(fill|stroke):#", rules)
    }


def test_the_extras_that_pages_install_are_those_of_the_package() -> None:
    named = re.findall(r"'\.\[([a-z0-9,]+)\]'", "".join(map(text_of, PAGES)))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert named
    assert {extra for names in named for extra in names.split(",")} < set(
        extras["optional-dependencies"]
    )
    installs = [line for page in PAGES for line in commands(page) if line.startswith("pip ")]
    # From a clone: no package index has a release yet.
    assert [line for line in installs if not line.startswith("pip install '.[")] == []
    in_text = re.findall(r"`pip install ([^`]+)`", "".join(map(text_of, PAGES)))
    assert [extra for extra in in_text if not extra.startswith("'.[")] == []


@pytest.mark.parametrize("page", PAGES)
def test_make_knows_the_targets_that_a_page_names(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z][a-z-]+)`", text_of(page))) <= targets


def test_the_benchmarks_that_the_readme_names_are_there() -> None:
    (names,) = re.findall(r"`\.venv/bin/python -m benchmarks ([\w ]+)`", text_of("README.md"))
    help_text = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in names.split():
        assert re.search(rf"\b{name}\b", help_text)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_demonstration_ends_well() -> None:
    assert "make demo" in commands("README.md", "Try it")
    # Without the set-up, which has made what runs this test.
    recipe = re.search(
        r"^demo:.*\n\t@\$\(VENV\)/(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert recipe is not None
    _, *words = shlex.split(recipe[1])
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, stdin=subprocess.DEVNULL)


def test_an_entry_point_as_printed_makes_a_backend_known_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tape_backend.py").write_text(
        "from statekeep.backends.blob.factory import BlobBackendFactory\n"
        "class TapeBackendFactory(BlobBackendFactory): pass\n"
    )
    announced = tomllib.loads(block(BACKEND, "In short", "toml"))["project"]["entry-points"]
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
    (listed,) = re.findall(r"`stores\.state\.backup\.factories = ([^`]+)`", text_of(BACKEND))
    for name in (listed, "tape_backend:TapeBackendFactory"):
        config = load_dict({"stores.state.backup.factories": name, "blob.store.uri": "file:///t"})
        (factory,) = BackendRegistry(config).factories().values()
        assert type(factory).__name__ == "TapeBackendFactory"
