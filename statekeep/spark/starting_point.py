"""Where a stopped job's newest commit stands in its input: to start a new query from."""

from collections.abc import Mapping
from dataclasses import dataclass

from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.job import open_job
from statekeep.spark.driver.commit_records import starting_offsets
from statekeep.spark.driver.first_start import offsets_to_start_from
from statekeep.spark.given_settings import Settings, read_settings
from statekeep.spark.own_loop import run_apart


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """A commit and the input that its state has taken in."""

    checkpoint_id: str
    """For the setting ``job.start.from.checkpoint``."""
    input_offsets: Mapping[SystemStreamPartition, str]
    """The last offset read of each partition of a topic; "-1" where nothing was read yet."""

    def kafka_offsets(self, *topics: str) -> str:
        """Return what the option ``startingOffsets`` of Spark's Kafka source takes to go on.

        Args:
            topics: Those that the source reads: it takes offsets of no other. None named: all of
                the query, for its only source.

        Raises:
            ConfigError: The query did not read one of them.
        """
        known = {ssp.stream for ssp in self.input_offsets}
        unknown = sorted(set(topics) - known)
        if unknown:
            raise ConfigError(
                "the query has not read these topics: "
                f"topics={','.join(unknown)} read={','.join(sorted(known))}"
            )
        wanted = topics or known
        return starting_offsets(
            {ssp: last for ssp, last in self.input_offsets.items() if ssp.stream in wanted}
        )


def find_starting_point(settings: Settings) -> StartingPoint:
    """Return where the newest commit of a job stands. The job should have stopped.

    Args:
        settings: Names the job and its backends, as the query has them.

    Raises:
        ConfigError: There is no such job, it has no commit, or its newest one does not say exactly
            which records of which topics its state has taken in.
        CheckpointCorruptError: The commit cannot be read.
        RetriableError: The storage of the job log may answer later.
    """
    return run_apart(_find(read_settings(settings)))


async def _find(config: Config) -> StartingPoint:
    async with open_job(config, SystemClock()) as job:
        _, commit = job.find_commit()
    return StartingPoint(commit.checkpoint_id, offsets_to_start_from(commit))
