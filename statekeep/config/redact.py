"""Keeps secrets out of everything that a person or a log reads."""

import re
from typing import Final

REDACTED: Final = "***"

_SECRET_NAME: Final = re.compile(
    "secret|passw|passphrase|pwd|token|key|credential|auth|jaas|signature|pem|bearer|cookie|dsn"
    "|connection[._-]?string|(?<![a-z])(?:pass|pin|sas|sig)(?![a-z])",
    re.IGNORECASE,
)
_HARMLESS_NAME: Final = re.compile(
    "(?<![a-z])(?:bucket|bytes|codec|compression|count|dir|directory|enabled|endpoint|factory|host|hosts"
    "|id|interval|level|location|mechanism|mechanisms|millis|mode|ms|path|port|prefix|protocol|ratio"
    "|region|replicas|retries|root|scheme|servers|size|threads|timeout|topic|type|uri|url|version)\\Z",
    re.IGNORECASE,
)
"""What a setting of a kind that is not ours may end with, to be shown."""

_USER_INFO: Final = re.compile(r"://.*@", re.DOTALL)
_QUERY: Final = re.compile(r"\?.*", re.DOTALL)
_BARE_USER_INFO: Final = re.compile(r"[^\s=]*:\S*@")
_PAIR: Final = re.compile(
    r"((?:passw|passphrase|pwd|secret|jaas|signature|(?:account|access|shared|api|private)[\w.-]*key"
    r"|\b(?:pin|sig|sas)\b)[\w.-]*[\"']?\s*[=:]\s*)(?:\"[^\"]*\"|'[^']*'|[^\s,;&]+)",
    re.IGNORECASE,
)
"""``password=...`` and the like, as errors and connection strings have them."""


def is_secret_name(name: str) -> bool:
    """Tell whether a name says that its value is a secret.

    Too wide on purpose: a hidden harmless value costs a look into the file, a shown secret
    costs the secret.
    """
    return _SECRET_NAME.search(name) is not None


def may_be_secret(name: str) -> bool:
    """Tell whether a setting of a kind that is not ours must be taken for a secret.

    It must unless its last word is known to be harmless: a plug-in may call a secret anything.
    """
    return is_secret_name(name) or _HARMLESS_NAME.search(name) is None


def redact(value: str, *, is_secret: bool) -> str:
    """Return a value or a text as it may be shown.

    A secret is hidden. Any other text is shown without the user and the query of a URI, without
    ``user:password@`` before a host, and without the values of pairs such as ``password=...``.
    """
    if is_secret:
        return REDACTED
    if "://" in value:
        shown = _QUERY.sub(f"?{REDACTED}", _USER_INFO.sub(f"://{REDACTED}@", value))
    else:
        shown = _BARE_USER_INFO.sub(f"{REDACTED}@", value)
    return _PAIR.sub(rf"\1{REDACTED}", shown)
