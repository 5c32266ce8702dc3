"""The judge of the malice level can fail: each verdict that it must tell from the others."""

from collections.abc import Mapping

import pytest

from chaos.malice.judge import Event, Judge

PLACES = ("blob-1", "blob-2")


def _expected(_task: str, offset: int) -> Mapping[str, Mapping[str, str]]:
    return {"sums": {} if offset < 0 else {"key": str(offset)}}


def _begun(offset: int) -> Event:
    return {"event": "begun", "task": "Partition 0", "offset": offset}


def _acknowledged(offset: int) -> Event:
    return {"event": "acknowledged", "task": "Partition 0", "offset": offset}


def _started(offset: int, *failed: str, content: int | None = None) -> Event:
    return {
        "event": "started",
        "task": "Partition 0",
        "offset": offset,
        "content": _expected("", offset if content is None else content),
        "failed_sources": list(failed),
    }


def _failed(*, is_ours: bool, has_hint: bool) -> Event:
    error = {"type": "Error", "is_ours": is_ours, "has_hint": has_hint}
    return {"event": "failed", "error": "Error", "errors": [error]}


def _judged(*events: Event) -> Judge:
    judge = Judge(_expected, PLACES)
    for event in (_begun(3), _acknowledged(3), _begun(5), _acknowledged(5), *events):
        judge.hear("life", event)
    return judge


@pytest.mark.parametrize(
    ("events", "verdict"),
    [
        ((_started(5),), "right"),
        ((_begun(7), _started(7)), "right"),
        ((_started(5, "blob-1"),), "right, from another copy"),
        ((_started(3, "blob-1", "blob-2", "local"),), "older commit, said"),
        ((_started(-1, "blob-1", "blob-2"),), "older commit, said"),
        ((_failed(is_ours=True, has_hint=True),), "clear error"),
    ],
    ids=["newest", "not-yet-acknowledged", "fallback", "older", "empty", "error"],
)
def test_what_may_happen_has_a_verdict(events: tuple[Event, ...], verdict: str) -> None:
    judge = _judged(*events)
    assert judge.failures == []
    assert judge.verdicts == {verdict: 1}


@pytest.mark.parametrize(
    ("events", "failure"),
    [
        ((_started(5, content=3),), "with another state"),
        ((_started(3),), "without a message"),
        ((_started(3, "blob-1"),), "without a message"),
        ((_started(-1),), "without a message"),
        ((_started(4, "blob-1", "blob-2"),), "where no commit was begun"),
        ((_started(9),), "where no commit was begun"),
        ((_started(3, "blob-1", "blob-2"), _started(5)), "where no commit was begun"),
        ((_failed(is_ours=False, has_hint=False),), "none of ours"),
        ((_failed(is_ours=True, has_hint=False),), "does not say what to do"),
    ],
    ids=[
        "content",
        "older-in-silence",
        "half-told",
        "empty-in-silence",
        "never-committed",
        "ahead",
        "back-on",
        "raw-error",
        "no-hint",
    ],
)
def test_what_must_not_happen_is_a_failure(events: tuple[Event, ...], failure: str) -> None:
    judge = _judged(*events)
    assert any(failure in text for text in judge.failures)
