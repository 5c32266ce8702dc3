"""The index of a snapshot as a tree for people."""

from collections.abc import Iterator, Sequence

from statekeep.backends.blob.index import DirIndex, FileBlob, SnapshotIndex
from statekeep.backends.optional_powers import SnapshotNode
from statekeep.checkpoint.checkpoints import Marker


def describe_index(marker: Marker, index: SnapshotIndex) -> Sequence[SnapshotNode]:
    """Return the image with its files, and the deltas after it."""
    nodes = [
        SnapshotNode(
            "image",
            index.image_bytes(),
            {"version": str(index.image_version or index.version)},
            tuple(_files(index.dir_index, "")),
        )
    ]
    if index.deltas:
        deltas = tuple(
            SnapshotNode(f"{delta.parent} to {delta.version}", delta.size, {"blob": delta.blob_id})
            for delta in index.deltas
        )
        nodes.append(
            SnapshotNode("deltas", index.delta_bytes(), {"version": str(index.version)}, deltas)
        )
    base = index.prev_snapshot_index_blob_id
    facts = {"marker": marker, "base": base} if base else {"marker": marker}
    return [SnapshotNode("index", None, facts), *nodes]


def _files(directory: DirIndex, prefix: str) -> Iterator[SnapshotNode]:
    for file in directory.files_present:
        blobs = [_place(blob) for blob in file.blobs]
        yield SnapshotNode(f"{prefix}{file.file_name}", file.size, {"blobs": blobs})
    for below in directory.sub_dirs_present:
        yield from _files(below, f"{prefix}{below.dir_name}/")


def _place(blob: FileBlob) -> str:
    """Return where a stretch lies; in a packed blob with its range of bytes."""
    if blob.range is None:
        return blob.blob_id
    return f"{blob.blob_id}[{blob.range.start}:{blob.range.start + blob.range.size}]"
