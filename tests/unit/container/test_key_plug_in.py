"""Encryption with keys from a class of the user's, named in the configuration."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from encoded_kit import SECRET, place_of, read_stream
from typing_extensions import override

from statekeep.backends.blob.names import is_index
from statekeep.backends.encryption_keys import EncryptionKey, KeyProvider
from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container

INPUT = SystemStreamPartition("gen", "numbers", 0)
WRITTEN = {b"%03d" % number: b"a customer's secret" for number in range(500)}


class Vault(KeyProvider):
    """A user's provider: its options say which folder holds the keys, and which of them encrypts."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._folder = Path(options["folder"])
        self._current = options["current.key"]

    @override
    def current(self) -> EncryptionKey:
        return self.find(self._current)

    @override
    def find(self, key_id: str) -> EncryptionKey:
        return EncryptionKey(key_id, (self._folder / key_id).read_bytes())


def job(root: Path, current_key: str) -> Config:
    return load_dict(
        {
            "job.name": "job",
            "job.logged.store.base.dir": root / "local",
            "stores.backup.factories": "far",
            "backends.far.factory": "blob",
            "backends.far.uri": (root / "place").as_uri(),
            "backends.far.encryption": "aes-256-gcm",
            "backends.far.encryption.keys": f"{__name__}:Vault",
            "backends.far.encryption.options.folder": root,
            "backends.far.encryption.options.current.key": current_key,
        }
    )


@pytest.mark.asyncio
async def test_keys_of_a_plug_in_encrypt_and_decrypt_and_their_id_is_in_the_index(
    tmp_path: Path,
) -> None:
    (tmp_path / "2026-11").write_bytes(SECRET)
    (tmp_path / "2026-12").write_bytes(SECRET[::-1])
    async with Container(job(tmp_path, "2026-11")) as container:
        task = await container.start_task("Partition 0", ["s"])
        for key, value in WRITTEN.items():
            task.store("s").put(key, value)
        await (await task.commit({INPUT: "7"}, force=True)).wait()
    place = tmp_path / "place"
    [index] = [path for path in place.rglob("*") if is_index(str(path.relative_to(place)))]
    present = json.loads(read_stream(index.read_bytes(), place_of(str(index))))
    files = present["dir-index"]["files-present"]
    forms = [file["stored-form"] for file in files if file["blobs"]]
    assert forms
    assert all(form["key-id"] == "2026-11" for form in forms)
    shutil.rmtree(tmp_path / "local")
    async with Container(job(tmp_path, "2026-12")) as container:
        task = await container.start_task("Partition 0", ["s"])
        assert task.restored.sources == {"s": "far"}
        assert dict(task.store("s").scan()) == WRITTEN
