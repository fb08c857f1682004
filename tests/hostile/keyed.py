"""A gateway whose callers need keys: two tenants with a model each and one that both may use, an
adapter, an operator, and keys that open nothing. Its HAProxy and its own server speak TLS, and want
a certificate of who asks for the operators' pages.
"""

from __future__ import annotations

import logging
import ssl
import threading
from pathlib import Path
from typing import Any

import yaml
from certificates import Authority
from fake_runtimes import Encoder
from fuzzing import Answering
from generating import add
from in_process import Stand
from raw_http import Target

from deployments.gateway.app import assembled
from deployments.gateway.telemetry.gateway_telemetry import AccessLog
from deployments.gateway.tenancy.live_tenants import LiveTenants, PublishedTenants, RevokedKeys
from deployments.gateway.tenancy.tenants import hash_key
from tests.deployments.conftest import described


def _key(owner: str) -> str:
    """As long as a real one."""
    return "hr_" + owner.ljust(43, "A")


ACME, OTHER, OPERATOR = _key("acme"), _key("other"), _key("operator")
REVOKED, EXPIRED, EARLY, UNKNOWN = (_key(name) for name in ("revoked", "expired", "early", "none"))
SECRETS = (ACME, OTHER, OPERATOR, REVOKED, EXPIRED, EARLY, UNKNOWN)

SYNTHETIC = {
    "runtime": "synthetic", "options": {"base_ms": 0}, "lengths": {"max": 32},
    "slo": {"latency_ms": 1000},
}  # fmt: skip
MODELS: dict[str, Any] = {
    "device": SYNTHETIC,  # acme's
    "theirs": SYNTHETIC | {"lengths": {"max": 64}},  # other's
    "vectors": SYNTHETIC | {"task": "embed"},  # acme's
    "secrets": SYNTHETIC | {"task": "embed"},  # other's
    "shared": SYNTHETIC | {"cache": {"max_bytes": 1_000_000}},
    "slow": SYNTHETIC | {"options": {"base_ms": 150}, "coalesce": True},
}
TENANTS = {
    "acme": {
        "models": ["device", "vectors", "shared", "slow", "chat"],
        "keys": [
            {"id": "acme-1", "hash": hash_key(ACME)},
            {"id": "acme-revoked", "hash": hash_key(REVOKED)},
            {"id": "acme-old", "hash": hash_key(EXPIRED), "expires": "2001-01-01T00:00:00Z"},
            {"id": "acme-new", "hash": hash_key(EARLY), "not_before": "2101-01-01T00:00:00Z"},
        ],
    },
    "other": {
        "models": ["theirs", "secrets", "shared", "slow", "chat:sql"],
        "keys": [{"id": "other-1", "hash": hash_key(OTHER)}],
    },
}


def bearer(key: str) -> bytes:
    return b"authorization: Bearer %b" % key.encode()


CALLER = bearer(ACME) + b"\r\n"


class Keyed:
    """`edge`, `gateway`, `direct`: where requests are sent; `told`: HAProxy's options; `stand`:
    what is behind all, `engines` those of its model that generates."""

    edge: Target
    gateway: Target
    direct: Target
    stand: Stand

    def __init__(self, folder: Path) -> None:
        self._folder, self._authority = folder, Authority(folder)
        self._tls = self._authority.tls()
        self.told = {
            "CERTIFICATE": self._tls.certificate, "KEY": self._tls.key,
            "CLIENT_CA": self._tls.authority, "CLIENT_CA_OPERATORS": 1,
        }  # fmt: skip
        self.engines = Answering()
        self._heard = _Heard()
        # Not `headrace` itself, which whoever makes a gateway configures anew.
        named = [each for each in logging.root.manager.loggerDict if each.startswith("headrace.")]
        self._loggers = [logging.root, *map(logging.getLogger, named)]

    def built(self, gateway: dict[str, Any]) -> Stand:
        """For the thread of the loop that it is to run on."""
        encoders = {"vectors": Encoder(), "secrets": Encoder()}
        self.stand = stand = Stand(
            MODELS, self._folder, gateway={"auth": "required"} | gateway, runtimes=encoders
        )
        stand.telemetry._access = AccessLog(min_status=0, max_per_s=1_000_000)
        add(stand, described, "chat", engines=self.engines)
        text = yaml.safe_dump({"tenants": TENANTS, "operators": {"keys": [hash_key(OPERATOR)]}})
        revoked = RevokedKeys(lambda: frozenset({hash_key(REVOKED)}))
        tenants = LiveTenants(
            PublishedTenants(lambda: text), auth=stand.settings.auth, revoked=revoked
        )
        for logger in self._loggers:
            logger.addHandler(self._heard)
        stand.app = assembled(stand.settings, tenants, stand.models, stand.pool, stand.telemetry)
        return stand

    def close(self) -> None:
        for logger in self._loggers:
            logger.removeHandler(self._heard)

    def trusting(self, *, certified: bool = False) -> ssl.SSLContext:
        """What a caller makes of the certificate; `certified`: it has one itself."""
        context = ssl.create_default_context(cafile=self._tls.authority)
        context.check_hostname = False
        if certified:
            context.load_cert_chain(self._tls.certificate, self._tls.key)
        return context

    def logged_secrets(self) -> list[str]:
        """Log lines, with all their fields, that hold a key."""
        return self._heard.secrets()


class _Heard(logging.Handler):
    """Keeps what holds a secret."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._found: list[str] = []
        self._adding = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        said = f"{record.getMessage()} {record.__dict__!r} {record.exc_text or ''}"
        if any(secret in said for secret in SECRETS):
            with self._adding:
                self._found.append(said)

    def secrets(self) -> list[str]:
        with self._adding:
            found, self._found = self._found, []
        return found
