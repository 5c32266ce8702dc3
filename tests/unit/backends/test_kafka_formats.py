"""What the Kafka backend writes and reads, without a broker."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.backends.base import TaskIdentity
from statekeep.backends.kafka.cluster import settings_problem
from statekeep.backends.kafka.epochs import HEADER, EpochStamp, Owners, check_epoch, given_up
from statekeep.backends.kafka.marker import ContentSummary, KafkaStateCheckpointMarker
from statekeep.backends.kafka.names import (
    ChangelogPartition,
    changelog_partition,
    changelog_topic,
    topic_name,
    transactional_id,
)
from statekeep.checkpoint.checkpoints import Marker, StoreName, TaskName
from statekeep.errors import (
    CheckpointCorruptError,
    ConfigError,
    TaskFencedError,
    UnknownFormatError,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-marker.json"
GOLDEN_WITH_DIGEST = GOLDEN.with_name("kafka-marker-with-digest.json")
CONTENTS = st.dictionaries(st.binary(max_size=4), st.binary(max_size=4), max_size=20)


def test_a_marker_that_cannot_be_verified_is_refused() -> None:
    with pytest.raises(CheckpointCorruptError, match="not a changelog marker"):
        KafkaStateCheckpointMarker.decode(Marker(GOLDEN.read_text()))


def test_our_marker_has_the_fields_of_samza_and_more() -> None:
    marker = KafkaStateCheckpointMarker("job-sessions-changelog", 3, 5678, "id", "7_00000000")
    samza = json.loads(GOLDEN.read_text())
    written = json.loads(marker.encode("kafka"))
    assert written | samza == written


def test_our_golden_marker_has_the_digest_of_the_state_that_it_is_of() -> None:
    text = GOLDEN_WITH_DIGEST.read_text().rstrip()
    content = json.loads((GOLDEN.parent / "jobs" / "content.json").read_bytes())
    marker = KafkaStateCheckpointMarker.decode(Marker(text))
    assert marker == KafkaStateCheckpointMarker(
        "kafka.orders.main.counts.changelog",
        0,
        41,
        "p8+1W7XkRJ2/jCfHoiJ+zg",
        "3_2787f1d947614667",
        ContentSummary.of((key.encode(), value.encode()) for key, value in content.items()),
    )
    assert marker.encode("kafka") == text


def test_the_system_of_a_marker_is_the_backend() -> None:
    marker = KafkaStateCheckpointMarker("job-sessions-changelog", 3, 5678).encode("near")
    assert json.loads(marker)["changelog-ssp"]["system"] == "near"
    assert KafkaStateCheckpointMarker.decode(marker) == KafkaStateCheckpointMarker(
        "job-sessions-changelog", 3, 5678
    )


@settings(deadline=None)
@given(CONTENTS, st.integers(0, 1 << 40) | st.none())
def test_a_marker_reads_back_as_it_was(content: dict[bytes, bytes], offset: int | None) -> None:
    summary = ContentSummary.of(content.items())
    marker = KafkaStateCheckpointMarker(
        "topic", 2, offset, "id", "7_00000000", summary, start=offset or 0
    )
    assert KafkaStateCheckpointMarker.decode(marker.encode("kafka")) == marker


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "blob-77",
        GOLDEN.read_text().replace('"version":1', '"version":0'),
        GOLDEN.read_text().replace('"partition":3', '"partition":-3'),
        GOLDEN.read_text().replace('"keyBucket":-1', '"keyBucket":4'),
        GOLDEN.read_text().replace("5678", "five"),
    ],
    ids=["empty", "bare", "foreign", "no version", "partition", "bucket", "offset"],
)
def test_other_markers_are_refused(text: str) -> None:
    with pytest.raises(CheckpointCorruptError):
        KafkaStateCheckpointMarker.decode(Marker(text))


@pytest.mark.parametrize(
    "text",
    [GOLDEN.read_text().replace('"version":1', '"version":2'), '{"version":2,"place":[]}'],
    ids=["like ours", "of another form"],
)
def test_a_marker_of_a_version_to_come_is_no_damage(text: str) -> None:
    with pytest.raises(UnknownFormatError, match="version=2"):
        KafkaStateCheckpointMarker.decode(Marker(text))


@settings(deadline=None)
@given(CONTENTS, CONTENTS)
def test_a_summary_follows_changes_to_any_other_content(
    before: dict[bytes, bytes], after: dict[bytes, bytes]
) -> None:
    changes = [(key, before.get(key), after.get(key)) for key in before.keys() | after.keys()]
    assert ContentSummary.of(before.items()).changed(changes) == ContentSummary.of(after.items())


@settings(deadline=None)
@given(CONTENTS)
def test_a_summary_adds_up_in_any_order_and_in_parts(content: dict[bytes, bytes]) -> None:
    entries = list(content.items())
    half = len(entries) // 2
    parts = ContentSummary.of(entries[half:]).plus(ContentSummary.of(entries[:half]))
    assert parts == ContentSummary.of(reversed(entries))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({b"ab": b"c"}, {b"a": b"bc"}),
        ({b"a": b"x", b"b": b"y"}, {b"a": b"y", b"b": b"x"}),
        ({b"a": b""}, {b"": b"a"}),
    ],
    ids=["boundary", "swapped", "empty"],
)
def test_contents_that_look_alike_have_other_digests(
    one: dict[bytes, bytes], other: dict[bytes, bytes]
) -> None:
    assert ContentSummary.of(one.items()).digest != ContentSummary.of(other.items()).digest


def test_names_are_what_kafka_takes_and_never_meet() -> None:
    parts = ["a b", "a_b", "a.b", "a_20b", "ä"]
    names = {topic_name("p", part) for part in parts}
    assert len(names) == len(parts)
    assert "p.a_5fb" in names


def test_the_places_of_a_task_come_from_its_names() -> None:
    task = TaskIdentity("flights", "main", TaskName("Partition 12"), "77aa")
    assert changelog_partition(task) == 12
    assert changelog_topic("kafka", task, StoreName("s")) == "kafka.flights.main.s.changelog"
    assert transactional_id("kafka", task) == "kafka.flights.main.Partition_2012"


@pytest.mark.parametrize("name", ["main", "Partition", "Partition -1", "Partition 01"])
def test_a_task_without_a_number_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="task has no number"):
        changelog_partition(TaskIdentity("job", "main", TaskName(name)))


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        [(HEADER, b"77aa 3 9")],
        [(HEADER, b"77aa 2 9")],
        [(HEADER, b"other 9 9")],
        [("x", b"77aa 9 9")],
    ],
    ids=["none", "empty", "same", "older", "other log", "other header"],
)
def test_no_newer_epoch_of_the_own_log_is_no_fence(
    headers: list[tuple[str, bytes | str | None]] | None,
) -> None:
    check_epoch(EpochStamp("77aa", 3, 1), headers, "topic")


def test_a_newer_epoch_of_the_own_log_is_a_fence() -> None:
    stamp = EpochStamp("77aa", 4, 1)
    with pytest.raises(TaskFencedError):
        check_epoch(EpochStamp("77aa", 3, 1), list(stamp.headers.items()), "topic")


WANTED = {"cleanup.policy": "compact", "min.compaction.lag.ms": "100", "max.message.bytes": "10"}


@pytest.mark.parametrize(
    ("found", "named", "key"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "1000"}, "retention.ms=1000", None),
        ({"cleanup.policy": "compact,delete", "retention.bytes": "5"}, "retention.bytes=5", None),
        (
            {"cleanup.policy": "compact", "min.compaction.lag.ms": "99"},
            "min.compaction.lag.ms=99",
            "stores.<store>.changelog.min.compaction.lag.ms",
        ),
        (
            {"cleanup.policy": "compact", "max.message.bytes": "9"},
            "max.message.bytes=9",
            "kafka.max.message.bytes",
        ),
    ],
    ids=["time", "size", "lag", "message"],
)
def test_a_topic_that_drops_what_a_restore_needs_is_named_with_the_setting_that_asks_for_it(
    found: dict[str, str], named: str, key: str | None
) -> None:
    problem = settings_problem(found, WANTED)
    assert problem is not None
    assert named in problem.text
    assert problem.key == key


@pytest.mark.parametrize(
    "found",
    [
        {"cleanup.policy": "compact", "min.compaction.lag.ms": "200"},
        {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
    ],
    ids=["compacted", "kept"],
)
def test_a_topic_that_keeps_everything_is_taken(found: dict[str, str]) -> None:
    assert settings_problem(found, WANTED) is None


@dataclass(frozen=True)
class Stamped:
    """A record, as far as it says whose it is, or with a dash before, which job has given it up."""

    uid: str = ""

    def offset(self) -> int:
        return 7

    def headers(self) -> list[tuple[str, bytes]] | None:
        if self.uid.startswith("-"):
            return list(given_up(self.uid[1:])[1].items())
        return [(HEADER, f"{self.uid} 3 9".encode())] if self.uid else None


def owners_after(uids: Sequence[str]) -> Owners:
    owners = Owners(EpochStamp("77aa", 3, 1), ChangelogPartition("topic", 2))
    owners.take(cast("list[Message]", [Stamped(uid) for uid in uids]))
    return owners


@pytest.mark.parametrize("uids", [[], ["77aa"], ["", "77aa", ""]], ids=["none", "own", "some own"])
def test_records_are_a_jobs_own_if_one_says_so(uids: list[str]) -> None:
    owners_after(uids).check()


def test_records_that_say_nothing_are_not_a_jobs_own() -> None:
    with pytest.raises(ConfigError, match="topic=topic partition=2 offset=7 job_uid=unknown"):
        owners_after(["", ""]).check()


@pytest.mark.parametrize("uids", [["90bc"], ["77aa", "90bc"], ["90bc", "77aa"]], ids=str)
def test_records_among_which_one_is_another_jobs_are_not_a_jobs_own(uids: list[str]) -> None:
    with pytest.raises(ConfigError, match="offset=7 job_uid=90bc own_job_uid=77aa"):
        owners_after(uids).check()


def test_of_two_jobs_that_have_given_up_a_changelog_compaction_keeps_both_records() -> None:
    keys = {given_up(uid)[0][0] for uid in ("90bc", "77aa")}
    assert keys == {b"statekeep-given-up 90bc", b"statekeep-given-up 77aa"}


@pytest.mark.parametrize(
    ("uids", "is_free"),
    [
        (["90bc", "", "-90bc"], True),
        (["90bc", "77aa", "-90bc", "77aa"], True),
        (["", "-90bc"], False),
        (["31de", "90bc", "-90bc"], False),
        (["90bc", "-90bc", "90bc"], False),
        (["90bc", "-90bc", ""], False),
    ],
    ids=str,
)
def test_what_a_job_has_given_up_is_default(uids: list[str], is_free: bool) -> None:  # noqa: FBT001 - a case
    owners = owners_after(uids)
    with nullcontext() if is_free else pytest.raises(ConfigError):
        owners.check()
