"""Which failures a query is started again after, how often, and when."""

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import (
    AnalysisException,
    PySparkException,
    PythonException,
    StreamingQueryException,
)

from statekeep.config.load import load_dict
from statekeep.errors import (
    CheckpointCorruptError,
    CheckpointLocationError,
    CommitFailedError,
    ConfigError,
    ReplayDivergedError,
    RestoreFailedError,
    RetriableError,
    StateSchemaError,
    TaskFencedError,
)
from statekeep.spark.restart_policy import RestartPolicy, is_double_write, may_pass
from statekeep.testing.clock import FakeClock

PASSING = RetriableError("no answer")
DOUBLE_WRITE = StreamingQueryException(
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception:"
    " [CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 3."
)
SOURCE_DOUBLE_WRITE = StreamingQueryException(
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception:"
    " Concurrent update to the log. Multiple streaming jobs detected for 3 SQLSTATE: XXKST"
)


LOCATION_DOUBLE_WRITE = StreamingQueryException(
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception:"
    " Multiple streaming queries are concurrently using file:/checkpoint/offsets."
)
FIRST_DOUBLE_WRITE = StreamingQueryException(
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception:"
    " [STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY] The checkpoint location file:/checkpoint/offsets should"
    " be empty on batch 0"
)


def policy_of(clock: FakeClock, **settings: str) -> RestartPolicy:
    named = {f"job.restart.{name.replace('__', '.')}": value for name, value in settings.items()}
    return RestartPolicy(load_dict(named).restart, clock)


def delays(policy: RestartPolicy, count: int) -> list[int | None]:
    found = []
    for _ in range(count):
        found.append(policy.next_delay_ms(PASSING))
        policy.began()
    return found


def test_a_query_is_not_started_again_unless_asked_for() -> None:
    policy = policy_of(FakeClock())
    assert policy.next_delay_ms(PASSING) is None
    assert policy.restarts == 0


@pytest.mark.parametrize("strategy", ["none", "fixed-delay"])
def test_a_query_goes_on_after_the_last_writes_of_an_older_driver(strategy: str) -> None:
    clock = FakeClock()
    policy = policy_of(clock, strategy=strategy, attempts="1", reset__after__ms="60s")
    for _ in range(10):
        assert policy.next_delay_ms(DOUBLE_WRITE) == 0
    if strategy == "none":
        assert policy.next_delay_ms(DOUBLE_WRITE) is None
    clock.advance(60)
    assert policy.next_delay_ms(DOUBLE_WRITE) == 0
    assert policy.restarts == 11


def test_what_only_quotes_a_double_write_is_none() -> None:
    assert is_double_write(DOUBLE_WRITE)
    assert is_double_write(SOURCE_DOUBLE_WRITE)
    assert is_double_write(LOCATION_DOUBLE_WRITE)
    assert is_double_write(FIRST_DOUBLE_WRITE)
    assert not is_double_write(RuntimeError(str(DOUBLE_WRITE)))
    assert not is_double_write(StreamingQueryException("[STREAM_FAILED] no such file"))


def test_a_fixed_delay_is_the_same_before_each_restart() -> None:
    settings = {"strategy": "fixed-delay", "attempts": "3", "backoff__initial__ms": "200"}
    policy = policy_of(FakeClock(), **settings)
    assert delays(policy, 5) == [200, 200, 200, None, None]
    assert policy.restarts == 3


def test_an_exponential_delay_grows_to_its_bound() -> None:
    policy = policy_of(FakeClock(), strategy="exponential-delay")
    assert delays(policy, 11) == [
        *(1_000, 2_000, 4_000, 8_000, 16_000, 32_000),
        *(60_000, 60_000, 60_000, 60_000, None),
    ]


def test_a_large_multiplier_and_many_attempts_stay_within_the_bound() -> None:
    settings = {"backoff__multiplier": "100", "attempts": "2000"}
    policy = policy_of(FakeClock(), strategy="exponential-delay", **settings)
    assert delays(policy, 2_000)[-1] == 60_000


def test_an_initial_delay_above_the_bound_is_cut() -> None:
    settings = {"backoff__initial__ms": "90s", "backoff__max__ms": "5s"}
    policy = policy_of(FakeClock(), strategy="exponential-delay", **settings)
    assert policy.next_delay_ms(PASSING) == 5_000


def test_a_long_run_without_a_failure_begins_all_anew() -> None:
    clock = FakeClock()
    policy = policy_of(clock, strategy="exponential-delay", attempts="2", reset__after__ms="60s")
    assert delays(policy, 3) == [1_000, 2_000, None]
    clock.advance(59.9)
    assert policy.next_delay_ms(PASSING) is None
    clock.advance(0.1)
    assert delays(policy, 3) == [1_000, 2_000, None]
    assert policy.restarts == 4


@pytest.mark.parametrize(
    "error",
    [
        RetriableError("no answer"),
        CommitFailedError("down", checkpoint_id="1", step="upload"),
        RestoreFailedError("down", task_name="Partition 0", store_names=["state"]),
        PySparkException("Job aborted due to stage failure: ExecutorLostFailure"),
        Py4JError("connection refused"),
        ConnectionError("refused"),
        TimeoutError(),
        RuntimeError("of a client of the sink"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_may_pass_is_tried_again(error: Exception) -> None:
    assert may_pass(error)


@pytest.mark.parametrize(
    "error",
    [
        TaskFencedError("replaced", own_epoch=1, newer_epoch=2),
        ConfigError("wrong"),
        CheckpointLocationError("another query's"),
        CheckpointCorruptError("damaged"),
        ReplayDivergedError("purged", task_name="Partition 0", batch=1, keys=""),
        StateSchemaError("not an int"),
        PythonException("of a processor"),
        PySparkException("org.apache.spark.api.python.PythonException: Traceback ..."),
        AnalysisException("no such column"),
        KeyError("a bug"),
        ZeroDivisionError(),
        KeyboardInterrupt(),
    ],
    ids=lambda error: f"{type(error).__name__}-{str(error)[:3]}",
)
def test_what_would_come_again_is_not_tried_again(error: BaseException) -> None:
    assert not may_pass(error)
