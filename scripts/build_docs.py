"""Build the documentation site into ``.site``; a warning is an error, and so is a page that needs a network.

Exit status 1 and one line per fault.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / ".site"
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|link(?! rel="canonical"))\b[^>]*?(?:src|href)="(https?:|//)[^"]*"""
)
"""What a browser fetches by itself, from somewhere else."""


def faults_of_pages() -> Iterator[str]:
    for page in sorted(SITE.rglob("*.html")):
        for match in LOADED.finditer(page.read_text(encoding="utf-8")):
            yield f"{page.relative_to(SITE)} needs a network: {match[0]}"


def main() -> int:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "version"
    ]
    variables = {"STATEKEEP_DOCS_VERSION": f"Statekeep {version}", "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
    built = subprocess.run(
        command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    if built.returncode != 0:  # with --quiet, --strict would see no warnings
        sys.stdout.write(built.stdout + built.stderr)
        return built.returncode
    faults = list(faults_of_pages())
    sys.stdout.write("\n".join([*faults, f"site in {SITE}, {len(faults)} faults"]) + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
