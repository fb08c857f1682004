"""The tenant of a request and the priority that it may have, from its headers.

Where keys are required, one is the only way to be a tenant: no key means the tenant `default` where
it is declared, and `x-tenant` is ignored. They are as soon as a tenant has a list of keys, also an
empty one, unless the settings say it (`gateway.auth`); nobody declared then means nobody let in.
Where they are not, `x-tenant` chooses and `Authorization` is ignored. `x-priority` lowers a
request's priority, never raises it.

A key is 32 random bytes, so a plain SHA-256 of it is enough: that is what settings hold and what
look-ups go by, and the time a look-up takes says nothing of the key. Keys are never stored, logged
or shown again. Which key it was, the tenant that comes of it says, narrowed to what the key may.
Whether it is good at the moment is asked at each use, by the wall clock; unknown, revoked, expired
or too early, all is answered alike. An operator's key is no tenant's, and runs no model.
Rates are counted elsewhere (`deployments.gateway.tenancy.rates`).
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from deployments.contract.errors import BadRequest, Forbidden, Unauthorized
from deployments.contract.key_list import KeyRow
from deployments.settings.gateway import PRIORITIES
from deployments.settings.key import KeySettings, OperatorKeySettings, RateSettings
from deployments.settings.tenant import DEFAULT_TENANT, TenantSettings

PREFIX = "hr_"
RANDOM_BYTES = 32
_SEND_ONE = "an API key is required: send `Authorization: Bearer <key>`"
_NOBODY_HAS_ONE = (
    "an API key is required, and no tenant has one here: the operator must give tenants keys, or "
    "set gateway.auth: open"
)


def new_key() -> tuple[str, str]:
    """A fresh key and its hash, `sha256:` and 64 hex digits."""
    key = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    return key, hash_key(key)


def hash_key(key: str | bytes) -> str:
    body = key.encode() if isinstance(key, str) else key
    return "sha256:" + hashlib.sha256(body).hexdigest()


@dataclass(frozen=True, slots=True)
class Tenant:
    """`priority`: its highest. `max_length` in tokens, None: the model's; `models` it may use,
    None: all; `max_queue_rows`: that may wait for one model at one gateway, 0: no bound; `record`:
    whether models that record may keep its requests. `key`: the id of the key it came by, "" where
    none was needed; `key_hash`: that key's; `key_rate`: its own, None: no other than the
    tenant's."""

    name: str
    weight: float = 1.0
    priority: str = "standard"
    max_length: int | None = None
    models: frozenset[str] | None = None
    max_queue_rows: int = 0
    rate: RateSettings = field(default_factory=RateSettings)
    record: bool = True
    key: str = ""
    key_hash: str = ""
    key_rate: RateSettings | None = None

    def may_use(self, model: str, adapter: str = "") -> bool:
        if self.models is None:
            return True
        if adapter:
            return f"{model}:{adapter}" in self.models or f"{model}:*" in self.models
        return model in self.models


@dataclass(frozen=True, slots=True)
class Caller:
    """A request's tenant and the priority it asked for, at most the tenant's own; `rank`: that
    priority's place, 0 the most urgent."""

    tenant: Tenant
    priority: str
    rank: int


@dataclass(frozen=True, slots=True)
class Key:
    """What one key opens: `tenant` as it may be with it, None: an operator's. Good from `begins_s`
    until before `ends_s`, seconds since the epoch."""

    id: str
    tenant: Tenant | None
    begins_s: float
    ends_s: float


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads pages. `key`: the id of the key it came by; `models` it may use, None: all."""

    key: str = ""
    models: frozenset[str] | None = None
    is_operator: bool = False

    def may_see(self, model: str) -> bool:
        """Whether it may use it, or an adapter of it."""
        return self.models is None or any(name.partition(":")[0] == model for name in self.models)


@dataclass(frozen=True, slots=True)
class KeyTable:
    """Who has which keys beside the tenants' own lists. `operators`: theirs; `revoked`: hashes that
    open nothing, whoever lists them; `wall`: seconds since the epoch."""

    operators: Sequence[OperatorKeySettings] = ()
    revoked: Collection[str] = ()
    wall: Callable[[], float] = time.time


class Tenants:
    """The tenants of one settings file. Immutable: a changed file makes a new one.

    `priorities`: the gateway's, the most urgent first; every tenant's is one of them. `auth`: the
    gateway's. `keys`: those that are not revoked, operators' first. Raises ValueError for keys
    where it is open.
    """

    def __init__(
        self,
        declared: Mapping[str, TenantSettings],
        priorities: Sequence[str] = PRIORITIES,
        auth: str | None = None,
        table: KeyTable | None = None,
    ) -> None:
        table = table or KeyTable()
        self._wall = table.wall
        self._rank = {name: rank for rank, name in enumerate(priorities)}
        self._by_header = {name.encode(): name for name in priorities}
        middle = priorities[len(priorities) // 2]
        self._by_name = {name: _tenant(name, given, middle) for name, given in declared.items()}
        if not self._by_name:
            self._by_name = {DEFAULT_TENANT: Tenant(DEFAULT_TENANT, priority=middle)}
        self._by_key = {key.hash: _key(key, None) for key in table.operators}
        for name, given in declared.items():
            for key in given.keys or ():
                self._by_key[key.hash] = _key(key, _narrowed(self._by_name[name], key))
        for revoked in table.revoked:
            self._by_key.pop(revoked, None)
        self.keys = tuple(self._by_key.values())
        self.lists_keys = any(given.keys is not None for given in declared.values())
        if auth == "open" and self.lists_keys:
            raise ValueError(
                "a tenant has a list of keys, but gateway.auth is open; must be required"
            )
        self.need_keys = self.lists_keys if auth is None else auth == "required"
        known = declared if self.need_keys else self._by_name
        self._default = self._by_name[DEFAULT_TENANT] if DEFAULT_TENANT in known else None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    @property
    def all(self) -> tuple[Tenant, ...]:
        return tuple(self._by_name.values())

    def identify(
        self, authorization: bytes | None, x_tenant: bytes | None, x_priority: bytes | None
    ) -> Caller:
        """Header values as ASGI gives them, None where absent. Raises Unauthorized, BadRequest, and
        Forbidden for an operator's key."""
        if self.need_keys:
            tenant = self._by_authorization(authorization)
        else:
            tenant = self._by_x_tenant(x_tenant)
        priority = self._priority(tenant, x_priority)
        return Caller(tenant, priority, self._rank[priority])

    def _priority(self, tenant: Tenant, x_priority: bytes | None) -> str:
        if x_priority is None:
            return tenant.priority
        requested = self._by_header.get(x_priority.strip().lower())
        if requested is None:
            known = ", ".join(self._rank)
            raise BadRequest(f"x-priority must be one of {known}", param="x-priority")
        return max(requested, tenant.priority, key=self._rank.__getitem__)

    def _by_authorization(self, authorization: bytes | None) -> Tenant:
        if authorization is None:
            if self._default is None:
                raise Unauthorized(_SEND_ONE if self.lists_keys else _NOBODY_HAS_ONE)
            return self._default
        tenant = self.key(authorization).tenant
        if tenant is None:
            raise Forbidden("this is an operator's key, which runs no model; send a tenant's key")
        return tenant

    def reader(self, authorization: bytes | None) -> Reader:
        """Who reads pages where keys are needed. Raises Unauthorized."""
        if authorization is None:
            return Reader(models=self._by_authorization(None).models)
        key = self.key(authorization)
        if key.tenant is None:
            return Reader(key.id, is_operator=True)
        return Reader(key.id, key.tenant.models)

    def operator(self, authorization: bytes | None) -> Reader:
        """Raises Unauthorized, and Forbidden for a tenant's key."""
        if all(key.tenant is not None for key in self.keys):
            raise Unauthorized("no operator has a key; operators.keys of the settings has them")
        if authorization is None:
            raise Unauthorized("an operator's key is required: `Authorization: Bearer <key>`")
        reader = self.reader(authorization)
        if not reader.is_operator:
            raise Forbidden("this is a tenant's key; an operator's key is required")
        return reader

    def key(self, authorization: bytes) -> Key:
        """The key that a header names, if it is good at the moment. Raises Unauthorized."""
        scheme, _, given = authorization.strip().partition(b" ")
        if scheme.lower() != b"bearer" or not given:
            raise Unauthorized("the Authorization header must be `Bearer <key>`")
        key = self._by_key.get(hash_key(given.strip()))
        now_s = self._wall()
        if key is None or not key.begins_s <= now_s < key.ends_s:
            expired = key.id if key is not None and now_s >= key.ends_s else ""
            raise Unauthorized("the API key is unknown, expired or revoked", expired_key=expired)
        return key

    def still_opens(self, tenant: Tenant) -> bool:
        """Whether what it came by is good yet, for work that goes on."""
        if not tenant.key:
            return True
        key = self._by_key.get(tenant.key_hash)
        if key is None or key.tenant is None or key.tenant.name != tenant.name:
            return False
        return key.begins_s <= self._wall() < key.ends_s

    def _by_x_tenant(self, x_tenant: bytes | None) -> Tenant:
        if x_tenant is None:
            if self._default is None:
                raise Unauthorized("a tenant is required: name it in the x-tenant header")
            return self._default
        tenant = self._by_name.get(x_tenant.decode("latin-1").strip())
        if tenant is None:
            raise Unauthorized("the x-tenant header names an unknown tenant")
        return tenant


def _tenant(name: str, given: TenantSettings, middle: str) -> Tenant:
    return Tenant(
        name,
        weight=given.weight,
        priority=given.priority or middle,
        max_length=given.max_length,
        models=None if given.models is None else frozenset(given.models),
        max_queue_rows=given.max_queue_rows or 0,
        rate=given.rate,
        record=given.record,
    )


def _key(given: OperatorKeySettings, tenant: Tenant | None) -> Key:
    return Key(given.kid, tenant, given.begins_s, given.ends_s)


def _narrowed(tenant: Tenant, key: KeySettings) -> Tenant:
    """The tenant as it may be with this key."""
    lengths = [each for each in (tenant.max_length, key.max_length) if each is not None]
    return replace(
        tenant,
        models=_both(tenant.models, key.models),
        max_length=min(lengths, default=None),
        key=key.kid,
        key_hash=key.hash,
        key_rate=key.rate,
    )


def _both(tenants: frozenset[str] | None, keys: Collection[str] | None) -> frozenset[str] | None:
    """What two lists of models allow both. `model:*` of one allows each adapter of the other."""
    if tenants is None or keys is None:
        return tenants if keys is None else frozenset(keys)
    own = frozenset(keys)
    return frozenset(
        name
        for mine, others in ((tenants, own), (own, tenants))
        for name in mine
        if name in others or (":" in name and f"{name.partition(':')[0]}:*" in others)
    )


class KnownTenants(Protocol):
    """The tenants in force, and what an operator should know of where they come from."""

    @property
    def current(self) -> Tenants: ...
    @property
    def problem(self) -> str | None: ...
    @property
    def frozen(self) -> bool: ...

    @property
    def age_s(self) -> float:
        """Since they were last found to be those that are to be in force."""

    def publish_frozen(self, frozen: bool) -> None:
        """The controllers' switch, for all gateways; blocks. Raises ValueError where it cannot."""

    def key_rows(self) -> list[KeyRow]: ...
    def revoke(self, name: str) -> tuple[str, str]:
        """Ends a key for all gateways, by its id or hash; its id and owner. Blocks. Raises
        ValueError for one that is not there."""
