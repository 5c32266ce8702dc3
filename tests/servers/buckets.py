"""Places in object stores, looked at by the SDKs alone, without the code under test."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from azure.storage.blob import ContainerClient
from typing_extensions import override


class Bucket(Protocol):
    """A place below a prefix, looked at without the code under test."""

    settings: Mapping[str, str]

    def names(self) -> list[str]: ...

    def read(self, name: str) -> bytes: ...

    def delete(self, name: str) -> None: ...

    def tags(self, name: str) -> Mapping[str, str]: ...

    def unfinished(self) -> list[str]:
        """Return what uploads in parts that are under way, or were given up, are to become."""
        ...


@dataclass
class S3Bucket(Bucket):
    api: Any
    bucket: str
    endpoint: str
    prefix: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        uri = f"s3://{self.bucket}/{self.prefix}"
        self.settings = {"uri": uri, "s3.endpoint": self.endpoint}

    @override
    def names(self) -> list[str]:
        pages = self.api.get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=self.bucket, Prefix=f"{self.prefix}/")
        return [entry["Key"] for page in found for entry in page.get("Contents", ())]

    @override
    def read(self, name: str) -> bytes:
        with self.api.get_object(Bucket=self.bucket, Key=name)["Body"] as body:
            content: bytes = body.read()
        return content

    @override
    def delete(self, name: str) -> None:
        self.api.delete_object(Bucket=self.bucket, Key=name)

    @override
    def tags(self, name: str) -> Mapping[str, str]:
        found = self.api.get_object_tagging(Bucket=self.bucket, Key=name)["TagSet"]
        return {tag["Key"]: tag["Value"] for tag in found}

    @override
    def unfinished(self) -> list[str]:
        found = self.api.list_multipart_uploads(Bucket=self.bucket, Prefix=f"{self.prefix}/")
        return [entry["Key"] for entry in found.get("Uploads", ())]


@dataclass
class AzureBucket(Bucket):
    container: ContainerClient
    prefix: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.settings = {"uri": f"az://{self.container.container_name}/{self.prefix}"}

    @override
    def names(self) -> list[str]:
        return list(self.container.list_blob_names(name_starts_with=f"{self.prefix}/"))

    @override
    def read(self, name: str) -> bytes:
        content: bytes = self.container.download_blob(name).readall()
        return content

    @override
    def delete(self, name: str) -> None:
        self.container.delete_blob(name)

    @override
    def tags(self, name: str) -> Mapping[str, str]:
        return self.container.get_blob_client(name).get_blob_tags()

    @override
    def unfinished(self) -> list[str]:
        return []  # the service drops by itself what no blob was made of
