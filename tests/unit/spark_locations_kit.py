"""Checkpoint locations as Spark 4.3.0 wrote them, one for each form of state."""

import tarfile
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden" / "spark-locations"
FORMS = sorted(path.name.removesuffix(".tar.gz") for path in GOLDEN.glob("*.tar.gz"))


def unpack_location(form: str, target: Path) -> Path:
    """Unpack a location; its query had five batches, 0 to 4, and two partitions."""
    with tarfile.open(GOLDEN / f"{form}.tar.gz") as archive:
        archive.extractall(target, filter="data")
    return target / form


def flip(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    """Cut the second half of a file off."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def without_hadoop(location: Path) -> None:
    """Remove what Hadoop has beside files on a local disk only: an object store has none of it."""
    for path in list(location.rglob(".*.crc")):
        path.unlink()
