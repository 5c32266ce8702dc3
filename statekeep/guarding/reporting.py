"""What happens to the copies of a location: to the listeners of the settings, and beside their log."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from statekeep.checkpoint.error_summary import report_end
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.container.task_events import TaskEvents
from statekeep.events import JobStarted, Report
from statekeep.guarding.catalog import CATALOG_STORE, FILES_STORE
from statekeep.inspection.job import LogStorage
from statekeep.metrics.listeners import load_listeners
from statekeep.reporter import ListenerThread, Reporter, RequestCounter


class CopyReporter:
    """Reports the events of copies as a job reports those of its commits; on one event loop."""

    def __init__(self, config: Config, clock: Clock) -> None:
        """Make the listeners that the settings name; nothing is written yet.

        Raises:
            ConfigError: A listener is unknown or cannot be made.
        """
        self._config = config
        self._events = TaskEvents(config.job, clock)
        counter = RequestCounter()
        made = load_listeners(config)
        self._listeners = ListenerThread(made) if made else None
        reporter = Reporter(
            clock, config.job.name, parts=[counter, self._events], listeners=self._listeners
        )
        counter.report_to(reporter.report)
        self.report: Report = reporter.report
        """Of any thread."""

    @asynccontextmanager
    async def session(self, storage: LogStorage, log: LogSession) -> AsyncGenerator[None]:
        """Write events down from now on, until the end of the block, which is reported too.

        Args:
            storage: Where the log is.
            log: That was taken over.
        """
        self._events.begin(log.epoch, storage.checkpoint_store())
        view = log.view
        newest = -1 if view.last_commit is None else view.last_commit.batch
        stores = [self._config.store(store) for store in (FILES_STORE, CATALOG_STORE)]
        backends = list(dict.fromkeys(name for s in stores for name in s.backup_factories))
        self.report(
            JobStarted(
                partitions=1,
                stores={MAIN_OPERATOR: [FILES_STORE, CATALOG_STORE]},
                backends=backends,
                log_backend=storage.log_backend,
                commit_position=view.last_commit_position,
                committed=newest,
                head=newest,
                limits=[],
                epoch=log.epoch,
            )
        )
        error: BaseException | None = None
        try:
            yield
        except BaseException as exc:
            error = exc if isinstance(exc, Exception) else None  # else it was asked to end
            raise
        finally:
            newest = -1 if view.last_commit is None else view.last_commit.batch
            report_end(self.report, error, committed=newest, head=newest)
            await self._events.end()

    def close(self) -> None:
        """End the listeners."""
        if self._listeners is not None:
            self._listeners.close()
