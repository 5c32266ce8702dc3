"""What a program is told where a package, or Java, is not installed."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import statekeep as sk
from statekeep.cli import app as command_line
from statekeep.errors import ConfigError

PYSPARK = [
    "ArrowValueState",
    "Diagnosis",
    "ImportedState",
    "QueryGuard",
    "StartingPoint",
    "StatefulGroupedData",
    "StatefulStreamingQuery",
    "batch_directory_sink",
    "check_session",
    "doctor",
    "fence_transaction",
    "find_starting_point",
    "grouped",
    "guard",
    "import_spark_state",
    "read_state",
    "register",
    "replay_batch",
    "session_builder",
    "state_listener",
    "upsert_sink",
    "write_state",
]
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_version_is_the_one_of_the_package() -> None:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    assert sk.__version__ == project["version"]


@pytest.mark.parametrize("name", PYSPARK)
def test_a_name_of_the_spark_runtime_names_the_extra_where_pyspark_is_missing(name: str) -> None:
    code = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "import statekeep as sk\n"
        "from statekeep.errors import ConfigError\n"
        "try:\n"
        f"    sk.{name}\n"
        "except ConfigError as exc:\n"
        "    print(exc)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == (
        "a package is not installed: module=pyspark; hint: pip install 'statekeep[spark]'\n"
    )


def test_no_other_name_needs_pyspark() -> None:
    others = sorted({*sk.__all__} - {*PYSPARK})
    code = f"import sys; sys.modules['pyspark'] = None; from statekeep import {', '.join(others)}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_encryption_names_the_extra_where_its_package_is_missing() -> None:
    code = (
        "import sys\n"
        "sys.modules['cryptography'] = None\n"
        "from statekeep.backends.blob.encoded_stream import Encoding, StreamEncoder\n"
        "from statekeep.backends.encryption_keys import EncryptionKey\n"
        "from statekeep.errors import ConfigError\n"
        "try:\n"
        "    StreamEncoder(Encoding('none', EncryptionKey('1', b's' * 32)), 'counts', b's' * 32)\n"
        "except ConfigError as exc:\n"
        "    print(exc)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == (
        "blobs are encrypted by a package that is not installed: package=cryptography; "
        "hint: pip install 'statekeep[encryption]'\n"
    )


def test_the_command_line_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ModuleNotFoundError(name="xxhash")

    monkeypatch.setattr(command_line, "app", fail)
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 2
    assert "pip install 'statekeep[hdfs]'" in capsys.readouterr().err


def test_a_session_without_java_is_refused_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="install Java 17") as caught:
        sk.session_builder()
    assert caught.value.key == "JAVA_HOME"
