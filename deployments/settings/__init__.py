"""The settings file: one frozen tree, validated once, with errors that say what would be right.

`load(path)` reads a file; `parse` and `dump` are its way from and to plain data. The sections are
classes of their own, one file each; `docs/settings.md` lists every field.
"""

from deployments.settings.accept import AcceptSettings
from deployments.settings.classify import ClassifySettings
from deployments.settings.gateway import (
    PRIORITIES,
    GatewaySettings,
    LimitSettings,
    LogSettings,
    PreprocessSettings,
    TracingSettings,
)
from deployments.settings.generation import GenerationSettings
from deployments.settings.image import ImageSettings
from deployments.settings.lengths import LengthSettings, bucket_edges
from deployments.settings.load import (
    SettingsErrors,
    digest,
    dump,
    load,
    load_tenants,
    parse,
    with_address,
)
from deployments.settings.model import ModelSettings
from deployments.settings.model_fields import ReplicaSettings, SloSettings
from deployments.settings.reuse import CacheSettings
from deployments.settings.scheduling import (
    AdmissionSettings,
    BatchSettings,
    HedgeSettings,
    OutlierSettings,
    QueueSettings,
)
from deployments.settings.sources import SourceError
from deployments.settings.sources import resolve as source_path
from deployments.settings.tenant import DEFAULT_TENANT, RateSettings, TenantSettings
from deployments.settings.tree import ControllerSettings, Settings, TenantsSettings
from yaml_document.mistakes import Mistake

__all__ = [
    "DEFAULT_TENANT",
    "PRIORITIES",
    "AcceptSettings",
    "AdmissionSettings",
    "BatchSettings",
    "CacheSettings",
    "ClassifySettings",
    "ControllerSettings",
    "GatewaySettings",
    "GenerationSettings",
    "HedgeSettings",
    "ImageSettings",
    "LengthSettings",
    "LimitSettings",
    "LogSettings",
    "Mistake",
    "ModelSettings",
    "OutlierSettings",
    "PreprocessSettings",
    "QueueSettings",
    "RateSettings",
    "ReplicaSettings",
    "Settings",
    "SettingsErrors",
    "SloSettings",
    "SourceError",
    "TenantSettings",
    "TenantsSettings",
    "TracingSettings",
    "bucket_edges",
    "digest",
    "dump",
    "load",
    "load_tenants",
    "parse",
    "source_path",
    "with_address",
]
