"""TOML files and the environment as sources of settings."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.config.load import load_dict, load_environment, load_file, load_job, load_toml
from statekeep.errors import ConfigError


def toml(directory: Path, text: str) -> Path:
    path = directory / "job.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_tables_dotted_keys_and_arrays_are_one_and_the_same(tmp_path: Path) -> None:
    path = toml(
        tmp_path,
        """
        job.name = "flights"
        task.commit.ms = "30s"
        checkpoint.retain.commits = 3
        [stores.state]
        backup.factories = ["near", "far"]
        [backends]
        near.factory = "blob"
        near.uri = "file:///near"
        far = { factory = "blob", uri = "file:///far" }
        """,
    )
    assert load_toml(path).as_dict() == {
        "job.name": "flights",
        "task.commit.ms": "30s",
        "checkpoint.retain.commits": "3",
        "stores.state.backup.factories": "near,far",
        "backends.near.factory": "blob",
        "backends.near.uri": "file:///near",
        "backends.far.factory": "blob",
        "backends.far.uri": "file:///far",
    }


def test_a_name_that_begins_another_one_is_written_in_quotes(tmp_path: Path) -> None:
    path = toml(
        tmp_path,
        'stores.s.changelog = "topic"\n"stores.s.changelog.min.compaction.lag.ms" = 1000\n',
    )
    store = load_toml(path).store("s")
    assert (store.changelog, store.changelog_min_compaction_lag_ms) == ("topic", 1000)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("job.name = ", "settings are not TOML: path=.*job.toml", id="no TOML"),
        pytest.param("task.comit.ms = 1", "nearest=task.commit.ms source=.*job.toml", id="key"),
        pytest.param("job.name = 10:30:00", "type=time source=.*job.toml", id="type"),
    ],
)
def test_an_error_in_toml_names_the_file(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_toml(toml(tmp_path, text))


@pytest.mark.parametrize("suffix", [".toml", ".properties"])
def test_the_form_of_a_file_follows_from_its_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"job{suffix}"
    path.write_text('job.name="a"' if suffix == ".toml" else "job.name=a", encoding="utf-8")
    assert load_file(path).job.name == "a"


def test_a_file_of_another_name_is_refused_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"job\.yaml; hint: .*\.properties or \.toml"):
        load_file(tmp_path / "job.yaml")


def test_the_environment_gives_its_settings_with_the_name_of_the_variable() -> None:
    config = load_environment(
        {
            "STATEKEEP__JOB__NAME": "flights",
            "STATEKEEP__stores__byCarrier__backup__factories": "blob",
            "STATEKEEP_OTHER": "not a setting",
            "PATH": "/bin",
        }
    )
    assert config.as_dict() == {
        "job.name": "flights",
        "stores.byCarrier.backup.factories": "blob",
    }
    assert config.settings["job.name"].source == "environment STATEKEEP__JOB__NAME"


def test_an_unknown_variable_is_refused_by_its_name() -> None:
    with pytest.raises(
        ConfigError, match=r"nearest=job\.name source=environment STATEKEEP__JOB__NAM"
    ):
        load_environment({"STATEKEEP__JOB__NAM": "flights"})


@settings(deadline=None)
@given(name=st.from_regex(r"[a-z]+(_?[a-z0-9])*", fullmatch=True))
def test_every_store_in_lower_case_can_be_named_in_upper_case(name: str) -> None:
    variable = f"STATEKEEP__STORES__{name.upper()}__BACKUP__FACTORIES"
    written = {f"stores.{name}.backup.factories": "blob"}
    assert load_environment({variable: "blob"}).as_dict() == load_dict(written).as_dict()


def test_a_job_reads_its_files_and_over_them_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "first.toml").write_text("job.name = 'flights'\ntask.commit.ms = '1s'")
    (tmp_path / "second.properties").write_text("task.commit.ms=2s\ntask.shutdown.ms=2s")
    monkeypatch.setenv("STATEKEEP__TASK__SHUTDOWN__MS", "3s")
    config = load_job(tmp_path / "first.toml", tmp_path / "second.properties")
    given = (config.job.name, config.task.commit_ms, config.task.shutdown_ms)
    assert given == ("flights", 2000, 3000)
    assert config.settings["task.shutdown.ms"].source.startswith("environment")


def test_a_day_may_be_written_as_toml_has_it_and_as_text(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    key = "blob.store.encryption.plain.until"
    for written in ("2026-12-31", '"2026-12-31"'):
        path.write_text(f'job.name = "j"\n{key} = {written}\n')
        assert load_toml(path).settings[key].value == "2026-12-31"
