"""A blob backend that says of itself what a changelog says."""

from dataclasses import replace

from statekeep.backends.blob.factory import BlobBackendFactory


class ForgetfulFactory(BlobBackendFactory):
    """Old commits give way to new ones here."""

    properties = replace(BlobBackendFactory.properties, keeps_every_commit=False)
