"""A checkpoint location is found where Spark has it, or refused; never looked for elsewhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped] # ships no types
import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped] # as above

from statekeep.errors import ConfigError
from statekeep.inspection.location_files import explained_location_errors, open_location


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What fsspec is asked for, which has every filesystem."""
    names: list[str] = []

    def reach(name: str) -> tuple[MemoryFileSystem, str]:
        names.append(name)
        return MemoryFileSystem(), name.partition("://")[2]

    monkeypatch.setattr(fsspec, "url_to_fs", reach)
    return names


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("s3a://bucket/x", "s3://bucket/x"),
        ("s3://bucket/x", "s3://bucket/x"),
        ("abfss://box@account.dfs.core.windows.net/x", "abfs://box@account.dfs.core.windows.net/x"),
        ("gs://bucket/x", "gs://bucket/x"),
        ("hdfs://namenode:8020/x", "hdfs://namenode:8020/x"),
        ("hdfs:/x", "hdfs:///x"),
        ("dbfs:/x/y", "dbfs:///x/y"),
        ("file:/srv/x", "file:/srv/x"),
        ("/srv/a:/x", "/srv/a:/x"),
    ],
)
def test_names_of_hadoop_become_those_of_fsspec(asked: list[str], location: str, name: str) -> None:
    open_location(location)
    assert asked == [name]


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "{}/"])
def test_local_locations_are_found(tmp_path: Path, form: str) -> None:
    (tmp_path / "metadata").write_text("{}", encoding="utf-8")
    found = open_location(form.format(tmp_path))
    assert found.files.exists(f"{found.root}/metadata")


def test_a_filesystem_named_without_an_authority_is_no_local_directory() -> None:
    assert isinstance(open_location("memory:/x").files, MemoryFileSystem)


@pytest.mark.parametrize("location", ["nowhere:x", "local://x", "file://host/x"])
def test_what_would_become_a_local_directory_by_mistake_is_refused(location: str) -> None:
    with pytest.raises(ConfigError, match="checkpoint location") as told:
        open_location(location)
    assert "file:///path" in told.value.hints[0]


def failing(error: Exception) -> Callable[[str], Any]:
    def reach(name: str) -> Any:
        raise error

    return reach


@pytest.mark.parametrize(
    "error",
    [
        ImportError("Install s3fs to access S3"),
        ValueError("Protocol not known: s4"),
        TypeError("missing 2 required arguments"),
        RuntimeError("no default filesystem"),
        PermissionError("no credentials"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_filesystem_that_is_not_to_be_had_is_reported_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(fsspec, "url_to_fs", failing(error))
    with pytest.raises(ConfigError, match=r"no filesystem.*location=s3://bucket/x") as told:
        open_location("s3://bucket/x")
    assert str(error) in told.value.hints[0]


def test_secrets_of_a_location_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "s3://id:secret@bucket/x"
    monkeypatch.setattr(fsspec, "url_to_fs", failing(ValueError(f"cannot open {name}")))
    with pytest.raises(ConfigError) as told:
        open_location(name)
    assert "secret" not in str(told.value) + "".join(told.value.hints)


def test_secrets_in_an_error_of_the_filesystem_are_not_shown() -> None:
    location = open_location("memory:/x")
    error = OSError("403 for https://box.blob.core.windows.net/x?sig=secret")
    with pytest.raises(ConfigError) as told, explained_location_errors(location):
        raise error
    (hint,) = told.value.hints
    assert "https://box.blob.core.windows.net/x?***" in hint
    assert "secret" not in hint
