"""Keys: read where they are kept, found by id, and never shown."""

import base64
from collections.abc import Mapping
from pathlib import Path

import pytest
from encoded_kit import KEY_LINE, SECRET
from typing_extensions import override

from statekeep.backends.encryption_keys import (
    EncryptionKey,
    KeyProvider,
    KeyRing,
    load_key_provider,
)
from statekeep.errors import ConfigError, KeyUnavailableError

OLD_LINE = f"2026-10 {base64.b64encode(b'o' * 32).decode()}"
SETTING = "backends.b.encryption.keys"


def ring(text: str) -> KeyRing:
    return KeyRing(lambda: text, "file:/keys")


def test_the_first_key_encrypts_and_every_key_is_found_by_its_id() -> None:
    keys = ring(f"# rotated in November\n\n{KEY_LINE}\n{OLD_LINE}\n")
    assert keys.current() == EncryptionKey("2026-11", SECRET)
    assert keys.find("2026-10").secret == b"o" * 32


def test_a_missing_key_is_named_with_the_source_that_lacks_it() -> None:
    with pytest.raises(KeyUnavailableError, match=r"key_id=2026-09 keys=file:/keys"):
        ring(KEY_LINE).find("2026-09")


@pytest.mark.parametrize(
    "line",
    ["2026-11", "2026-11 AAECAwQFBgc=", f"{KEY_LINE} more", "2026-11 ----"],
    ids=["no key", "too short", "three words", "not base64"],
)
def test_a_line_that_is_no_key_is_named_by_number_and_not_shown(line: str) -> None:
    with pytest.raises(KeyUnavailableError, match=r"line=2") as caught:
        ring(f"{OLD_LINE}\n{line}").current()
    shown = str(caught.value)
    assert not any(word in shown for word in line.split())
    assert caught.value.__cause__ is None


def test_one_id_for_two_keys_is_refused() -> None:
    with pytest.raises(KeyUnavailableError, match="given twice"):
        ring(f"{KEY_LINE}\n{KEY_LINE}").current()


@pytest.mark.parametrize("text", ["", "# nothing\n"], ids=["empty", "comments"])
def test_a_ring_without_a_key_cannot_encrypt(text: str) -> None:
    with pytest.raises(KeyUnavailableError, match="no encryption key"):
        ring(text).current()


def test_a_key_never_shows_its_bytes() -> None:
    assert repr(EncryptionKey("k", SECRET)) == "EncryptionKey(id='k')"
    with pytest.raises(ValueError, match="another length") as caught:
        EncryptionKey("k", b"not long enough")
    assert "not long" not in str(caught.value)


def test_a_file_is_read_anew_so_that_a_rotation_needs_no_restart(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(OLD_LINE)
    keys = load_key_provider(f"file:{path}", {}, key=SETTING)
    assert keys.current().id == "2026-10"
    path.write_text(f"{KEY_LINE}\n{OLD_LINE}")
    assert keys.find("2026-11").secret == SECRET
    assert keys.current().id == "2026-11"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    keys = load_key_provider(f"file://{tmp_path}/none", {}, key=SETTING)
    with pytest.raises(KeyUnavailableError, match=f"keys=file:{tmp_path}/none"):
        keys.current()


def test_a_variable_is_read_and_a_missing_one_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_KEYS", KEY_LINE)
    keys = load_key_provider("env:STATE_KEYS", {}, key=SETTING)
    assert keys.current().secret == SECRET
    monkeypatch.delenv("STATE_KEYS")
    with pytest.raises(KeyUnavailableError, match="keys=env:STATE_KEYS"):
        keys.current()


class OwnKeys(KeyProvider):
    """What a user would write."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._key = EncryptionKey(options["id"], SECRET)

    @override
    def current(self) -> EncryptionKey:
        return self._key

    @override
    def find(self, key_id: str) -> EncryptionKey:
        return self._key


def test_a_class_of_the_users_is_built_with_its_options() -> None:
    keys = load_key_provider(f"{__name__}:OwnKeys", {"id": "own"}, key=SETTING)
    assert keys.current().id == "own"


def test_what_is_no_provider_is_refused_without_showing_the_value() -> None:
    with pytest.raises(ConfigError, match="not a KeyProvider") as caught:
        load_key_provider("statekeep.errors:ConfigError", {}, key=SETTING)
    assert caught.value.key == SETTING


def test_a_key_instead_of_its_location_is_refused_and_not_shown() -> None:
    secret = KEY_LINE.split()[1]
    with pytest.raises(ConfigError, match="not a location of encryption keys") as caught:
        load_key_provider(secret, {}, key=SETTING)
    assert secret not in str(caught.value)
