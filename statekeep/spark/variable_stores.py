"""Which store each state variable of an operator is in, and which stores a query has."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from statekeep.checkpoint.checkpoints import BackendName, StoreName
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.nearest import nearest_hint
from statekeep.spark.tasks import STATE_STORE

_OF_OPERATOR: Final = re.compile(r"(?P<operator>main|operator-[0-9]+)\.(?P<variable>.+)")


@dataclass(frozen=True, slots=True)
class VariableStores:
    """Where the state variables of one operator are."""

    stores: Mapping[str, StoreName] = field(default_factory=dict[str, StoreName])
    """``{variable: store}``; every other one is in `STATE_STORE`."""
    caches: frozenset[StoreName] = frozenset()
    """Stores that are backed up nowhere, and begin empty at each start of the query."""

    def store_of(self, variable: str) -> StoreName:
        """Return the store of a variable."""
        return self.stores.get(variable, STATE_STORE)


def stores_of_query(config: Config) -> tuple[StoreName, ...]:
    """Return the stores that every task of a query has, `STATE_STORE` first."""
    others = {StoreName(name) for name in config.variable_stores.values()} - {STATE_STORE}
    return (STATE_STORE, *sorted(others))


def lasting_stores(config: Config) -> tuple[StoreName, ...]:
    """Return the stores that a commit of the query lists: all but caches."""
    return tuple(
        name
        for name in stores_of_query(config)
        if name == STATE_STORE or config.store(name).is_durable
    )


def variable_stores_of(config: Config, operator: str) -> VariableStores:
    """Return where the variables of an operator are; what is said of it alone goes first."""
    of_all: dict[str, StoreName] = {}
    own: dict[str, StoreName] = {}
    for name, store in config.variable_stores.items():
        match = _OF_OPERATOR.fullmatch(name)
        if match is None:
            of_all[name] = StoreName(store)
        elif match["operator"] == operator:
            own[match["variable"]] = StoreName(store)
    caches = frozenset(stores_of_query(config)) - frozenset(lasting_stores(config))
    return VariableStores(of_all | own, caches)


def check_variables(config: Config, variables: Mapping[str, Collection[str]]) -> None:
    """Make sure that each setting speaks of a state variable that there is.

    Args:
        config: Of the query.
        variables: ``{operator: names}``: those that it declares, deletes, or has data of.

    Raises:
        ConfigError: One speaks of no variable; names the nearest one.
    """
    plain = {name for names in variables.values() for name in names}
    known = plain | {f"{operator}.{name}" for operator, of in variables.items() for name in of}
    for name in config.variable_stores:
        if name not in known:
            key = f"state.variables.{name}.store"
            raise ConfigError(
                f"no operator has a state variable of this name: variable={name} "
                f"variables={','.join(sorted(plain))} source={config.settings[key].source}",
                key=key,
                hint=nearest_hint(name, known, "name it as the processor's init() does"),
            )


def backends_in_use(config: Config) -> tuple[str, ...]:
    """Return every backend that a store of the query is backed up to, in the order of the stores."""
    stores = (config.store(name) for name in stores_of_query(config))
    return tuple(dict.fromkeys(name for store in stores for name in store.backup_factories))


def backends_of(
    config: Config, *, is_optional: bool
) -> Mapping[BackendName, Collection[StoreName]]:
    """Return the required or the optional backends of a query, each with the stores that list it.

    As in a commit: a backend is optional if it is for all its stores.
    """
    stores = {name: config.store(name) for name in lasting_stores(config)}
    found: dict[BackendName, list[StoreName]] = {}
    for name, store in stores.items():
        for backend in store.backup_factories:
            found.setdefault(BackendName(backend), []).append(name)
    return {
        backend: listing
        for backend, listing in found.items()
        if is_optional == all(backend in stores[name].optional_factories for name in listing)
    }
