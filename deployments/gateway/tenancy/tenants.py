"""Which tenant sends a request, and at which priority, according to its headers?

Where keys are required (as soon as any tenant has a list of keys, unless `gateway.auth` decides), a
request without one belongs to the tenant `default`, where declared, and `x-tenant` is ignored.
Elsewhere `x-tenant` chooses the tenant. `x-priority` lowers a request's priority, never raises it.
A key is 32 random bytes, so its plain SHA-256 is enough: settings hold that hash, and the time of a
lookup tells nothing. Keys are never stored, logged or shown again. Validity is checked at each use;
unknown, revoked, expired and not yet valid keys get the same answer. An operator's key belongs to
no tenant and runs no model.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from deployments.contract.errors import BadRequest, Forbidden, Unauthorized
from deployments.process.key_list import KeyRow, RevokedKey
from deployments.settings.gateway import PRIORITIES
from deployments.settings.key import KeySettings, OperatorKeySettings, RateSettings
from deployments.settings.tenant import DEFAULT_TENANT, TenantSettings

PREFIX = "hr_"
RANDOM_BYTES = 32
_SEND_ONE = "an API key is required: send `Authorization: Bearer <key>` (or `x-api-key: <key>`)"
_NOBODY_HAS_ONE = (
    "an API key is required, and no tenant has one here: the operator must give tenants keys, or "
    "set gateway.auth: open"
)


def new_key() -> tuple[str, str]:
    """A new random key, and its hash."""
    key = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    return key, hash_key(key)


def key_header(headers: Mapping[bytes, bytes]) -> bytes | None:
    """What names the caller's key, as `Authorization` does; Anthropic's clients send the key alone,
    as `x-api-key`. Raises BadRequest for two keys."""
    given, alone = headers.get(b"authorization"), headers.get(b"x-api-key")
    if alone is None:
        return given
    if given is not None and given.strip().partition(b" ")[2].strip() != alone.strip():
        raise BadRequest("the request has two API keys (Authorization, x-api-key); send one")
    return b"Bearer " + alone


def hash_key(key: str | bytes) -> str:
    """`sha256:` and 64 hex digits."""
    body = key.encode() if isinstance(key, str) else key
    return "sha256:" + hashlib.sha256(body).hexdigest()


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant, as far as the request's key lets it be one."""

    name: str
    weight: float = 1.0
    priority: str = "standard"  # its most urgent
    max_length: int | None = None  # of a row, in tokens; None: the model's
    models: frozenset[str] | None = None  # that it may use; None: all
    max_queue_rows: int = 0  # that may wait for one model at one gateway; 0: no bound
    rate: RateSettings = field(default_factory=RateSettings)
    record: bool = True  # whether models that record may keep its requests

    # The key that its request brought.
    key: str = ""  # its id; "": none was needed
    key_hash: str = ""
    key_rate: RateSettings | None = None  # the key's own, besides the tenant's; None: it has none

    def may_use(self, model: str, adapter: str = "") -> bool:
        """Whether the tenant may use the model, or this adapter of it."""
        return _uses(self.models, model, adapter)

    def may_see(self, model: str) -> bool:
        """Whether the tenant may use the model, or an adapter of it."""
        return _sees(self.models, model)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request."""

    tenant: Tenant
    priority: str  # that the request asks for, at most the tenant's own
    rank: int  # the priority's place; 0: the most urgent


@dataclass(frozen=True, slots=True)
class Key:
    """What one key opens, and when."""

    id: str
    tenant: Tenant | None  # narrowed to what the key may do; None: an operator's key
    begins_s: float  # valid from here on, seconds since the epoch
    ends_s: float  # and until before this


@dataclass(frozen=True, slots=True)
class PageReader:
    """Who reads the gateway's pages."""

    key: str = ""  # the id of the key that the request brought
    models: frozenset[str] | None = None  # that it may use; None: all
    is_operator: bool = False

    def may_see(self, model: str) -> bool:
        """Whether it may use the model, or an adapter of it."""
        return _sees(self.models, model)

    def may_use(self, model: str, adapter: str = "") -> bool:
        """Whether it may use the model, or this adapter of it."""
        return _uses(self.models, model, adapter)


@dataclass(frozen=True, slots=True)
class KeyTable:
    """What decides on keys besides the tenants' own lists."""

    operators: Sequence[OperatorKeySettings] = ()
    revoked: Collection[str] = ()  # hashes of keys that open nothing, whoever lists them
    wall: Callable[[], float] = time.time  # seconds since the epoch


class Tenants:
    """The tenants of one settings file. Immutable: a changed file makes a new one."""

    def __init__(
        self,
        declared: Mapping[str, TenantSettings],
        # The gateway's, the most urgent first; each tenant's priority is one of them.
        priorities: Sequence[str] = PRIORITIES,
        auth: str | None = None,  # `gateway.auth`
        table: KeyTable | None = None,
    ) -> None:
        """Raises ValueError for a list of keys where `auth` is open."""
        table = table or KeyTable()
        self._wall = table.wall
        self._rank = {name: rank for rank, name in enumerate(priorities)}
        self._by_header = {name.encode(): name for name in priorities}
        middle = priorities[len(priorities) // 2]
        self._by_name = {name: _tenant(name, given, middle) for name, given in declared.items()}
        if not self._by_name:
            self._by_name = {DEFAULT_TENANT: Tenant(DEFAULT_TENANT, priority=middle)}
        self.names = tuple(self._by_name)
        self._callers: dict[int, Caller] = {}  # by the tenant's id, at its own priority
        self._by_key = {key.hash: _key(key, None) for key in table.operators}
        for name, given in declared.items():
            for key in given.keys or ():
                self._by_key[key.hash] = _key(key, _narrowed(self._by_name[name], key))
        for revoked in table.revoked:
            self._by_key.pop(revoked, None)
        self.keys = tuple(self._by_key.values())  # those not revoked, operators' first
        # Whether any tenant has a list of keys, perhaps an empty one.
        self.lists_keys = any(given.keys is not None for given in declared.values())
        if auth == "open" and self.lists_keys:
            raise ValueError(
                "a tenant has a list of keys, but gateway.auth is open; must be required"
            )
        self.need_keys = self.lists_keys if auth is None else auth == "required"
        known = declared if self.need_keys else self._by_name
        self._default = self._by_name[DEFAULT_TENANT] if DEFAULT_TENANT in known else None

    @property
    def all(self) -> tuple[Tenant, ...]:
        return tuple(self._by_name.values())

    def identify(
        self, authorization: bytes | None, x_tenant: bytes | None, x_priority: bytes | None
    ) -> Caller:
        """The caller, from header values as ASGI gives them (None: absent). Raises Unauthorized,
        BadRequest for an unknown priority, and Forbidden for an operator's key."""
        if self.need_keys:
            tenant = self._by_authorization(authorization)
        else:
            tenant = self._by_x_tenant(x_tenant)
        if x_priority is None:
            return self._callers.get(id(tenant)) or self._caller(tenant, tenant.priority)
        return self._caller(tenant, self._priority(tenant, x_priority))

    def _caller(self, tenant: Tenant, priority: str) -> Caller:
        """Kept for a tenant's own priority, which most requests have: tenants live as this does."""
        caller = Caller(tenant, priority, self._rank[priority])
        if priority == tenant.priority:
            self._callers[id(tenant)] = caller
        return caller

    def _priority(self, tenant: Tenant, x_priority: bytes) -> str:
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

    def reader(self, authorization: bytes | None) -> PageReader:
        """Who reads pages, where keys are required. Raises Unauthorized."""
        if authorization is None:
            return PageReader(models=self._by_authorization(None).models)
        key = self.key(authorization)
        if key.tenant is None:
            return PageReader(key.id, is_operator=True)
        return PageReader(key.id, key.tenant.models)

    def operator(self, authorization: bytes | None) -> PageReader:
        """The operator. Raises Unauthorized, and Forbidden for a tenant's key."""
        if all(key.tenant is not None for key in self.keys):
            raise Unauthorized("no operator has a key; operators.keys of the settings has them")
        if authorization is None:
            raise Unauthorized("an operator's key is required: `Authorization: Bearer <key>`")
        reader = self.reader(authorization)
        if not reader.is_operator:
            raise Forbidden("this is a tenant's key; an operator's key is required")
        return reader

    def key(self, authorization: bytes) -> Key:
        """The key in a header, if it is valid now. Raises Unauthorized."""
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
        """Whether the key that the tenant came with is still valid, for work that takes long."""
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


def _uses(models: frozenset[str] | None, model: str, adapter: str) -> bool:
    if models is None:
        return True
    if adapter:
        return f"{model}:{adapter}" in models or f"{model}:*" in models
    return model in models


def _sees(allowed: frozenset[str] | None, model: str) -> bool:
    return allowed is None or any(name.partition(":")[0] == model for name in allowed)


def _key(given: OperatorKeySettings, tenant: Tenant | None) -> Key:
    return Key(given.kid, tenant, given.begins_s, given.ends_s)


def _narrowed(tenant: Tenant, key: KeySettings) -> Tenant:
    """The tenant, narrowed to what this key may do."""
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
    """The models that two lists both allow (None: all). `model:*` in one list allows each adapter
    of the model in the other."""
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
    def problem(self) -> str | None:
        """Why the newest tenants could not be adopted; None: they were."""

    @property
    def frozen(self) -> bool:
        """Whether the switch is set that freezes all controllers."""

    @property
    def age_s(self) -> float:
        """Seconds since these were last confirmed to be the ones that should be in force."""

    def publish_frozen(self, frozen: bool) -> None:
        """Set the switch that freezes controllers, for all gateways. Blocks. Raises ValueError
        where the switch cannot be set."""

    def key_rows(self) -> list[KeyRow]:
        """All keys of tenants and operators, each with its owner and state."""

    def revoke(self, name: str) -> RevokedKey:
        """Revoke a key for all gateways, by its id or hash. Blocks. Raises ValueError for an
        unknown key."""
