"""One real NameNode with three DataNodes for all tests of this folder."""

from collections.abc import Iterator

import pytest
from servers.hdfs import HdfsCluster, hdfs_cluster
from servers.process import required


@pytest.fixture(scope="session")
def cluster() -> Iterator[HdfsCluster]:
    with required(hdfs_cluster(datanodes=3)) as started:
        yield started
