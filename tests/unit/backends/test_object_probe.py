"""What a start finds out about an object store, and what it leaves there."""

from dataclasses import dataclass, field

import pytest
from object_store_kit import Failing, ObjectsInMemory
from typing_extensions import override

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.storage.client import ObjectStamps
from statekeep.backends.storage.locations import Location
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.errors import ConfigError, RetriableError
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

ALL_S3 = {
    "uri": "s3://bucket/prefix",
    "s3.server.side.encryption": "aws:kms",
    "s3.storage.class": "STANDARD_IA",
    "s3.tags": "team=a",
    "uncommitted.tags": "state=open",
}
ALL_AZURE = {
    "uri": "az://container/prefix",
    "azure.encryption.scope": "scope",
    "azure.access.tier": "Cool",
    "azure.tags": "team=a",
}


@dataclass
class PickyStore(ObjectsInMemory):
    """Refuses whatever is sent with what one setting adds, or one kind of request."""

    refuses: str = ""
    sends: set[str] = field(default_factory=set[str])

    @override
    def put(self, name: str, data: bytes, stamps: ObjectStamps, *, if_absent: bool) -> None:
        if self.refuses in {*self.sends, "writing"} or (self.refuses == "tags" and stamps.tags):
            raise ConfigError("the object store refuses a request: code=NotImplemented")
        super().put(name, data, stamps, if_absent=if_absent)

    @override
    def begin_parts(self, name: str, stamps: ObjectStamps) -> str:
        if self.refuses == "begin":
            raise ConfigError("access denied")
        return super().begin_parts(name, stamps)

    @override
    def put_part(self, name: str, upload: str, number: int, data: bytes) -> str:
        if self.refuses == "part":
            raise ConfigError("access denied")
        return super().put_part(name, upload, number, data)

    @override
    def _create(self, name: str, data: bytes, *, if_absent: bool) -> None:
        if if_absent and self.refuses == f"conditional {self.requests[-1]}":
            raise ConfigError("the object store refuses a request: code=NotImplemented")
        super()._create(name, data, if_absent=if_absent)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> PickyStore:
    """One store for all clients, each of which sends what its settings say."""
    store = PickyStore()

    def open_client(location: Location) -> PickyStore:
        return PickyStore(
            objects=store.objects,
            uploads=store.uploads,
            names=store.names,
            after=store.after,
            refuses=store.refuses,
            sends=set(location.plainer()),
        )

    monkeypatch.setattr(Location, "open_client", open_client)
    return store


async def start(settings: dict[str, str]) -> None:
    factory = BlobBackendFactory(BackendName("b"), settings)
    admin = factory.admin(SerialExecutor(), FakeClock())
    try:
        await admin.create_resources()
        await admin.validate_resources()
    finally:
        await admin.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("settings", [ALL_S3, ALL_AZURE], ids=["S3", "Azure"])
async def test_a_store_that_takes_everything_is_left_as_it_was(
    store: PickyStore, settings: dict[str, str]
) -> None:
    await start(settings)
    assert (store.objects, store.uploads) == ({}, {})


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        (ALL_S3, "s3.checksum"),
        (ALL_S3, "s3.server.side.encryption"),
        (ALL_S3, "s3.storage.class"),
        (ALL_S3, "s3.tags"),
        (ALL_AZURE, "azure.checksum"),
        (ALL_AZURE, "azure.encryption.scope"),
        (ALL_AZURE, "azure.access.tier"),
        (ALL_AZURE, "azure.tags"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["uri"],
)
async def test_what_is_refused_of_all_that_goes_with_a_blob_is_named(
    store: PickyStore, settings: dict[str, str], refused: str
) -> None:
    store.refuses = refused
    with pytest.raises(ConfigError, match=rf"setting={refused}; hint: ") as caught:
        await start(settings)
    assert caught.value.key == f"backends.b.{refused}"
    assert (store.objects, store.uploads) == ({}, {})


@pytest.mark.asyncio
async def test_a_store_that_refuses_any_blob_is_not_blamed_on_a_setting(store: PickyStore) -> None:
    store.refuses = "writing"
    with pytest.raises(ConfigError, match="code=NotImplemented") as caught:
        await start(ALL_S3)
    assert caught.value.hints == ("writing is denied",)


@pytest.mark.asyncio
@pytest.mark.parametrize("refused", ["begin", "part"])
async def test_a_store_without_uploads_in_parts_is_refused_and_keeps_none(
    store: PickyStore, refused: str
) -> None:
    store.refuses = refused
    with pytest.raises(ConfigError, match=r"refuses an upload in parts.*access denied"):
        await start(ALL_S3)
    assert (store.objects, store.uploads) == ({}, {})


@pytest.mark.asyncio
async def test_an_upload_whose_beginning_got_no_answer_is_dropped_too(store: PickyStore) -> None:
    store.after = Failing("begin", RetriableError("lost"))
    await start(ALL_S3)
    assert len(store.names) == 3  # one with tags, too
    assert (store.objects, store.uploads) == ({}, {})


@pytest.mark.asyncio
async def test_tags_until_a_commit_are_tried_where_they_are_set(store: PickyStore) -> None:
    store.refuses = "tags"
    with pytest.raises(ConfigError, match="refuses tags") as caught:
        await start(ALL_S3)
    assert caught.value.key == "uncommitted.tags"
    await start({key: value for key, value in ALL_S3.items() if key != "uncommitted.tags"})


@pytest.mark.asyncio
@pytest.mark.parametrize("refused", ["conditional put", "conditional complete"])
async def test_what_tags_until_a_commit_need_besides_is_tried_at_the_start(
    store: PickyStore, refused: str
) -> None:
    store.refuses = refused
    with pytest.raises(ConfigError, match="to create a blob only where none is") as caught:
        await start(ALL_S3)
    assert caught.value.key == "uncommitted.tags"
    assert (store.objects, store.uploads) == ({}, {})
    await start({key: value for key, value in ALL_S3.items() if key != "uncommitted.tags"})


@pytest.mark.asyncio
@pytest.mark.parametrize("request_", ["put", "complete"])
async def test_a_probe_that_landed_unheard_is_no_refusal(store: PickyStore, request_: str) -> None:
    store.after = Failing(request_, RetriableError("lost"))
    await start(ALL_S3)
    assert (store.objects, store.uploads) == ({}, {})
