"""What the Kafka page says to do about state that expires."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.stores.memory import MemoryStore

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "kafka.md"
HOUR = 3600


def code_of_the_page() -> dict[str, Any]:
    (section,) = re.findall(
        r"## State that expires\n.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(section, names)  # noqa: S102 - the page's own code
    return names


def test_keys_are_gone_in_the_hour_after_their_time_and_no_other(tmp_path: Path) -> None:
    stores = {
        name: MemoryStore(StoreName(name), tmp_path, is_new=True) for name in ("state", "expiry")
    }
    task = SimpleNamespace(store=stores.__getitem__)
    page = code_of_the_page()
    put, delete_expired = page["put"], page["delete_expired"]
    put(task, b"short", b"1", HOUR)
    put(task, b"renewed", b"1", HOUR)
    put(task, b"long", b"1", 5 * HOUR)
    put(task, b"renewed", b"2", 3 * HOUR)
    kept = []
    for hour in range(8):
        delete_expired(task, hour * HOUR)
        kept.append([key for key, _ in stores["state"].scan()])
    every = [b"long", b"renewed", b"short"]
    assert kept == [
        *2 * [every],
        *2 * [[b"long", b"renewed"]],
        *2 * [[b"long"]],
        *2 * [[]],
    ]
    assert list(stores["expiry"].scan()) == []
