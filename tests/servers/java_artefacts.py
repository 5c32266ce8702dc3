"""Java artefacts from Maven Central, as PySpark's Ivy fetches them, and programs in Java."""

import os
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from servers.process import ServerUnavailableError, temporary_directory

Artefact = tuple[str, str, str]
"""Group, name and version."""


def fetched(name: str, artefacts: Sequence[Artefact], *options: str) -> Path:
    """Return a directory of jars, fetched at first use.

    Args:
        name: Of the directory in the cache.
        artefacts: What to fetch.
        *options: Of Ivy.

    Raises:
        ServerUnavailableError: There is no Java, or they cannot be fetched.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "statekeep-test"
    libraries = cache / name
    if libraries.is_dir():
        return libraries
    cache.mkdir(parents=True, exist_ok=True)
    with temporary_directory("ivy") as scratch:
        for artefact in artefacts:
            run_java(
                [
                    *("java", "-cp", str(spark_jar("ivy-*.jar")), "org.apache.ivy.Main"),
                    *("-cache", str(scratch / "cache"), "-dependency", *artefact),
                    *("-confs", "runtime,master,default", *options),
                    *("-retrieve", f"{scratch}/lib/[artifact]-[revision].[ext]"),
                ]
            )
        staged = cache / f"{name}-{uuid.uuid4().hex}"
        shutil.copytree(scratch / "lib", staged)
        try:
            staged.rename(libraries)
        except OSError:  # another run was first; its jars are the same
            shutil.rmtree(staged)
    return libraries


def spark_jar(pattern: str) -> Path:
    """Return the first jar of PySpark whose name fits.

    Raises:
        ServerUnavailableError: There is no PySpark, or it has none.
    """
    spec = find_spec("pyspark")
    jars = sorted(Path(spec.origin or "").parent.glob(f"jars/{pattern}")) if spec else []
    if not jars:
        raise ServerUnavailableError(f"PySpark has no {pattern}: install statekeep[spark]")
    return jars[0]


def run_java(command: Sequence[str]) -> None:
    """Run a program in Java to its end.

    Raises:
        ServerUnavailableError: There is no Java, or it fails.
    """
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    except FileNotFoundError as exc:
        raise ServerUnavailableError("servers in Java need Java 17: install a JRE") from exc
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as exc:
        output = (exc.output or b"")[-2000:].decode(errors="replace")
        raise ServerUnavailableError(f"{command[0]} failed: {output}") from exc
