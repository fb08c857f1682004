"""The root of the settings: models, tenants, controllers, operators, gateway and scaling.

The tree is parsed and validated once, then it is immutable and passed around as it is. Each section
checks its own fields in its own module. This module checks the rules that span sections: a tenant's
models and priority exist, a fallback leads to a model, each key belongs to one tenant, and the
tenant `default`, which stands for callers without a key, has no keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from deployments.settings import model_fields
from deployments.settings import tenant as tenant_section
from deployments.settings.capacity import CapacitySettings
from deployments.settings.gateway import GatewaySettings
from deployments.settings.key import OperatorKeySettings
from deployments.settings.model import ModelSettings
from deployments.settings.record import shared_folders
from deployments.settings.reuse import fallback_mistakes
from deployments.settings.tenant import DEFAULT_TENANT, TenantSettings
from yaml_document.credentials import redacted
from yaml_document.section import Section, listed, name_check, wrong

_SHOWN = 80
ModelName = Annotated[
    str,
    AfterValidator(
        name_check(
            model_fields.NAME,
            "is no model name; must be 1 to 63 of a-z 0-9 - . _, the first and last a letter or "
            "digit",
        )
    ),
]
TenantName = Annotated[
    str,
    AfterValidator(
        name_check(
            tenant_section.NAME,
            "is no tenant name; must be 1 to 63 letters, digits, - . _, the first and last a "
            "letter or digit",
        )
    ),
]


class ControllerSettings(Section):
    frozen: bool = Field(
        default=False,
        description="Stops all learning, in every model: of cost models, bucket edges, limits, "
        "hedging delays and ejections. What has been learnt stays in force, and decisions go on.",
    )


class OperatorSettings(Section):
    keys: Annotated[tuple[OperatorKeySettings, ...], BeforeValidator(listed)] = Field(
        default=(),
        description="Keys for operators: they open `/admin/...` and the pages on the server's "
        "state (docs/security.md), and cannot run a model. Each is a hash, or a mapping with more "
        "fields. Without any key `/admin/...` is closed.",
    )


class TenantsSettings(Section):
    """The part of the settings that gateways read again while they run: tenants, controllers,
    operators. It may be in a file of its own (`gateway.tenants_path`)."""

    tenants: dict[TenantName, TenantSettings] = Field(
        default_factory=dict,
        description="The tenants, by name. If none is declared, all callers are the tenant "
        "`default`.",
    )

    controllers: ControllerSettings = Field(
        default_factory=ControllerSettings,
        description="Settings of all controllers of all models.",
    )

    operators: OperatorSettings = Field(
        default_factory=OperatorSettings,
        description="Who may read and change the state of a running server.",
    )

    @model_validator(mode="after")
    def _keys_tell_tenants_apart(self) -> TenantsSettings:
        if self.tenants.get(DEFAULT_TENANT, TenantSettings()).keys:
            raise wrong(
                "is given, but the tenant default stands for callers without a key; must be moved "
                "to another tenant",
                "tenants", DEFAULT_TENANT, "keys",
            )  # fmt: skip
        owner: dict[str, str] = {}
        for at, who, key in self.all_keys():
            if key.hash in owner:
                raise wrong(
                    f"is already a key of {owner[key.hash]}; must be listed once, by one owner", *at
                )
            if key.kid in owner:
                raise wrong(
                    f"is {key.kid}, which is already the id of a key of {owner[key.kid]}; must be "
                    "another id",
                    *at, "id",
                )  # fmt: skip
            owner[key.hash] = owner[key.kid] = who
        return self

    @property
    def lists_keys(self) -> bool:
        """Whether any tenant has a list of keys, even an empty one."""
        return any(tenant.keys is not None for tenant in self.tenants.values())

    def all_keys(self) -> Iterator[tuple[tuple[str | int, ...], str, OperatorKeySettings]]:
        """(path in the settings, owner, key) of each key. Owner: "tenant acme" or "operators"."""
        for name, tenant in self.tenants.items():
            for position, key in enumerate(tenant.keys or ()):
                yield ("tenants", name, "keys", position), f"tenant {name}", key
        for position, operators in enumerate(self.operators.keys):
            yield ("operators", "keys", position), "operators", operators

    def key_called(self, name: str) -> tuple[str, OperatorKeySettings]:
        """(owner, key) of the key with this id or hash. Raises ValueError, which lists the ids of
        all keys."""
        for _, who, key in self.all_keys():
            if name in (key.kid, key.hash):
                return who, key
        known = ", ".join(key.kid for _, _, key in self.all_keys())
        raise ValueError(
            f"no key is called {redacted(name)[:_SHOWN]!r}; there are: {known or 'none'}"
        )


class Settings(TenantsSettings):
    """A whole settings file."""

    models: dict[ModelName, ModelSettings] = Field(description="The models, by name.")
    gateway: GatewaySettings = Field(
        default_factory=GatewaySettings,
        description="The gateways: the processes that callers reach over HTTP.",
    )
    scaling: CapacitySettings = Field(
        default_factory=CapacitySettings,
        description="The budget of all models together, and the pool of replicas that they share.",
    )

    @model_validator(mode="after")
    def _open_means_without_keys(self) -> Settings:
        name = next((n for n, each in self.tenants.items() if each.keys is not None), None)
        if self.gateway.auth == "open" and name is not None:
            raise wrong(
                f"is open, yet tenant {name} has keys; must be required",
                "gateway",
                "auth",
            )
        return self

    @model_validator(mode="after")
    def _names_exist(self) -> Settings:
        if not self.models:
            raise wrong("declares no model; must have at least one", "models")
        if all(model.optional for model in self.models.values()):
            first = next(iter(self.models))
            raise wrong(
                "is true for every model; must be false for at least one model, for which the "
                "server's readiness waits",
                "models", first, "optional",
            )  # fmt: skip
        if self.gateway.tenants_path is not None and self.tenants:
            raise wrong("must be left out: gateway.tenants_path names another file", "tenants")
        for name, model in self.models.items():
            if self.gateway.replay and not model.retry:
                raise wrong(
                    "is false, but gateway.replay sends requests again; must be true, or "
                    "gateway.replay must be false",
                    "models", name, "retry",
                )  # fmt: skip
        wanted = dict(_models_of_tenants(self.tenants))
        ranks = {name: tenant.priority for name, tenant in self.tenants.items()}
        leads = {n: {"fallback": m.fallback, "task": m.task} for n, m in self.models.items()}
        folders = {n: {"record": {"folder": m.record.folder}} for n, m in self.models.items()}
        for path, message in chain(
            unknown_models(wanted, self.models),
            unknown_priorities(ranks, self.gateway.priorities),
            fallback_mistakes(leads),
            alias_mistakes({n: {"aliases": m.aliases} for n, m in self.models.items()}),
            shared_folders(folders),
            unpoolable_models(self.scaling, self.models),
            larger_than_pool(self.scaling, self.models),
        ):
            raise wrong(message, *path)
        return self


Complaint = tuple[tuple[str | int, ...], str]


def unknown_models(
    wanted: Mapping[tuple[str | int, ...], Iterable[Any]], models: Collection[str]
) -> Iterator[Complaint]:
    """(path, error) of each name in the lists of `wanted` that is no model.

    `wanted`: path of a list to its names. A name `model:adapter` counts as `model`.
    """
    for at, names in wanted.items():
        for position, name in enumerate(names):
            if isinstance(name, str) and name.partition(":")[0] not in models:
                yield (*at, position), _not_one_of(name, models)


def alias_mistakes(models: Mapping[str, Any]) -> Iterator[Complaint]:
    """(path, error) of each alias that names a model or is another's alias too. `models`: name to
    plain data with `aliases`; other mistakes in it are ignored."""
    taken = dict.fromkeys(models, "the name of a model")
    for name, model in models.items():
        aliases = model.get("aliases") if isinstance(model, Mapping) else None
        for position, alias in enumerate(aliases if isinstance(aliases, list | tuple) else ()):
            if not isinstance(alias, str):
                continue
            if alias in taken:
                message = f"is {alias!r}, {taken[alias]}; must be a name of its own"
                yield ("models", name, "aliases", position), message
            taken[alias] = f"an alias of {name}"


def _models_of_tenants(
    tenants: Mapping[str, TenantSettings],
) -> Iterator[tuple[tuple[str | int, ...], Iterable[str]]]:
    for name, tenant in tenants.items():
        yield ("tenants", name, "models"), tenant.models or ()
        for position, key in enumerate(tenant.keys or ()):
            yield ("tenants", name, "keys", position, "models"), key.models or ()


def unpoolable_models(
    scaling: CapacitySettings, models: Mapping[str, ModelSettings]
) -> Iterator[Complaint]:
    """(path, error) of each model that the shared pool names and cannot hold."""
    names = scaling.pool.models if scaling.pool else ()
    gpus = scaling.pool.num_gpus if scaling.pool else 0.0
    for position, name in enumerate(names if isinstance(names, tuple) else ()):
        at = ("scaling", "pool", "models", position)
        if name not in models:
            yield at, _not_one_of(name, models)
        elif why := models[name].unpoolable(gpus):
            yield at, f"is {name}, which {why}"


def larger_than_pool(
    scaling: CapacitySettings, models: Mapping[str, ModelSettings]
) -> Iterator[Complaint]:
    """(path, error) if an engine that the shared pool may hold reserves all its memory as cache."""
    pool = scaling.pool
    if pool is None:
        return
    for name, model in models.items():
        held = pool.models == "all" or name in pool.models
        gib = model.options.get("kv_cache_gib") if model.task == "generate" else None
        if not held or not isinstance(gib, int | float) or model.unpoolable(pool.num_gpus):
            continue
        if gib * 1024 >= pool.memory_mib:
            yield (
                ("scaling", "pool", "memory_mib"),
                f"is {pool.memory_mib}; must be more than {gib * 1024:g}, the cache of {name} "
                "alone (options.kv_cache_gib)",
            )


def unknown_priorities(
    wanted: Mapping[str, Any], priorities: Collection[str]
) -> Iterator[Complaint]:
    """(path, error) of each tenant's priority that is none of the gateway's priorities."""
    for tenant, name in wanted.items():
        if isinstance(name, str) and name not in priorities:
            yield ("tenants", tenant, "priority"), _not_one_of(name, priorities)


def _not_one_of(name: str, known: Collection[str]) -> str:
    return f"is {name!r}; must be one of {', '.join(known)}"
