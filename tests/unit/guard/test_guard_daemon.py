"""``statekeep guard run`` without ``--once``: a copy after each batch, until it is ended."""

import asyncio
import logging
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Never

import pytest
from guard_kit import Guard, daemon

from statekeep.cli.exit_status import ExitStatus
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.errors import RetriableError, TaskFencedError
from statekeep.guarding import copy_commit
from statekeep.guarding.continuous_copies import keep_copying
from statekeep.guarding.copying import Copied, Copies, OtherQueryError, open_copies


class EndOfTestError(Exception):
    """Ends a daemon that has done all that was wanted."""


def opened(guard: Guard) -> AbstractAsyncContextManager[Copies]:
    settings = {
        "job.name": "guarded",
        "blob.store.uri": guard.copies.as_uri(),
        "stores.backup.factories": "blob",
    }
    return open_copies(
        load_dict(settings), str(guard.location), SystemClock(), owner="test", may_wait=True
    )


async def keep(guard: Guard, copies: Copies, steps: Sequence[Callable[[], object]]) -> list[Copied]:
    """Run the daemon; each step is made in one pause, and after the last one it ends."""
    made: list[Copied] = []
    waiting = iter(steps)

    async def pause() -> None:
        step = next(waiting, None)
        if step is None:
            raise EndOfTestError
        step()

    directory = guard.root / "new-files"
    directory.mkdir(exist_ok=True)
    with pytest.raises(EndOfTestError):
        await keep_copying(copies, directory, pause=pause, on_copy=made.append)
    assert list(directory.iterdir()) == []
    return made


def nothing() -> None:
    """Let the daemon look again."""


@pytest.mark.asyncio
async def test_a_copy_is_made_after_each_batch_and_none_in_between(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, tries = Copies.copy, list[Path]()

    async def count(copies: Copies, directory: Path) -> Copied:
        tries.append(directory)
        return await copy(copies, directory)

    monkeypatch.setattr(Copies, "copy", count)
    guard.commit_until(1)
    async with opened(guard) as copies:
        made = await keep(
            guard,
            copies,
            [nothing, lambda: guard.commit_until(2), nothing, lambda: guard.commit_until(4)],
        )
    assert [one.batch for one in made] == [1, 2, 4]
    assert len(tries) == len(made)


@pytest.mark.asyncio
async def test_it_waits_for_a_query_that_has_not_begun(
    guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    begun = guard.location.rename(guard.root / "begun")
    async with opened(guard) as copies:
        made = await keep(guard, copies, [nothing, nothing, lambda: begun.rename(guard.location)])
    assert [one.batch for one in made] == [4]
    told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 2
    assert "the query has committed no batch" in told[0]
    assert "copies are made again" in told[1]


@pytest.mark.asyncio
async def test_an_outage_is_logged_once_and_over_when_a_copy_is_made(
    guard: Guard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> Never:
        raise RetriableError("the service does not answer")

    guard.commit_until(2)
    async with opened(guard) as copies:
        made = await keep(
            guard,
            copies,
            [
                lambda: monkeypatch.setattr(copy_commit, "encode_checkpoint_v2", fail),
                lambda: guard.commit_until(3),
                nothing,
                lambda: guard.commit_until(4),
                monkeypatch.undo,
            ],
        )
    assert [one.batch for one in made] == [2, 4]
    told = [
        record.message for record in caplog.records if "no copy could be made" in record.message
    ]
    assert len(told) == 1
    assert "the service does not answer" in told[0]
    new = guard.root / "new"
    restored = await asyncio.to_thread(guard.restore, new, "", "--as guarded")
    assert restored.json == {"batch": 4}


@pytest.mark.asyncio
async def test_damage_is_logged_once_and_a_later_batch_is_copied(
    guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    guard.commit_until(2)
    lost = guard.location / "state/0/1/4.delta"
    async with opened(guard) as copies:
        made = await keep(
            guard,
            copies,
            [
                lost.unlink,
                lambda: guard.commit_until(3),
                nothing,
                nothing,
                lambda: shutil.copy(guard.full / "state/0/1/4.delta", lost),
            ],
        )
    assert [one.batch for one in made] == [2, 3]
    told = [record.message for record in caplog.records if "4.delta" in record.message]
    assert len(told) == 2  # what is damaged, and that there is no copy


@pytest.mark.asyncio
async def test_the_guard_that_began_last_is_the_one(guard: Guard) -> None:
    guard.commit_until(2)
    async with opened(guard) as first, opened(guard) as second:
        made = await keep(guard, second, [])
        assert [one.batch for one in made] == [2]
        guard.commit_until(4)
        with pytest.raises(TaskFencedError):
            await keep(guard, first, [nothing])


@pytest.mark.asyncio
async def test_a_guard_of_another_location_does_not_take_the_copies_over(guard: Guard) -> None:
    guard.commit_until(2)
    async with opened(guard) as copies:
        assert (await copies.copy(guard.root / "first")).batch == 2
        own = guard.location.rename(guard.root / "own")
        shutil.copytree(guard.full, guard.location)
        (guard.location / "metadata").write_text('{"id":"another"}')
        (guard.location / ".metadata.crc").unlink()
        refused = await asyncio.to_thread(guard.run, "--as guarded")
        assert refused.status == ExitStatus.REFUSED
        assert "the copies are of another query" in refused.err
        shutil.rmtree(guard.location)
        own.rename(guard.location)
        guard.commit_until(4)
        assert (await copies.copy(guard.root / "second")).batch == 4


@pytest.mark.asyncio
async def test_a_location_that_was_begun_anew_ends_the_guard(guard: Guard) -> None:
    def begin_anew() -> None:
        (guard.location / "metadata").write_text('{"id":"another"}')
        (guard.location / ".metadata.crc").unlink()
        guard.commit_until(4)

    guard.commit_until(2)
    async with opened(guard) as copies:
        with pytest.raises(OtherQueryError):
            await keep(guard, copies, [begin_anew, nothing])


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_the_command_copies_until_a_signal(guard: Guard, end: signal.Signals) -> None:
    guard.commit_until(2)
    line = ["guard", "run", str(guard.location), "--to", guard.copies.as_uri(), "--every", "20ms"]
    with daemon(line, end) as copied:
        assert "batch 2 is copied" in copied.readline()
        guard.commit_until(4)
        assert "batch" in copied.readline()
    assert guard.restore(guard.root / "new").json["batch"] in {3, 4}


@pytest.mark.parametrize("every", ["0", "soon"])
def test_the_wait_is_a_duration(guard: Guard, every: str) -> None:
    line = f"guard run {guard.location} --to {guard.copies.as_uri()} --every {every}"
    result = guard._run(line, has_config=False)
    assert result.status == ExitStatus.USAGE
    assert "--every must be" in result.err
