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
_TEXT_QUERY: Final = re.compile(r"\?\S+")
_BARE_USER_INFO: Final = re.compile(r"(?<![^\s=])(?!\S*://)[^\s=:]*:\S*@")
_PAIR: Final = re.compile(
    r"((?:passw|passphrase|pwd|secret|jaas|signature|(?:account|access|shared|api|private)[\w.-]{0,99}key"
    r"|(?:access|auth|refresh|security|session)[\w.-]{0,99}token"
    r"|\b(?:pin|sig|sas)\b)[\w.-]{0,99}[\"']?\s{0,9}[=:]\s*)(?:\"[^\"]*\"|'[^']*'|[^\s,;&]+)",
    re.IGNORECASE,
)
"""``password=...`` and the like, as errors and connection strings have them. Bounded, as texts may be long."""


def is_secret_name(name: str) -> bool:
    """Return whether a name says that its value is a secret.

    Too wide on purpose: a hidden harmless value costs a look into the file, a shown secret
    costs the secret.
    """
    return _SECRET_NAME.search(name) is not None


def may_be_secret(name: str) -> bool:
    """Return whether a setting of a kind that is not ours must be taken for a secret.

    It must unless its last word is known to be harmless: a plug-in may call a secret anything.
    """
    return is_secret_name(name) or _HARMLESS_NAME.search(name) is None


def redact(value: str, *, is_secret: bool) -> str:
    """Return the value of a setting, or a URI, as it may be shown; `redact_text` is for sentences.

    A secret is hidden. Any other value is shown without the user and the query of a URI, without
    ``user:password@`` before a host, and without the values of pairs such as ``password=...``.
    """
    return REDACTED if is_secret else _without_secrets(value, _QUERY)


def redact_text(text: str) -> str:
    """Return a text, such as an error's, as it may be shown; done twice, it changes nothing more.

    It is as by `redact`, but what stands after the query of a URI stays. Cut a text after it: a URI
    that was cut before its ``@`` would show the password.
    """
    return _without_secrets(text, _TEXT_QUERY)


def _without_secrets(text: str, query: re.Pattern[str]) -> str:
    shown = text
    if "://" in text:
        shown = query.sub(f"?{REDACTED}", _USER_INFO.sub(f"://{REDACTED}@", text))
    shown = _BARE_USER_INFO.sub(f"{REDACTED}@", shown)
    return _PAIR.sub(rf"\1{REDACTED}", shown)
