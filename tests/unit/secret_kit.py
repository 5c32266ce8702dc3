"""What clients of stores put into the texts of their errors, with secrets in it."""

from typing import Final

SECRET: Final = "Zq9hunter2"  # noqa: S105
TEXTS: Final = (
    f"PUT https://me:{SECRET}@s3.host/bucket: 503",
    f"PUT https://s3.host/bucket/key?X-Amz-Credential=AKIA&X-Amz-Signature={SECRET} failed",
    f"PUT /bucket/key?X-Amz-Security-Token={SECRET}&X-Amz-Signature={SECRET} failed",
    f"https://a.blob.core.windows.net/c/b?sv=2024&sig={SECRET} was refused",
    f"no such user: secret_key={SECRET}",
)
