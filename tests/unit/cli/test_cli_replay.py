"""``statekeep replay``: what people see of a batch that ran again, and what is refused."""

import json

import pyarrow as pa
import pytest
from cli_kit import CommandLine

from statekeep.cli.replay import print_replayed
from statekeep.spark.batch_replay.result import Difference, ReplayedBatch
from statekeep.spark.batch_replay.trace import TIMERS, KeyTrace, Step

DIFFERENCE = Difference(3, 1, "output_digest", "ab" * 32, "cd" * 32, "('user-7',)..('user-9',)")


def again(*traces: KeyTrace, differs: bool = False, untraced: int = 0) -> ReplayedBatch:
    return ReplayedBatch(
        job_name="totals",
        batch=3,
        commit_batch=1,
        tasks=[1],
        keys=traces,
        untraced=untraced,
        output=pa.table({"n": [1, 2]}),
        expired_values=4,
        late_rows=5,
        differences=[DIFFERENCE] if differs else [],
    )


def trace(key: str = "user-7") -> KeyTrace:
    steps = [
        Step("total", "get", {"n": 1}, {"n": 1}),
        Step("total", "update", {"n": 1}, {"n": 2}),
        Step("seen", "updateValue", None, {"d": "x" * 200}, {"k": "a"}),
        Step("seen", "removeKey", {"d": "x"}, None, {"k": "b"}),
        Step(TIMERS, "registerTimer", None, 1000),
    ]
    return KeyTrace((key, 1), 1, [{"id": key, "v": 1}], steps, [{"id": key, "n": 2}])


def test_each_key_is_shown_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    print_replayed(again(trace()), is_full=False)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 100
    cells = [line.split(maxsplit=4) for line in lines]
    assert cells[0] == ["key", "what", "variable", "before", "after"]
    assert lines[1].split()[:3] == ["user-7,1", "row", "in"]
    assert lines[2].split() == ["get", "total", '{"n":', "1}", "same"]
    assert lines[3].split() == ["update", "total", '{"n":', "1}", '{"n":', "2}"]
    assert lines[4].split()[:3] == ["updateValue", "seen[a]", "-"]
    assert lines[5].split() == ["removeKey", "seen[b]", '{"d":', '"x"}', "-"]
    assert lines[6].split() == ["registerTimer", "timers", "-", "1000"]
    assert lines[-2:] == [
        "batch 3 from the commit of batch 1: tasks 1, rows out 2, late 5, expired 4",
        "as recorded",
    ]
    print_replayed(again(trace()), is_full=True)
    assert "x" * 200 in capsys.readouterr().out


def test_many_lines_are_cut_and_what_is_left_out_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    many = [trace(f"user-{number}") for number in range(20)]
    print_replayed(again(*many, untraced=7), is_full=False)
    said = capsys.readouterr().out
    assert "the first 100 of 140 lines; --full or --json shows all" in said
    assert "not shown: 7 calls for further keys; --key shows one of them" in said
    assert "user-19" not in said
    print_replayed(again(*many), is_full=True)
    assert "user-19" in capsys.readouterr().out


def test_what_differs_from_the_record_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_replayed(again(differs=True), is_full=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == "no key was processed"
    assert lines[-3].split()[:4] == ["batch", "task", "differs", "recorded"]
    assert lines[-2].split()[:3] == ["3", "1", "output_digest"]
    assert lines[-1].startswith("not as recorded")
    shown = again(trace(), differs=True).as_json()
    assert json.loads(json.dumps(shown)) == shown
    assert shown["differences"][0]["what"] == "output_digest"
    assert shown["keys"][0]["steps"][1] == {
        "variable": "total",
        "operation": "update",
        "before": {"n": 1},
        "after": {"n": 2},
        "map_key": None,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--program job", "no function is named: program=job"),
        ("--program json:nothing", "the module has no such function: program=json:nothing"),
        ("--program json:dumps --spark-set x", "no setting of Spark: --spark-set x"),
    ],
)
def test_a_wrong_option_is_refused(statekeep: CommandLine, options: str, message: str) -> None:
    done = statekeep(f"replay --batch 1 {options}", has_config=False)
    assert done.status == 2
    assert message in done.err
