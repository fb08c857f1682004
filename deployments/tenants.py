"""Who is calling, and how urgent may they be?

While no tenant has keys, `x-tenant` chooses and `Authorization` is ignored. As soon as one has, a
key is the only way to be a tenant: no key means the tenant `default` where it is declared, and
`x-tenant` is ignored. `x-priority` lowers a request's priority, never raises it. Keys are looked up
by their SHA-256, so the time a look-up takes says nothing of the key. Rates are not counted here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deployments.errors import BadRequest, Unauthorized
from deployments.keys import hash_key
from deployments.settings import (
    DEFAULT_TENANT,
    PRIORITIES,
    SettingsErrors,
    TenantSettings,
    load_tenants,
)

_RANK = {name: rank for rank, name in enumerate(PRIORITIES)}
_BY_HEADER = {name.encode(): name for name in PRIORITIES}


@dataclass(frozen=True, slots=True)
class Tenant:
    """`max_length` in tokens, None: the model's; `models` it may use, None: all."""

    name: str
    weight: float = 1.0
    priority: str = "standard"
    max_length: int | None = None
    models: frozenset[str] | None = None

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class Caller:
    """A request's tenant and the priority it asked for, at most the tenant's own."""

    tenant: Tenant
    priority: str

    @property
    def rank(self) -> int:
        """0 is the most urgent."""
        return _RANK[self.priority]


class Tenants:
    """The tenants of one settings file. Immutable: a changed file makes a new one."""

    def __init__(self, declared: Mapping[str, TenantSettings]) -> None:
        self._by_name = {name: _tenant(name, given) for name, given in declared.items()}
        if not self._by_name:
            self._by_name = {DEFAULT_TENANT: Tenant(DEFAULT_TENANT)}
        self._by_key = {
            key: self._by_name[name] for name, given in declared.items() for key in given.keys
        }
        self._default = self._by_name.get(DEFAULT_TENANT)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def identify(
        self, authorization: bytes | None, x_tenant: bytes | None, x_priority: bytes | None
    ) -> Caller:
        """Header values as ASGI gives them, None where absent. Raises Unauthorized, BadRequest."""
        if self._by_key:
            tenant = self._by_authorization(authorization)
        else:
            tenant = self._by_x_tenant(x_tenant)
        return Caller(tenant, _priority(tenant, x_priority))

    def _by_authorization(self, authorization: bytes | None) -> Tenant:
        if authorization is None:
            if self._default is None:
                raise Unauthorized("a key is needed: send `Authorization: Bearer <key>`")
            return self._default
        scheme, _, key = authorization.strip().partition(b" ")
        if scheme.lower() != b"bearer" or not key:
            raise Unauthorized("the Authorization header must be `Bearer <key>`")
        tenant = self._by_key.get(hash_key(key.strip()))
        if tenant is None:
            raise Unauthorized("unknown key")
        return tenant

    def _by_x_tenant(self, x_tenant: bytes | None) -> Tenant:
        if x_tenant is None:
            if self._default is None:
                raise Unauthorized("a tenant is needed: name it in the x-tenant header")
            return self._default
        tenant = self._by_name.get(x_tenant.decode("latin-1").strip())
        if tenant is None:
            raise Unauthorized("unknown tenant in the x-tenant header")
        return tenant


def _tenant(name: str, given: TenantSettings) -> Tenant:
    models = None if given.models is None else frozenset(given.models)
    return Tenant(name, given.weight, given.priority, given.max_length, models)


def _priority(tenant: Tenant, x_priority: bytes | None) -> str:
    if x_priority is None:
        return tenant.priority
    asked = _BY_HEADER.get(x_priority.strip().lower())
    if asked is None:
        raise BadRequest(f"x-priority must be one of {', '.join(PRIORITIES)}", param="x-priority")
    return max(asked, tenant.priority, key=_RANK.__getitem__)


class TenantsFile:
    """The tenants in a file that may be replaced at any time, by a rename or a switched link.

    `current` is always whole and valid: a file that cannot be used leaves the last good one in
    force and says why in `problem`. Reading a large file takes a while; call `refresh` from a
    thread. The first reading has nothing to fall back on but `fallback`, and raises SettingsErrors
    without one.
    """

    def __init__(self, path: Path | str, fallback: Tenants | None = None) -> None:
        self._path = Path(path)
        self._seen: tuple[int, int, int, int] | None = None
        self.problem: str | None = None
        if fallback is None:
            self._seen = self._signature()
            self.current = Tenants(load_tenants(self._path).tenants)
        else:
            self.current = fallback
            self.refresh()

    def refresh(self) -> bool:
        """Reads the file if it is another than last time; whether `current` was replaced."""
        # Taken before the file is read: a change in between is then seen next time.
        signature = self._signature()
        if signature is not None and signature == self._seen:
            return False
        self._seen = signature
        try:
            found = Tenants(load_tenants(self._path).tenants)
        except SettingsErrors as error:
            self.problem = str(error)
            return False
        self.problem = None
        self.current = found
        return True

    def _signature(self) -> tuple[int, int, int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
