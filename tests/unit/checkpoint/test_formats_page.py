import re
from pathlib import Path

from statekeep.checkpoint.framing import unframe
from statekeep.checkpoint.records import decode_record
from statekeep.checkpoint.serde import (
    decode_attempt_entry,
    decode_checkpoint_v1,
    decode_checkpoint_v2,
)

PAGE = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()
FRAMES = re.findall(r"```text\n(statekeep 1 .*?)\n```", PAGE, re.DOTALL)


def sample_below(heading: str) -> bytes:
    section = PAGE.partition(f"\n## {heading}\n")[2]
    return section.partition("```json\n")[2].partition("\n```")[0].encode()


def test_every_framed_sample_can_be_read() -> None:
    kinds: set[str] = set()
    for text in FRAMES:
        framed = unframe(text.encode(), where="formats.md")
        is_entry = framed.kind in {"finished-task", "failed-task"}
        (decode_attempt_entry if is_entry else decode_record)(text.encode(), where="formats.md")
        kinds.add(framed.kind)

    assert kinds == {
        *("epoch", "base", "batch", "attempt", "commit", "void"),
        *("release", "pin", "unpin", "bad-marker", "finished-task", "failed-task"),
    }


def test_every_checkpoint_sample_can_be_read() -> None:
    assert decode_checkpoint_v2(sample_below("CheckpointV2"), "formats.md").input_offsets
    assert decode_checkpoint_v1(sample_below("CheckpointV1"), "formats.md").input_offsets
