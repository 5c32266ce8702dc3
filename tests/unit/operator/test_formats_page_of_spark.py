"""The samples in docs/reference/formats.md of what driver, tasks and sidecars tell each other."""

import json
from dataclasses import asdict
from pathlib import Path

from statekeep.checkpoint.serde import decode_checkpoint_v2
from statekeep.spark.sidecar.protocol import SubmitVersion, decode_request, encode
from statekeep.spark.worker.job_spec import Receipt

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "formats.md").read_text()


def sample_below(heading: str) -> str:
    section = PAGE.partition(f"### {heading}\n")[2]
    return section.partition("```json\n")[2].partition("\n```")[0]


def test_the_receipt_has_every_field() -> None:
    sample = sample_below("Receipt")
    assert json.dumps(asdict(Receipt.parse(json.loads(sample)))) == sample


def test_the_submission_is_what_the_code_writes() -> None:
    sample = sample_below("Sidecar socket")
    request = decode_request(sample.encode())
    assert isinstance(request, SubmitVersion)
    assert encode(request) == f"{sample}\n".encode()
    assert not decode_checkpoint_v2(bytes(request.checkpoint), "formats.md").state_markers
