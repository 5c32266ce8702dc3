"""Between checkpoints with markers and those of form 1, whose changelog offsets stand among inputs.

Source: Samza 1.8 ``KafkaChangelogSSPOffset``: the offset of a changelog is ``<checkpoint id>:<offset>``,
with ``null`` for one that nothing was written to.
"""

from typing import Final

from statekeep.backends.kafka.marker import ChangelogMarker
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointV1,
    CheckpointV2,
    Marker,
    StoreName,
    SystemStreamPartition,
)
from statekeep.errors import CheckpointCorruptError

_NOTHING: Final = "null"


def to_v1(checkpoint: CheckpointV2, backend: BackendName) -> CheckpointV1:
    """Return what form 1 can hold: input offsets, and where the changelogs end.

    Their system is the backend's name, as ``stores.<store>.changelog`` has it.
    """
    offsets: dict[SystemStreamPartition, str | None] = dict(checkpoint.input_offsets)
    for marker in checkpoint.markers_of(backend).values():
        at = ChangelogMarker.decode(marker)
        end = _NOTHING if at.offset is None else str(at.offset)
        ssp = SystemStreamPartition(backend, at.topic, at.partition)
        offsets[ssp] = f"{checkpoint.checkpoint_id.serialize()}:{end}"
    return CheckpointV1(offsets)


def from_v1(
    checkpoint: CheckpointV1, written_ms: int, settings: KafkaSettings, backend: BackendName
) -> CheckpointV2:
    """Return the same in form 2; the changelogs are those that the settings name.

    Args:
        checkpoint: As read.
        written_ms: Stands in for the id where no changelog tells it.
        settings: Name the changelogs of the stores.
        backend: Name under which the markers are to stand.

    Raises:
        CheckpointCorruptError: The offset of a changelog is none.
        ConfigError: Two stores name one changelog.
    """
    stores = settings.stores_by_changelog(backend)
    checkpoint_id = CheckpointId(max(written_ms, 0), 0)  # below 0: the record has no time
    inputs: dict[SystemStreamPartition, str] = {}
    markers: dict[StoreName, Marker] = {}
    for ssp, text in checkpoint.input_offsets.items():
        store = stores.get(ssp.stream)
        if store is None:
            if text is not None:
                inputs[ssp] = text
            continue
        written_id, offset = _parse(ssp, text)
        checkpoint_id = written_id or checkpoint_id
        markers[store] = ChangelogMarker(ssp.stream, ssp.partition, offset).encode(ssp.system)
    return CheckpointV2(checkpoint_id, inputs, {backend: markers} if markers else {})


def _parse(ssp: SystemStreamPartition, text: str | None) -> tuple[CheckpointId | None, int | None]:
    """Read ``<checkpoint id>:<offset>``, or a bare offset as older jobs have it."""
    written_id, _, offset = (_NOTHING if text is None else text).rpartition(":")
    try:
        return (
            CheckpointId.parse(written_id) if written_id else None,
            None if offset == _NOTHING else int(offset),
        )
    except ValueError as exc:
        msg = f"not an offset of a changelog: ssp={ssp} offset={text!r}"
        raise CheckpointCorruptError(msg) from exc
