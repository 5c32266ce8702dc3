"""One client for topics is lent to all tasks of a process."""

import weakref

import pytest

from statekeep.backends.kafka import cluster
from statekeep.backends.kafka.cluster import SharedCluster
from statekeep.backends.kafka.settings import KafkaSettings

SETTINGS = KafkaSettings(servers="127.0.0.1:1", topic_prefix="kafka")


class FakeClient:
    """Stands for the library's: released when nothing refers to it any more."""


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> "weakref.WeakSet[FakeClient]":
    """The clients that were built and not released."""
    alive: weakref.WeakSet[FakeClient] = weakref.WeakSet()

    def build(settings: KafkaSettings) -> FakeClient:
        assert settings is SETTINGS
        made = FakeClient()
        alive.add(made)
        return made

    monkeypatch.setattr(cluster, "build_admin", build)
    return alive


def test_every_caller_gets_the_same_client(clients: "weakref.WeakSet[FakeClient]") -> None:
    shared = SharedCluster(SETTINGS)
    assert not clients
    assert shared.borrow() is shared.borrow()
    assert len(clients) == 1


def test_the_client_is_released_with_the_last_borrower(
    clients: "weakref.WeakSet[FakeClient]",
) -> None:
    shared = SharedCluster(SETTINGS)
    kept = shared.borrow(), shared.borrow()
    shared.give_back()
    assert len(clients) == 1
    shared.give_back()
    assert not clients
    assert shared.borrow() not in kept
    assert len(clients) == 1
