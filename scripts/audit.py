"""Check what users install: the licence of each package, and the advisories on it.

Looks at statekeep's dependencies with every extra but ``testing``, and at theirs, as they are installed
here. Advisories need a database on the network: pip-audit asks PyPI, then OSV. Where neither
answers, the last line says so.

Exit status 1: a licence is not on the list, a package is not installed, or there is an advisory.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "requirements" / "development.txt"
AUDIT_VENV = ROOT / ".venv" / "audit"
DATABASES = ("pypi", "osv")

ALLOWED = re.compile(
    r"\(?(0BSD|apache( software license|( license)?[- ]2\.0)|(3-clause )?bsd( license|[- ][23]-clause( license)?)?"
    r"|cc0-1\.0|isc( license)?( \(iscl\))?|mit(-0)?( license)?|mozilla public license 2\.0 \(mpl 2\.0\)"
    r"|mpl-2\.0|psf-2\.0|python software foundation license|zlib)\)?",
    re.IGNORECASE,
)
"""Licences that let an Apache-2.0 package depend on theirs. MPL 2.0 covers its own files alone."""
EXCEPTIONS = {
    "hdfs-native": "Apache-2.0 in its repository; its metadata name none",
    "paramiko": "LGPL-2.1: only with the extra `sftp`, imported and not changed",
}
"""``{package: why it may be used although its metadata do not say so}``"""


def direct_requirements() -> Iterator[Requirement]:
    """Yield what statekeep needs, with all extras for users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    yield from map(Requirement, project["dependencies"])
    for extra, requirements in project["optional-dependencies"].items():
        if extra != "testing":
            yield from map(Requirement, requirements)


def with_theirs(requirements: Iterable[Requirement]) -> dict[str, frozenset[str]]:
    """Return ``{package: extras}`` of what is needed, also by what is needed."""
    found: dict[str, frozenset[str]] = {}
    pending = list(requirements)
    while pending:
        requirement = pending.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if name in found and extras <= found[name]:
            continue
        found[name] = found.get(name, frozenset()) | extras
        try:
            theirs = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue  # told by `licence_of`
        for line in theirs:
            needed = Requirement(line)
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in (*found[name], "")):
                pending.append(needed)
    return found


def licence_of(name: str) -> str:
    """Return the licence as a package's metadata tell it; empty if they do not."""
    told: Any = metadata.metadata(name)  # a message of `email`, which its type does not tell
    if expression := told.get("License-Expression"):
        return str(expression)
    classifiers = [line.split(" :: ") for line in told.get_all("Classifier") or ()]
    named = [parts[-1] for parts in classifiers if parts[0] == "License" and len(parts) > 1]
    return " AND ".join(named) or str(told.get("License") or "").strip().partition("\n")[0]


def is_allowed(licence: str) -> bool:
    """Whether one of the alternatives consists of allowed licences."""
    return any(
        all(ALLOWED.fullmatch(part.strip()) for part in re.split(r"\bAND\b", alternative))
        for alternative in re.split(r"\bOR\b", licence)
    )


def faults_of_licences(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        try:
            licence = licence_of(name)
        except metadata.PackageNotFoundError:
            yield f"not installed, so not checked: {name}"
            continue
        if not is_allowed(licence) and name not in EXCEPTIONS:
            yield f"licence is not on the list: {name} ({licence or 'none named'})"


def answers_of(audit: str) -> tuple[list[str], list[str]] | None:
    """Return the advisories that pip-audit found, and the packages that it could not look up.

    Args:
        audit: Its JSON. None is returned where it is none, or no package could be looked up: a
            mirror of PyPI mostly has no advisories, and must not count as one that knows of none.
    """
    try:
        packages = json.loads(audit)["dependencies"]
    except ValueError:
        return None
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if len(skipped) == len(packages):
        return None
    found = [
        f"advisory: {package['name']} {package['version']} {each['id']}"
        for package in packages
        for each in package.get("vulns", ())
    ]
    return found, skipped


def advisories() -> tuple[list[str], list[str]] | None:
    """Ask the databases one after the other: see `answers_of`."""
    if not (AUDIT_VENV / "bin" / "pip-audit").exists():
        subprocess.run([sys.executable, "-m", "venv", str(AUDIT_VENV)], check=True)
        pip = [str(AUDIT_VENV / "bin" / "pip"), "--disable-pip-version-check", "install", "-q"]
        subprocess.run([*pip, "pip-audit>=2.9,<3"], check=True)
    audit = [str(AUDIT_VENV / "bin" / "pip-audit"), "-r", str(PINS), "--no-deps", "--disable-pip"]
    audit += ["--progress-spinner", "off", "--timeout", "15", "-f", "json"]
    for database in DATABASES:
        done = subprocess.run([*audit, "-s", database], capture_output=True, text=True, check=False)
        answers = answers_of(done.stdout)
        if answers is not None:
            return answers
        reason = "it knows none of the packages" if done.stdout else _last_line(done.stderr)
        sys.stdout.write(f"audit: no advisories from {database}: {reason}\n")
    return None


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["nothing was said"])[-1][:200]


def main() -> int:
    packages = with_theirs(direct_requirements())
    faults = list(faults_of_licences(sorted(packages)))
    sys.stdout.write(f"audit: licences of {len(packages)} packages\n")
    answers = advisories()
    found, skipped = answers or ([], [])
    for line in faults + found:
        sys.stdout.write(f"audit: {line}\n")
    if answers is None:
        sys.stdout.write("audit: ADVISORIES WERE NOT CHECKED: no database can be reached\n")
    else:
        sys.stdout.write(f"audit: {len(found)} advisories\n")
    if skipped:
        sys.stdout.write(f"audit: NOT CHECKED for advisories: {', '.join(skipped)}\n")
    return 1 if faults or found else 0


if __name__ == "__main__":
    sys.exit(main())
