"""Keeps secrets out of everything that a person or a log reads."""

import re

REDACTED = "***"

_SECRET_NAME = re.compile(
    r"secret|passw|token|key|credential|sas|connection[._-]?string", re.IGNORECASE
)
_USER_INFO = re.compile(r"://.*@", re.DOTALL)
_QUERY = re.compile(r"\?.*", re.DOTALL)


def is_secret_name(name: str) -> bool:
    """Tell whether a setting that we do not define ourselves must be taken for a secret.

    Too wide on purpose: a hidden harmless value costs a look into the file, a shown secret
    costs the secret.
    """
    return _SECRET_NAME.search(name) is not None


def redact(value: str, *, is_secret: bool) -> str:
    """Return ``value`` as it may be shown: hidden if secret, else without a URI's secrets."""
    if is_secret:
        return REDACTED
    if "://" not in value:
        return value
    return _QUERY.sub(f"?{REDACTED}", _USER_INFO.sub(f"://{REDACTED}@", value))
