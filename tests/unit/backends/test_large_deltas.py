"""Changes that are more than one part: stored as a file, or as the pieces of a stream."""

import random
from pathlib import Path
from unittest.mock import patch

import pytest
from increments_kit import IncrementJob, folded

from statekeep.backends.storage.memory import forget_root


def values(count: int, seed: int) -> dict[bytes, bytes]:
    """Return keys with values that cannot be compressed."""
    draw = random.Random(seed)
    return {b"%05d" % number: draw.randbytes(2000) for number in range(count)}


@pytest.mark.asyncio
@pytest.mark.parametrize("form", [{}, {"compression": "zstd"}], ids=["plain", "compressed"])
async def test_a_delta_above_the_size_of_a_part_is_stored_and_restored(
    tmp_path: Path, form: dict[str, str]
) -> None:
    job = IncrementJob(tmp_path, settings={"part.bytes": "1MiB", **form})
    await job.manager.init()
    base, changes = values(4000, seed=1), values(600, seed=2)
    first = await job.commit(job.seal(None, base))
    with patch("statekeep.backends.blob.settings._FREE_DELTA_BYTES", 100 << 20):
        second = await job.commit(job.seal(first.version, changes))
    (delta,) = second.index.deltas
    assert delta.size > 1 << 20
    assert (len(delta.blobs) > 1) == bool(form)
    content, _ = await job.restore(second.checkpoint)
    assert content == folded(base, changes)
    job.release(0)
    await job.clean_up()
    await job.check_ledger()
    forget_root(str(tmp_path))
