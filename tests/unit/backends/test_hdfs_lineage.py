"""Which files are loaded: the three examples of SPARK-49374, by their file names, and beyond."""

from collections.abc import Mapping, Sequence

import pytest

from statekeep.backends.hdfs.lineage import LoadPlan, plan_load
from statekeep.backends.hdfs.names import FileKind, FileName, attempt_of, new_file_id
from statekeep.checkpoint.checkpoints import VersionId
from statekeep.errors import BlobNotFoundError, CheckpointCorruptError

LINEAGES = {
    "24_32e3cc2a": ["23_689aa6bd"],
    "23_689aa6bd": ["22_4489578d", "21_f4d05ac9", "20_d8e2ca47"],
    "23_8205c96f": ["22_4489578d", "21_f4d05ac9", "20_d8e2ca47"],
    "22_4489578d": ["21_f4d05ac9", "20_d8e2ca47"],
    "21_f4d05ac9": ["20_d8e2ca47"],
}
DELTAS = [f"{upload}.delta" for upload in LINEAGES]


async def plan(
    wanted: str, files: Sequence[str], lineages: Mapping[str, Sequence[str]] = LINEAGES
) -> LoadPlan:
    async def read_lineage(delta: VersionId) -> Sequence[VersionId]:
        return [VersionId.parse(text) for text in lineages[str(delta)]]

    names = [name for text in files if (name := FileName.parse(text)) is not None]
    assert len(names) == len(files)
    return await plan_load(VersionId.parse(wanted), names, read_lineage)


def shown(plan: LoadPlan) -> list[str]:
    return [str(name) for name in plan.files]


@pytest.mark.asyncio
async def test_example_1_the_snapshot_of_the_version_is_all_that_is_read() -> None:
    files = [*DELTAS, "20_d8e2ca47.snapshot", "23_689aa6bd.snapshot"]
    assert shown(await plan("23_689aa6bd", files)) == ["23_689aa6bd.snapshot"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "late", [[], ["23_8205c96f.snapshot"]], ids=["not yet there", "shown up late"]
)
async def test_example_2_a_snapshot_of_another_attempt_is_ignored(late: list[str]) -> None:
    files = [*DELTAS, "20_d8e2ca47.snapshot", *late]
    assert shown(await plan("23_689aa6bd", files)) == [
        "20_d8e2ca47.snapshot",
        "21_f4d05ac9.delta",
        "22_4489578d.delta",
        "23_689aa6bd.delta",
    ]


@pytest.mark.asyncio
async def test_example_3_a_lineage_that_ends_at_no_snapshot_is_traced_further_back() -> None:
    files = [*DELTAS, "20_d8e2ca47.snapshot", "23_8205c96f.snapshot"]
    assert shown(await plan("24_32e3cc2a", files)) == [
        "20_d8e2ca47.snapshot",
        "21_f4d05ac9.delta",
        "22_4489578d.delta",
        "23_689aa6bd.delta",
        "24_32e3cc2a.delta",
    ]


@pytest.mark.asyncio
async def test_two_attempts_of_one_batch_are_both_complete() -> None:
    files = [*DELTAS, "20_d8e2ca47.snapshot"]
    one, two = [shown(await plan(w, files)) for w in ("23_689aa6bd", "23_8205c96f")]
    assert one[:-1] == two[:-1]
    assert (one[-1], two[-1]) == ("23_689aa6bd.delta", "23_8205c96f.delta")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "lost", ["21_f4d05ac9.delta", "23_689aa6bd.delta", "24_32e3cc2a.delta", "20_d8e2ca47.snapshot"]
)
async def test_a_file_that_is_needed_and_gone_is_named(lost: str) -> None:
    files = {*DELTAS, "20_d8e2ca47.snapshot"} - {lost}
    with pytest.raises(BlobNotFoundError) as raised:
        await plan("24_32e3cc2a", sorted(files))
    assert raised.value.blob_id.partition(".")[0] == lost.partition(".")[0]


@pytest.mark.asyncio
async def test_a_cycle_of_lineages_ends_in_an_error() -> None:
    lineages = {"2_00000002": ["1_00000001"], "1_00000001": ["2_00000002"]}
    with pytest.raises(CheckpointCorruptError, match="cycle"):
        await plan("2_00000002", ["1_00000001.delta", "2_00000002.delta"], lineages)


@pytest.mark.asyncio
async def test_the_lineage_of_a_plan_is_nearest_first_and_ends_at_its_snapshot() -> None:
    found = await plan("22_4489578d", [*DELTAS, "20_d8e2ca47.snapshot"])
    assert [str(upload) for upload in found.lineage] == [
        "22_4489578d",
        "21_f4d05ac9",
        "20_d8e2ca47",
    ]


@pytest.mark.parametrize(
    "text",
    ["", "-1_689aa6bd.delta", "23.delta", "23_689aa6bd", "23_689aa6bd.tmp", ".tmp-1", "x.snapshot"],
)
def test_other_names_are_none_of_ours(text: str) -> None:
    assert FileName.parse(text) is None


def test_an_id_names_its_attempt() -> None:
    upload = new_file_id(7, 3, 258, "0123456789abcdef0123")
    assert str(upload) == "7_00000003000001020123456789abcdef"
    assert attempt_of(upload) == (3, 258)
    assert FileName.parse(f"{upload}.delta") == FileName(upload, FileKind.DELTA)


def test_an_id_of_another_form_has_no_attempt() -> None:
    assert attempt_of(VersionId.parse("23_689aa6bd")) is None
