"""What a cluster's administrator decides about pods; all of it are values of the chart.

Settings of the sidecar from data: the values of the chart, by their names there. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from ipaddress import ip_address, ip_network
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from retuned.api.experiment import JobRole
from retuned.api.target import Vendor
from retuned.errors import UnreadableInput

Selector = Mapping[str, str]
_HTTP = ("http://", "https://")
_DETECTORS = ("production", "demo")
_LOG_FORMATS = ("text", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What the container of a Job may use, in Kubernetes' quantities."""

    cpu: str
    """Cores; requested and limited alike: a timing pod that is throttled measures the throttle."""
    memory: str
    """Memory, requested and limited alike."""
    work: str
    """Disk for sources, compiled objects and caches."""


DEFAULT_SIZES: Mapping[JobRole, Size] = MappingProxyType(
    {
        JobRole.COMPILE: Size(cpu="2", memory="4Gi", work="4Gi"),
        JobRole.GENERATE: Size(cpu="500m", memory="512Mi", work="256Mi"),
        JobRole.SEARCH: Size(cpu="4", memory="16Gi", work="8Gi"),
        JobRole.VERIFY: Size(cpu="4", memory="16Gi", work="8Gi"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a generator's language model answers; only ``generate`` pods reach it."""

    cidr: str
    """Addresses, such as ``203.0.113.7/32``."""
    port: int = 443
    """TCP port."""
    url: str = ""
    """Base of an OpenAI-compatible endpoint, ``https://host/v1``; empty uses no model."""
    model: str = ""
    """Name of the model, as the endpoint knows it."""
    prompt_usd_per_mtok: float | None = None
    """Price of what is read, dollars per million tokens; 0 for a server of one's own."""
    completion_usd_per_mtok: float | None = None
    """Price of what is written, dollars per million tokens."""
    max_tokens: int = 400_000
    """Most tokens of one experiment, read and written."""
    max_usd: float = 2.0
    """Most money of one experiment, dollars; set aside before it asks."""
    max_usd_per_day: float = 10.0
    """Most money set aside by all experiments within 24 hours, dollars."""
    variants: int = 12
    """Most variants that are written for one experiment."""
    max_s: int = 900
    """Longest time that writing them may take, seconds."""

    def __post_init__(self) -> None:
        if not self.url:
            return
        if not self.model:
            raise ValueError("endpoint.url is set and endpoint.model is not: name the model")
        if self.prompt_usd_per_mtok is None or self.completion_usd_per_mtok is None:
            raise ValueError("endpoint.url is set and a price is not: 0 is a server of your own")
        if not 1 <= self.max_s <= 80_000 or self.variants < 1 or self.max_tokens < 1:
            raise ValueError("the endpoint's bounds are at least 1, its time at most 80000 s")
        if min(self.prompt_usd_per_mtok, self.completion_usd_per_mtok, self.max_usd) < 0.0:
            raise ValueError("prices and money are not below 0")
        if self.host is None:
            raise ValueError(f"endpoint.url: {self.url[:80]!r} is not an http or https address")
        if not _is_address(self.host) and self.address is None:
            raise ValueError(
                "pods have no name server: where endpoint.url names a host, endpoint.cidr is its "
                "one address, such as 203.0.113.7/32"
            )

    @property
    def host(self) -> str | None:
        """Host of the address; None if the address is not valid."""
        parts = urlsplit(self.url)
        return parts.hostname if parts.scheme in ("http", "https") else None

    @property
    def is_open(self) -> bool:
        """Whether others could read along: it is neither https nor the pod itself."""
        host = self.host
        if host is None or self.url.startswith("https://"):
            return False
        return not (_is_address(host) and ip_address(host).is_loopback)

    @property
    def address(self) -> str | None:
        """The one address that is let through; None where there are several."""
        network = ip_network(self.cidr, strict=False)
        return str(network.network_address) if network.num_addresses == 1 else None

    @property
    def alias(self) -> tuple[str, str] | None:
        """Address and name for the pod's hosts file: it has no name server. None without a name."""
        host, address = self.host, self.address
        if host is None or address is None or _is_address(host):
            return None
        return address, host


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """How the pods of experiments look."""

    image: str
    """Image with the lab, by digest or tag."""
    namespace: str = ""
    """Where experiments run; empty is the namespace of the KernelExperiment."""
    pull_policy: str = "IfNotPresent"
    """When the image is pulled."""
    pull_secrets: tuple[str, ...] = ()
    """Names of the secrets that pull it."""
    priority_class: str = "retuned-experiment"
    """Priority class; a policy may name another one."""
    queue: str = ""
    """LocalQueue of Kueue, which then releases the Jobs; empty leaves that to the operator."""
    gpu_resources: Mapping[Vendor, str] = field(
        default_factory=lambda: MappingProxyType(
            {Vendor.AMD: "amd.com/gpu", Vendor.NVIDIA: "nvidia.com/gpu", Vendor.CPU: ""}
        )
    )
    """Name of the resource that a device plugin offers, by vendor. For servers on a processor it is
    what lets few such pods run at a time; empty asks for none."""
    gpu_models: Mapping[str, Selector] = field(default_factory=dict)
    """Labels of the nodes that have a model, such as ``{"MI300X": {"amd.com/gpu.family": ...}}``;
    a model that is not here gets no pod."""
    device_groups: Mapping[Vendor, tuple[int, ...]] = field(default_factory=dict)
    """Supplemental groups that may open the device, such as the ``render`` group of AMD's nodes."""
    runtime_class: str = ""
    """Sandbox, such as ``gvisor`` (NVIDIA only) or ``kata``; empty is the cluster's default."""
    user_namespaces: bool = False
    """Run in a separate user namespace, where nodes can; GPU plugins often cannot."""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    """Taints of GPU nodes that are tolerated."""
    user_id: int = 65532
    """User and group that the pods run as; never 0."""
    sizes: Mapping[JobRole, Size] = field(default_factory=lambda: DEFAULT_SIZES)
    """What each kind of Job may use."""
    compile_first: bool = True
    """Whether a pod without an accelerator compiles what a search on one would try, before it."""
    keep_s: int = 3600
    """How long a finished Job stays, seconds: an operator that is away for longer does not find
    its results, and has it made again."""
    endpoint: Endpoint | None = None
    """Where ``generate`` pods may connect to; None is nowhere."""
    endpoint_secret: str = ""
    """Secret with the endpoint's key, for ``generate`` pods alone."""

    def __post_init__(self) -> None:
        if self.user_id <= 0:
            raise ValueError("experiment pods never run as root")
        if self.endpoint is not None and self.endpoint_secret and self.endpoint.is_open:
            raise ValueError("endpoint.url: a key is sent over https only")

    @property
    def accelerators(self) -> frozenset[str]:
        """Names of the resources that are GPUs."""
        named = {name for vendor, name in self.gpu_resources.items() if vendor is not Vendor.CPU}
        return frozenset(named - {""})

    @property
    def asks_model(self) -> bool:
        """Whether variants are written by a model."""
        return self.endpoint is not None and bool(self.endpoint.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings:
    """How the sidecar looks that comes into server pods."""

    image: str
    """Image with sidecar and runtime."""
    agent_url: str
    """Address of the operator's agent API, ``https://...``."""
    pull_policy: str = "IfNotPresent"
    """When the image is pulled."""
    ca_config_map: str = "retuned-agent-ca"
    """ConfigMap with ``ca.crt``, which signs the agent API's certificate."""
    audience: str = "retuned.dev"
    """Audience of the token that proves which pod speaks."""
    token_s: int = 3600
    """Life of that token, seconds; it is renewed before it ends."""
    user_id: int = 65532
    """User of the sidecar; the runtime in the server lets it connect."""
    trusted_keys: str = ""
    """Public keys whose artifacts a server loads, hex, by commas; empty trusts none by itself."""
    cpu: str = "20m"
    """Requested cores."""
    cpu_limit: str = "200m"
    """Most cores."""
    memory: str = "128Mi"
    """Memory, requested and limited alike."""
    artifacts: str = "1Gi"
    """Disk for artifacts, and for reports that the operator has not taken yet."""
    window_s: int = 300
    """Length of a window of the workload, seconds."""
    settle_s: int = 30
    """How long after a window's end its traces may still land, seconds."""
    baseline_windows: int = 6
    """Windows that make the first baseline."""
    profile_every_s: int = 0
    """How often the runtime profiles the server by itself, seconds; 0 never: no GPU has seen it."""
    profile_milliseconds: int = 200
    """Longest time that one such window records."""
    detector: str = "production"
    """How eager the drift detector is: ``production`` for days of traffic, ``demo`` for minutes."""
    server_metrics_url: str = ""
    """Where a server has its own metrics, as its pod reaches them, such as
    ``http://127.0.0.1:8000/metrics``; the annotation of a pod goes first. Empty reads none."""
    traces_url: str = ""
    """Where spans are posted, OTLP over HTTP; the pods of servers must reach it. Empty sends
    none."""
    metrics_address: str = "127.0.0.1"
    """Address that its metrics are served on; they name kernels. ``0.0.0.0`` lets Prometheus in."""
    log_format: str = "text"
    """How it logs: ``text`` for people, ``json`` for machines, one object a line."""

    def __post_init__(self) -> None:
        if self.user_id <= 0:
            raise ValueError("the sidecar never runs as root")
        if not self.agent_url.startswith("https://"):
            raise ValueError(f"the agent API is reached by https, not {self.agent_url[:40]!r}")
        if not 600 <= self.token_s <= 86_400:
            raise ValueError("a projected token lives for 600 to 86400 seconds")
        if not 1 <= self.window_s <= 86_400 or not 0 <= self.settle_s <= 3_600:
            raise ValueError("a window is 1 to 86400 seconds long, and settles for 0 to 3600")
        if not 1 <= self.baseline_windows <= 10_000:
            raise ValueError("a baseline is made of 1 to 10000 windows")
        if not 0 <= self.profile_every_s <= 86_400 or not 5 <= self.profile_milliseconds <= 5_000:
            raise ValueError(
                "the period of profiler windows must be 0 (off) or 1 to 86400 s, and a window "
                "must record 5 to 5000 ms"
            )
        if self.server_metrics_url and not self.server_metrics_url.startswith(_HTTP):
            raise ValueError("the server's metrics are read over http or https")
        if self.detector not in _DETECTORS:
            raise ValueError(f"detector is {' or '.join(_DETECTORS)}, not {self.detector[:40]!r}")
        if self.log_format not in _LOG_FORMATS:
            known = " or ".join(_LOG_FORMATS)
            raise ValueError(f"the log's format is {known}, not {self.log_format[:40]!r}")


_MAX_TEXT = 4096


def value_name(name: str) -> str:
    """Return the name of a setting among the chart's values.

    Examples
    --------
    >>> value_name("agent_url"), value_name("token_s")
    ('agentUrl', 'tokenSeconds')
    """
    first, *rest = name.split("_")
    return first + "".join("Seconds" if part == "s" else part.capitalize() for part in rest)


def sidecar_settings(data: object, *, where: str) -> SidecarSettings:
    """Read the settings of the sidecar.

    Parameters
    ----------
    data
        A mapping such as ``{"image": ..., "agentUrl": ...}``; others keep their defaults.
    where
        For messages.

    Raises
    ------
    UnreadableInput
        ``settings-invalid``, naming the setting.

    Examples
    --------
    >>> sidecar_settings({"image": "i", "agentUrl": "https://r:8443"}, where="here").token_s
    3600
    """
    if not isinstance(data, Mapping):
        raise _wrong(where, "expected a mapping of settings, such as image and agentUrl")
    known = {value_name(each.name): each for each in fields(SidecarSettings)}
    for key in data:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"
            raise _wrong(where, f"unknown setting {str(key)[:60]!r}{hint}")
    missing = [k for k, each in known.items() if each.default is MISSING and not data.get(k)]
    if missing:
        raise _wrong(where, f"{' and '.join(missing)} must be given")
    values = {each.name: _value(data[k], each, where) for k, each in known.items() if k in data}
    try:
        return SidecarSettings(**values)
    except ValueError as error:
        raise _wrong(where, str(error)) from None


def _value(found: object, field: Field[Any], where: str) -> Any:  # noqa: ANN401 - text or number
    """Return a value of the setting's type; quantities may be written as numbers."""
    name = value_name(field.name)
    if field.type == "int":
        if isinstance(found, bool) or not isinstance(found, int):
            raise _wrong(where, f"{name}: expected a whole number")
        return found
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise _wrong(where, f"{name}: expected text")
    if len(str(found)) > _MAX_TEXT:
        raise _wrong(where, f"{name}: longer than {_MAX_TEXT} characters")
    return str(found)


def _wrong(where: str, message: str) -> UnreadableInput:
    return UnreadableInput("settings-invalid", where=where, message=message)
