"""Which backend restores which store: Samza's eight cases, and where we differ on purpose."""

import pytest

from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
    TaskName,
)
from statekeep.config.store_settings import StoreSettings
from statekeep.restore.plan import StorePlan, plan_restore

TASK = TaskName("Partition 0")
S0, S1, S2 = map(StoreName, ("s0", "s1", "s2"))
STORES = {
    S0: StoreSettings("s0", restore_factories=("f0", "f1", "f2")),
    S1: StoreSettings("s1", restore_factories=("f2", "f1")),
    S2: StoreSettings("s2", restore_factories=()),
}


def checkpoint(markers: dict[str, list[str]]) -> CheckpointV2:
    return CheckpointV2(
        CheckpointId(1, 1),
        {},
        {
            BackendName(backend): {StoreName(s): Marker(f"{backend}-{s}") for s in stores}
            for backend, stores in markers.items()
        },
    )


def order(plan: StorePlan) -> list[str]:
    return [source.backend for source in plan.sources]


@pytest.mark.parametrize(
    ("markers", "s0", "s1"),
    [
        ({"f0": ["s0", "s1"], "f1": ["s0", "s1"], "f2": ["s0", "s1"]}, "f0 f1 f2", "f2 f1"),
        ({"f2": ["s0", "s1"]}, "f2", "f2"),
        ({"f1": ["s0", "s1"], "f2": ["s0", "s1"]}, "f1 f2", "f2 f1"),
        ({"f1": ["s0", "s1"], "f2": ["s0"]}, "f1 f2", "f1"),
        ({"f1": ["s0", "s1"]}, "f1", "f1"),
        ({"f0": ["s0"], "f1": ["s1"]}, "f0", "f1"),
        ({}, "", ""),
        ({"f0": ["other"], "f1": ["other"]}, "", ""),
    ],
    ids=[
        "all have markers",
        "only the last",
        "the last two",
        "one lacks a store",
        "only one",
        "each another store",
        "no markers",
        "markers of another store only",
    ],
)
def test_backends_are_tried_in_the_stores_order_if_they_have_a_marker(
    markers: dict[str, list[str]], s0: str, s1: str
) -> None:
    plans = plan_restore(TASK, STORES, checkpoint(markers), listed=[S0, S1, S2])
    assert (order(plans[S0]), order(plans[S1])) == (s0.split(), s1.split())
    assert not plans[S0].is_new
    assert not plans[S1].is_new


def test_a_store_that_is_backed_up_nowhere_is_new() -> None:
    plans = plan_restore(TASK, STORES, checkpoint({"f0": ["s1"]}), listed=[S1, S2])
    assert plans[S2] == StorePlan(is_new=True)


def test_a_store_whose_backends_the_settings_have_forgotten_is_not_empty() -> None:
    plans = plan_restore(TASK, STORES, checkpoint({"f0": ["s2"]}), listed=[S2])
    assert plans[S2] == StorePlan(is_new=False, elsewhere=(BackendName("f0"),), is_held=True)


def test_a_store_whose_only_marker_is_bad_is_not_empty_either() -> None:
    bad = [("f0", TASK, "s2", "f0-s2")]
    plans = plan_restore(TASK, STORES, checkpoint({"f0": ["s2"]}), listed=[S2], bad_markers=bad)
    assert plans[S2].is_stranded


def test_a_store_begins_empty_that_is_said_to() -> None:
    stores = {S2: StoreSettings("s2", is_begun_empty=True)}
    plans = plan_restore(TASK, stores, checkpoint({"f0": ["s2"]}), listed=[S2])
    assert plans[S2] == StorePlan(is_new=True)


def test_a_store_that_the_record_does_not_list_is_new() -> None:
    plans = plan_restore(TASK, STORES, checkpoint({"f1": ["s1"]}), listed=[S1])
    assert plans[S0] == StorePlan(is_new=True)


def test_a_listed_store_without_a_marker_is_not_empty_but_out_of_reach() -> None:
    plans = plan_restore(TASK, STORES, checkpoint({"f1": ["s1"]}), listed=[S0, S1])
    assert plans[S0] == StorePlan(is_new=False, sources=())


def test_a_marker_in_a_backend_that_is_no_longer_listed_does_not_make_the_store_new() -> None:
    plans = plan_restore(TASK, STORES, checkpoint({"gone": ["s0"]}))
    gone = (BackendName("gone"),)
    assert plans[S0] == StorePlan(is_new=False, sources=(), elsewhere=gone, is_held=True)
    assert plans[S0].is_stranded


def test_bad_markers_are_passed_over() -> None:
    bad = [("f1", TASK, "s1", "f1-s1"), ("f2", "Partition 9", "s1", "f2-s1")]
    plans = plan_restore(
        TASK, STORES, checkpoint({"f1": ["s0", "s1"], "f2": ["s1"]}), bad_markers=bad
    )
    assert order(plans[S1]) == ["f2"]
    assert order(plans[S0]) == ["f1"]


def test_without_a_checkpoint_every_store_is_new() -> None:
    assert all(plan.is_new for plan in plan_restore(TASK, STORES, None).values())
