"""The golden files: what earlier releases wrote, unpacked and as they lie."""

import gzip
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

GOLDEN: Final = Path(__file__).parent / "golden"


def unpack(archive: str, directory: Path) -> None:
    """Unpack a golden archive, named by its path below the golden files, into a directory."""
    with tarfile.open(GOLDEN / archive) as packed:
        # An attribute, not an argument: Python 3.11.0 to 3.11.3 know neither.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(directory)  # noqa: S202 - our own files


def golden_bytes() -> Iterator[tuple[str, bytes]]:
    """Yield every golden file by name, those inside archives one by one."""
    for path in sorted(GOLDEN.rglob("*")):
        name = path.relative_to(GOLDEN).as_posix()
        if path.suffix == ".gz":
            with tarfile.open(fileobj=io.BytesIO(gzip.decompress(path.read_bytes()))) as packed:
                for member in packed:
                    content = packed.extractfile(member)
                    if content is not None:
                        yield f"{name}:{member.name}", content.read()
        elif path.suffix == ".hex":
            yield name, bytes.fromhex(path.read_text(encoding="ascii"))
        elif path.is_file():
            yield name, path.read_bytes()
