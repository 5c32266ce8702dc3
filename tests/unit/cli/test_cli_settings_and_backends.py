"""``statekeep config``, ``statekeep backends``, and how a command line ends."""

import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from cli_kit import CommandLine

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import BlobMetadata
from statekeep.backends.storage.manager import StorageManager
from statekeep.cli import backends
from statekeep.testing.clock import FakeClock


class LoglessFactory(BlobBackendFactory):
    """No log can be kept here."""

    properties = replace(BlobBackendFactory.properties, can_hold_job_log=False)


def test_settings_have_their_source_and_the_last_source_wins(
    statekeep: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATEKEEP__JOB__NAME", "from the environment")
    monkeypatch.setenv("STATEKEEP__TASK__SHUTDOWN__MS", "7s")
    rows = {
        row["key"]: (row["value"], row["source"])
        for row in statekeep("config explain --set job.name=mine --json").json
    }
    assert rows["job.name"] == ("mine", "--set")
    assert rows["task.shutdown.ms"] == ("7s", "environment STATEKEEP__TASK__SHUTDOWN__MS")
    assert rows["checkpoint.retain.commits"] == ("20", f"{statekeep.config}:8")
    assert rows["task.commit.timeout.ms"] == ("1800000", "default")


def test_secrets_stay_hidden(statekeep: CommandLine) -> None:
    result = statekeep("config explain --set backends.far.secret=hunter2")
    assert "backends.far.secret" in result.out
    assert "hunter2" not in result.out + result.err


def test_a_secret_on_the_command_line_is_warned_of(statekeep: CommandLine) -> None:
    assert (
        "process list: key=backends.far.secret"
        in statekeep("config explain --set backends.far.secret=hunter2").err
    )
    assert not statekeep("config explain --set job.name=mine").err


def test_a_file_of_secrets_wins_over_the_environment_and_loses_to_set(
    statekeep: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STATEKEEP__JOB__NAME", "from the environment")
    monkeypatch.setenv("STATEKEEP__TASK__SHUTDOWN__MS", "7s")
    secrets = tmp_path / "secrets"
    secrets.write_text("job.name = mine\ntask.shutdown.ms = 8s\nbackends.far.secret = hunter2\n")
    secrets.chmod(0o600)
    result = statekeep(f"config explain --set-file {secrets} --set task.shutdown.ms=9s --json")
    rows = {row["key"]: (row["value"], row["source"]) for row in result.json}
    assert rows["job.name"] == ("mine", f"{secrets}:1")
    assert rows["task.shutdown.ms"] == ("9s", "--set")
    assert rows["backends.far.secret"] == ("***", f"{secrets}:3")
    assert not result.err


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o602, 0o620])
def test_a_file_of_secrets_that_others_get_at_is_refused(
    statekeep: CommandLine, tmp_path: Path, mode: int
) -> None:
    secrets = tmp_path / "secrets.toml"
    secrets.write_text("[job]\nname = 'mine'\n")
    secrets.chmod(0o600)
    assert statekeep(f"config check --set-file {secrets}").status == 0
    secrets.chmod(mode)
    result = statekeep(f"config check --set-file {secrets}")
    assert result.status == 2
    assert f"mode={mode:o}" in result.err
    assert "chmod 600" in result.err


def test_a_wrong_setting_is_refused_with_the_nearest_name(statekeep: CommandLine) -> None:
    result = statekeep("config check --set task.comit.ms=1")
    assert result.status == 2
    assert "nearest=task.commit.ms source=--set" in result.err
    assert statekeep("config check").status == 0


def test_a_setting_without_a_value_does_not_show_what_may_be_a_secret(
    statekeep: CommandLine,
) -> None:
    result = statekeep("config check --set hunter2")
    assert result.status == 2
    assert "not KEY=VALUE" in result.err
    assert "hunter2" not in result.out + result.err


def test_backends_are_listed_with_what_they_need_and_support(statekeep: CommandLine) -> None:
    rows = {row["backend"]: row for row in statekeep("backends list --json").json}
    assert sorted(rows) == ["far", "near"]
    assert rows["near"]["factory"] == "blob"
    assert rows["near"]["stores"] == ["counts"]
    assert rows["near"]["can_hold_job_log"] is True


def test_a_backend_that_is_there_is_fine(statekeep: CommandLine) -> None:
    result = statekeep("backends check --json")
    assert (result.status, result.json) == (
        0,
        [{"backend": "near", "error": None}, {"backend": "far", "error": None}],
    )


def test_a_backend_that_refuses_access_is_named(statekeep: CommandLine, job: Path) -> None:
    shutil.rmtree(job / "far")
    (job / "far").write_text("a file where a directory should be")
    result = statekeep("backends check --json")
    assert result.status == 4
    errors = {row["backend"]: row["error"] for row in result.json}
    assert errors["near"] is None
    assert str(job / "far") in errors["far"]


@pytest.mark.parametrize(
    ("given", "limit", "limit_s"),
    [
        ("", "start.timeout.ms=60000", 60),
        ("retry.policy.max.retry.duration.millis", "=5000", 5),
        ("retry.policy.max.retries", "=2", None),
    ],
    ids=["start", "duration", "retries"],
)
def test_a_closed_port_is_asked_until_the_limit_that_the_error_names(
    statekeep: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    limit: str,
    limit_s: int | None,
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(backends, "SystemClock", lambda: clock)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        where = f"http://127.0.0.1:{closed.getsockname()[1]}"
        result = statekeep(
            "backends check --set backends.far.uri=s3://bucket/job"
            f" --set backends.far.s3.endpoint={where} --json"
            + (f" --set backends.far.{given}{limit}" if given else "")
        )
    errors = {row["backend"]: row["error"] for row in result.json}
    assert (result.status, errors["near"]) == (4, None)
    assert f"hint: the limit that ran out is backends.far.{given}{limit};" in errors["far"]
    assert given == "" or "start.timeout.ms" not in errors["far"]
    if limit_s is not None:
        assert clock.monotonic_ns() == pytest.approx(limit_s * 10**9, abs=2 * 10**6)


def test_a_backend_that_no_store_lists_but_the_start_needs_is_checked_too(
    statekeep: CommandLine, job: Path
) -> None:
    (job / "other").write_text("a file where a directory should be")
    result = statekeep(
        f"backends check --set job.log.backend=other --set backends.other.uri={(job / 'other').as_uri()} "
        "--set backends.other.factory=blob --json"
    )
    errors = {row["backend"]: row["error"] for row in result.json}
    assert (result.status, errors["near"], errors["far"]) == (4, None, None)
    assert str(job / "other") in errors["other"]


def test_a_backend_that_cannot_hold_the_log_is_not_fine(
    statekeep: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = StorageManager.put

    async def overwrite(
        self: StorageManager,
        name: str,
        content: bytes | Path,
        metadata: BlobMetadata,
        *,
        if_absent: bool = False,
    ) -> str:
        return await put(self, name, content, metadata)

    monkeypatch.setattr(StorageManager, "put", overwrite)
    result = statekeep("backends check --json")
    errors = {row["backend"]: row["error"] for row in result.json}
    assert (result.status, errors["far"]) == (4, None)
    assert "the storage cannot hold the job log" in errors["near"]


def test_a_backend_that_cannot_do_what_it_is_named_for_is_a_wrong_setting(
    statekeep: CommandLine,
) -> None:
    factory = "test_cli_settings_and_backends:LoglessFactory"
    result = statekeep(
        f"backends check --set job.log.backend=far --set backends.far.factory={factory}"
    )
    assert result.status == 2
    assert "cannot hold the job log: backend=far" in result.err


def test_without_settings_the_remedy_is_printed(statekeep: CommandLine) -> None:
    result = statekeep("backends list", has_config=False)
    assert result.status == 2
    assert "hint: give the settings of the job with --config or --set" in result.err


def test_an_unknown_option_is_a_usage_error(statekeep: CommandLine) -> None:
    result = statekeep("backends list --nonsense")
    assert result.status == 2
    assert "--nonsense" in result.err


def test_the_version_is_printed(statekeep: CommandLine) -> None:
    result = statekeep("--version", has_config=False)
    assert (result.status, result.out.split()[0]) == (0, "statekeep")
