"""From the dotted path of a class, as a configuration writes it, to the class."""

import importlib
import importlib.util

from statekeep.errors import ConfigError


def is_dotted_path(text: str) -> bool:
    """Return whether a text can only be a dotted path: short names hold neither dot nor colon."""
    return "." in text or ":" in text


def load_object(path: str, *, key: str) -> object:
    """Import what ``package.module:Name`` or ``package.module.Name`` names.

    An error inside the module while it is imported is the author's and passes through unchanged,
    a missing import of that module included.

    Args:
        path: The dotted path.
        key: The setting that holds it, for errors.

    Raises:
        ConfigError: There is no such module, or nothing of that name in it.
    """
    module_name, colon, name = path.partition(":")
    if not colon:
        module_name, _, name = path.rpartition(".")
    if not module_name or not name or not all(part.isidentifier() for part in path_parts(path)):
        raise ConfigError(
            f"not a dotted path: {key}={path!r}", key=key, hint="write package.module:name"
        )
    if not _has_module(module_name):
        raise ConfigError(
            f"no such module: {key}={path!r} module={module_name}",
            key=key,
            hint="is it installed where this process runs?",
        )
    module = importlib.import_module(module_name)
    if not hasattr(module, name):
        raise ConfigError(f"nothing of that name in the module: {key}={path!r}", key=key)
    return getattr(module, name)


def path_parts(path: str) -> list[str]:
    """Return the identifiers of a dotted path."""
    return path.replace(":", ".", 1).split(".")


def _has_module(name: str) -> bool:
    """Return whether there is a module, importing its parents only."""
    parent = name.rpartition(".")[0]
    if parent and not _has_module(parent):
        return False
    spec = importlib.util.find_spec(name)
    return spec is not None
