"""Settings of an administrator: the chart's file, and the variables of a pod.

Precedence: defaults < the file that ``RETUNED_OPERATOR_CONFIG`` names < the environment. An unknown
name is refused in all of them.

Parts of the chart's file: names in them that may be a person's, and reading one part.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, AliasChoices, BaseModel, Field, TypeAdapter, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from retuned.errors import UsageError
from retuned.strict_yaml import parse, read_text
from retuned_operator.manifests import JobSettings, SidecarSettings

_MAX_PROBLEMS = 5
M = TypeVar("M", bound=BaseModel)


def _of_people(value: str) -> str:
    if value.lower().startswith("system:"):
        raise ValueError("names that begin with system: belong to the cluster itself")
    return value


PersonName = Annotated[
    str, Field(min_length=1, max_length=256, pattern=r"^[\x21-\x7e]+$"), AfterValidator(_of_people)
]
"""Name of a user or of a group, as the API server knows it; none of the cluster's own."""


def read_part(model: type[M], given: object, *, where: str) -> M:
    """Read one part of the file.

    Parameters
    ----------
    where
        What the file calls it.

    Raises
    ------
    UsageError
        With each thing that is wrong.
    """
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise UsageError(f"{where}: {problems_of(error)}") from error


def problems_of(error: ValidationError) -> str:
    """Return where values are wrong and why, the first few, in one line and without the values."""
    problems = error.errors(include_url=False, include_input=False)[:_MAX_PROBLEMS]
    return "; ".join(
        f"{'.'.join(str(part) for part in item['loc']) or 'the whole'}: {item['msg']}"
        for item in problems
    )


PREFIX = "RETUNED_OPERATOR_"
CONFIG = f"{PREFIX}CONFIG"
"""Variable that names the file."""
_IN_SECONDS = ("keep", "token", "window", "settle", "profile_every")
_RENAMED = {f"{name}_seconds": f"{name}_s" for name in _IN_SECONDS}
_Port = Annotated[int, Field(ge=0, le=65_535)]
D = TypeVar("D", JobSettings, SidecarSettings)
_READERS: Mapping[type, TypeAdapter[Any]] = {
    each: TypeAdapter(each) for each in (JobSettings, SidecarSettings)
}
"""Made once: it takes 15 ms, and each reconcile of an experiment needs these settings."""


def _named(camel: str) -> Any:  # noqa: ANN401 - pydantic's own type
    """Return a field that the file writes in camelCase and the environment in capitals."""
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", camel).upper()
    return AliasChoices(camel, PREFIX + snake)


class Settings(BaseSettings):
    """Everything that may be set."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    namespaces: Annotated[tuple[str, ...], NoDecode] = ()
    """Namespaces with servers; empty means all of the cluster."""
    environment: str = ""
    """Value of the label ``env`` of targets that have none."""
    prometheus_url: str = Field(default="", validation_alias=_named("prometheusUrl"))
    """Address of Prometheus, for metrics of rollouts and alerts; empty queries none."""
    slo_alerts: str = Field(default="", validation_alias=_named("sloAlerts"))
    """PromQL that returns something while the service level is in danger; empty queries none."""
    allow_service_accounts: bool = Field(
        default=False, validation_alias=_named("allowServiceAccounts")
    )
    """Whether the admission policies let programs decide; the gate asks the policy besides."""
    canary_replicas: bool = Field(default=False, validation_alias=_named("canaryReplicas"))
    """Whether canary replicas may be made where a policy asks for them; it needs rights on pods."""
    traces_url: str = Field(default="", validation_alias=_named("tracesUrl"))
    """Where spans are posted, OTLP over HTTP, such as ``http://collector:4318/v1/traces``; empty
    sends none, unless OpenTelemetry's own variables name a collector."""
    jobs: dict[str, Any] = Field(default_factory=dict)
    """How pods of experiments look, see `JobSettings`."""
    sidecar: dict[str, Any] = Field(default_factory=dict)
    """How the sidecar looks, see `SidecarSettings`."""
    review: dict[str, Any] = Field(default_factory=dict)
    """Address of the review page and the proxy that it trusts, see `ReviewSettings`."""
    channels: dict[str, Any] = Field(default_factory=dict)
    """Channels for notices and answers of people, see `ChannelSettings`."""
    state_dir: Path = Path("/var/lib/retuned")
    """Store, keys and certificates."""
    tls_dir: Path | None = None
    """Mounted certificate, of cert-manager; None keeps certificates of our own."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe line in the log."""
    log_format: Literal["text", "json"] = "text"
    """``text`` for people, ``json`` for machines: one object a line."""
    address: str = "0.0.0.0"
    """Where to listen."""
    agent_port: _Port = 8443
    """Port of the agent API."""
    metrics_port: _Port = 8080
    """Port of health and metrics."""
    webhook_port: _Port | None = None
    """Port of the webhook; None serves none."""
    review_port: _Port | None = None
    """Port of the review page; None serves none."""
    channels_port: _Port | None = None
    """Port on which channels are heard; None hears none."""
    pod_name: str = "retuned-operator"
    """Name of this pod; the lease names the leader by it."""
    pod_namespace: str = "retuned"
    """Namespace of this pod, with lease and certificate."""
    definitions_dir: Path | None = None
    """Folder of definition files of the cluster's own kernels; None has none."""
    kubeconfig: Path | None = None
    """How to reach the API server from outside of the cluster; None is the pod's account."""

    def job_settings(self) -> JobSettings:
        """Return how pods of experiments look.

        Raises
        ------
        UsageError
            If a value is unknown or wrong.
        """
        return _built(JobSettings, {"image": "retuned/experiment", **self.jobs}, where="jobs")

    def sidecar_settings(self) -> SidecarSettings:
        """Return how the sidecar looks.

        Raises
        ------
        UsageError
            If a value is unknown or wrong.
        """
        return _built(SidecarSettings, self.sidecar, where="sidecar")


def load_settings(config: Path | None = None) -> Settings:
    """Read all layers.

    Parameters
    ----------
    config
        The file; None takes the one that the environment names, or none.

    Raises
    ------
    UsageError
        With each setting that is wrong.
    UnreadableInput
        If the file is absent or no plain YAML.
    """
    named = os.environ.get(CONFIG)
    path = config or (Path(named) if named else None)
    data = parse(read_text(path), path=path).data if path else {}
    if data is not None and not isinstance(data, dict):
        raise UsageError(f"{path}: expected `setting: value` lines")
    _check_names()

    class Layered(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            from_file = InitSettingsSource(settings_cls, init_kwargs=data or {})
            return env_settings, from_file

    try:
        return Layered()
    except ValidationError as error:
        raise UsageError(f"{path or 'the environment'}: {problems_of(error)}") from error


def _check_names() -> None:
    """Refuse unknown variables: a misspelt one would otherwise be ignored without a message."""
    known = {CONFIG, *(PREFIX + name.upper() for name in Settings.model_fields)}
    unknown = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    if unknown:
        raise UsageError(f"unknown variables: {', '.join(unknown)}")


def _built(model: type[D], given: Mapping[str, Any], *, where: str) -> D:
    """Return settings from camelCase values; None means the default."""
    known = {each.name for each in dataclasses.fields(model)}
    values = {}
    for key, value in given.items():
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", key).lower()
        name = _RENAMED.get(name, name)
        if name not in known:
            raise UsageError(f"{where}.{key} is unknown; there are {', '.join(sorted(known))}")
        if value is not None:
            values[name] = value
    try:
        found: D = _READERS[model].validate_python(values)
    except ValidationError as error:
        raise UsageError(f"{where}: {problems_of(error)}") from error
    return found
