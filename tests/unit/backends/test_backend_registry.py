"""Backends are found by short name, instance, entry point and dotted path; else a clear error."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.memory import MemoryBackendFactory
from statekeep.backends.registry import ENTRY_POINT_GROUP, BackendRegistry
from statekeep.errors import ConfigError


@dataclass
class Config:
    factories: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)

    def backend_names(self, first: str = "") -> tuple[str, ...]:
        return tuple(self.factories)

    def backend_factory(self, name: str) -> str:
        return self.factories.get(name, name)

    def backend_settings(self, name: str, defaults_prefix: str) -> Mapping[str, str]:
        self.asked.append((name, defaults_prefix))
        return self.settings.get(name, {})


def registry(config: Config, *points: tuple[str, str]) -> BackendRegistry:
    found = [EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in points]
    return BackendRegistry(config, found=found)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A user's module with a factory, a class that is none, and nothing else."""
    module = ModuleType("user_plugin")

    class UserFactory(MemoryBackendFactory):
        pass

    module.__dict__.update(UserFactory=UserFactory, NoFactory=dict)
    module.__path__ = []
    monkeypatch.setitem(sys.modules, "user_plugin", module)
    module.__spec__ = __import__("importlib.machinery").machinery.ModuleSpec("user_plugin", None)
    return module


def test_our_own_short_names_need_no_entry_points() -> None:
    found = registry(Config(settings={"blob": {"uri": "file:///x"}}))
    assert type(found.factory("memory")) is MemoryBackendFactory
    assert type(found.factory("blob")) is BlobBackendFactory


def test_the_installed_entry_points_agree_with_our_own_table() -> None:
    assert type(BackendRegistry(Config()).factory("memory")) is MemoryBackendFactory


def test_two_instances_of_one_factory_stand_side_by_side_with_their_own_settings() -> None:
    settings = {"near": {"uri": "file:///near"}, "far": {"uri": "file:///far"}}
    config = Config({"near": "blob", "far": "blob"}, settings)
    factories = registry(config).factories()
    assert {name: f.settings["uri"] for name, f in factories.items()} == {
        "near": "file:///near",
        "far": "file:///far",
    }
    assert [f.name for f in factories.values()] == ["near", "far"]
    assert config.asked == [("near", "blob.store"), ("far", "blob.store")]


def test_a_name_gives_the_same_instance_each_time() -> None:
    found = registry(Config())
    assert found.factory("memory") is found.factory("memory")


@pytest.mark.parametrize("path", ["user_plugin:UserFactory", "user_plugin.UserFactory"])
def test_a_dotted_path_of_either_form_is_loaded(plugin: ModuleType, path: str) -> None:
    assert type(registry(Config()).factory(path)) is plugin.UserFactory
    assert type(registry(Config({"mine": path})).factory("mine")) is plugin.UserFactory


def test_an_entry_point_of_another_package_is_loaded(plugin: ModuleType) -> None:
    found = registry(Config(), ("theirs", "user_plugin:UserFactory"))
    assert type(found.factory("theirs")) is plugin.UserFactory


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    registry(Config(), ("theirs", "package_that_is_not_there:Factory"))


def test_an_unknown_name_is_refused_with_the_nearest_and_all_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"name=blop .*nearest=blob known=blob,.*memory"):
        registry(Config()).factory("blop")


def test_two_packages_with_one_short_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two packages claim one backend name: name=blob"):
        registry(Config(), ("blob", "other:Factory"))


def test_entry_points_are_read_for_the_names_of_others_alone_once_the_driver_has_checked_them(
    plugin: ModuleType,
) -> None:
    read: list[str] = []

    def installed() -> Iterator[EntryPoint]:
        read.append("installed")
        yield EntryPoint("theirs", "user_plugin:UserFactory", ENTRY_POINT_GROUP)

    found = BackendRegistry(Config(), found=installed(), is_checked=True)
    assert type(found.factory("memory")) is MemoryBackendFactory
    assert read == []
    assert type(found.factory("theirs")) is plugin.UserFactory


def test_the_same_entry_point_twice_is_no_conflict() -> None:
    point = ("blob", "statekeep.backends.blob.factory:BlobBackendFactory")
    registry(Config(), point, point)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_package.module:Factory", "no such module"),
        ("user_plugin.no_such_module:Factory", "no such module"),
        ("user_plugin:NoSuchName", "nothing of that name"),
        ("user_plugin:NoFactory", "not a StateBackendFactory"),
        ("user plugin:Factory", "not a dotted path"),
        (":Factory", "not a dotted path"),
        ("user_plugin:", "not a dotted path"),
    ],
)
@pytest.mark.usefixtures("plugin")
def test_a_dotted_path_that_leads_nowhere_is_refused(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        registry(Config({"mine": path})).factory("mine")
    assert caught.value.key == "backends.mine.factory"


@pytest.mark.parametrize("line", ["import not_installed_anywhere", "raise ValueError('mine')"])
def test_an_error_inside_the_users_module_passes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    (tmp_path / "broken_plugin.py").write_text(f"{line}\nclass Factory: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises((ModuleNotFoundError, ValueError), match=r"not_installed_anywhere|mine"):
        registry(Config()).factory("broken_plugin:Factory")


def test_a_missing_client_library_names_the_extra_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "client_user.py").write_text("import boto3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match="module=boto3") as caught:
        registry(Config(), ("s3", "client_user:Factory")).factory("s3")
    assert caught.value.hints == ("pip install 'statekeep[s3]'",)
