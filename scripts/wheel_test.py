"""Build the wheel, install it in a clean environment outside the checkout, and use it there.

Finds what an editable install hides: a sub-package, ``py.typed`` or an entry point left out.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMPORT_ALL = """
import importlib, importlib.metadata, importlib.resources, pkgutil, sys
import statekeep

root = importlib.resources.files("statekeep")
assert str(root).startswith(sys.prefix), root
assert (root / "py.typed").is_file(), "py.typed is missing"
names = [module.name for module in pkgutil.walk_packages(statekeep.__path__, "statekeep.")
         if not module.name.startswith(("statekeep.spark",))]
# A module of one of the extras may be missing; "aiohttp" comes with gcsfs.
extras = [requirement.lower().replace("-", "_")
          for requirement in importlib.metadata.requires("statekeep") or () if "extra ==" in requirement]
def is_optional(error):
    top = (error.name or "").split(".")[0].lower()
    return top == "aiohttp" or (top != "" and any(extra.startswith(top) for extra in extras))
imported = 0
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert is_optional(error), (name, error)
    else:
        imported += 1
for entry in importlib.metadata.entry_points(group="statekeep.state_backends"):
    try:
        entry.load()
    except ModuleNotFoundError as error:
        assert is_optional(error), (entry, error)
print(f"{imported} of {len(names)} modules imported, all entry points found")
"""


def run(*command: str, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, check=True)


def build(directory: Path) -> Path:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "-q", "--no-deps", "--wheel-dir", str(directory), str(ROOT), cwd=directory)
    return next(directory.glob("statekeep-*.whl"))


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="statekeep-wheel-") as name:
        directory = Path(name)
        wheel = build(directory)
        run(sys.executable, "-m", "venv", str(directory / "venv"), cwd=directory)
        python = str(directory / "venv" / "bin" / "python")
        pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "-q")
        run(*pip, f"{wheel}[testing]", cwd=directory)
        run(python, "-c", IMPORT_ALL, cwd=directory)
        run(str(directory / "venv" / "bin" / "statekeep"), "--help", cwd=directory)
        run(python, "-m", "statekeep.demo", cwd=directory)  # a kill -9, and state compared
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"wheel test failed: {' '.join(error.cmd[:4])} ended with {error.returncode}")
