"""Servers of the blob tests: each is started once, by the first test that needs it."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import boto3
import pytest
from azure.storage.blob import ContainerClient
from servers.azurite import AzureServer, azurite
from servers.buckets import AzureBucket, Bucket, S3Bucket
from servers.gcs import GcsServer, gcs_emulator
from servers.process import required
from servers.seaweedfs import S3Server, seaweedfs
from servers.sftp import SftpServer, sftp_server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with required(seaweedfs()) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "statekeep")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield server


@pytest.fixture
def mortal_s3_server(s3_server: S3Server) -> Iterator[S3Server]:
    """One to be killed, that no other test has; ``s3_server`` has set the environment."""
    with required(seaweedfs()) as server:
        yield server


@pytest.fixture
def mortal_s3_bucket(mortal_s3_server: S3Server) -> str:
    with closing(boto3.client("s3", endpoint_url=mortal_s3_server.endpoint)) as api:
        return _new_bucket(api)


@pytest.fixture(scope="session")
def s3_api(s3_server: S3Server) -> Iterator[Any]:
    """The SDK itself: to look at a bucket without the code under test."""
    client = boto3.client("s3", endpoint_url=s3_server.endpoint)
    yield client
    client.close()


@pytest.fixture(scope="session")
def s3_bucket(s3_api: Any) -> str:
    """A bucket of this run: tests keep apart by prefix."""
    return _new_bucket(s3_api)


@pytest.fixture(scope="session")
def s3_other_bucket(s3_api: Any) -> str:
    return _new_bucket(s3_api)


def _new_bucket(s3_api: Any) -> str:
    name = f"statekeep-{uuid.uuid4().hex}"
    s3_api.create_bucket(Bucket=name)
    return name


@pytest.fixture(scope="session")
def azure_server() -> Iterator[AzureServer]:
    with required(azurite()) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURE_STORAGE_CONNECTION_STRING", server.connection_string)
        yield server


@pytest.fixture(scope="session")
def azure_container(azure_server: AzureServer) -> Iterator[ContainerClient]:
    """A container of this run, by the SDK itself: tests keep apart by prefix."""
    name = f"statekeep-{uuid.uuid4().hex}"
    with ContainerClient.from_connection_string(azure_server.connection_string, name) as client:
        client.create_container()
        yield client


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServer]:
    with required(gcs_emulator("statekeep")) as server:
        yield server


@pytest.fixture
def gcs_server_without_conditions() -> Iterator[GcsServer]:
    """One that overwrites where it was asked to create."""
    with required(gcs_emulator("statekeep", has_conditions=False)) as server:
        yield server


@pytest.fixture(params=["s3", "azure"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    if request.param == "azure":
        return AzureBucket(request.getfixturevalue("azure_container"))
    server: S3Server = request.getfixturevalue("s3_server")
    api = request.getfixturevalue("s3_api")
    return S3Bucket(api, request.getfixturevalue("s3_bucket"), server.endpoint)


@pytest.fixture(scope="session")
def sftp() -> Iterator[SftpServer]:
    with required(sftp_server()) as server, pytest.MonkeyPatch.context() as patch:
        patch.delenv("SSH_AUTH_SOCK", raising=False)  # an agent's keys would be offered first
        yield server
