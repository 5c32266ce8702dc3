"""The name that `statekeep.checkpoint.escaping.escape_name` has had here."""

from statekeep.checkpoint.escaping import escape_name as directory_name

__all__ = ["directory_name"]
