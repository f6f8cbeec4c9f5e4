"""Every setting of Retuned, in one place.

Strength: defaults < configuration file (YAML or TOML) < environment ``RETUNED_*`` < flags. What is
not known is refused, wherever it stands: a misspelt setting that is silently ignored is a fault
that shows only at night. ``docs/configuration.md`` is made from the texts below.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from retuned.errors import UnreadableInput, UsageError
from retuned.strict_yaml import Tree, parse, problems_of, read_text, suggest

PREFIX = "RETUNED_"
RESERVED = frozenset(
    {
        "RETUNED_ALLOWED_UIDS",
        "RETUNED_ARTIFACTS_DIR",
        "RETUNED_ARTIFACT_CACHE",
        "RETUNED_CAPTURE",
        "RETUNED_COMPILE",
        "RETUNED_CONFIG",
        "RETUNED_ENDPOINT_KEY",
        "RETUNED_EXPERIMENT_UID",
        "RETUNED_GRAPHS",
        "RETUNED_HOST_SOCKET",
        "RETUNED_JOB",
        "RETUNED_MESSAGE_PATH",
        "RETUNED_OPERATORS",
        "RETUNED_PROFILE",
        "RETUNED_PROFILE_EVERY_S",
        "RETUNED_PROFILE_MS",
        "RETUNED_RESULTS_DIR",
        "RETUNED_ROLE",
        "RETUNED_RUNTIME",
        "RETUNED_SERVER",
        "RETUNED_SERVER_TARGET",
        "RETUNED_SHADOW_BYTES",
        "RETUNED_SHADOW_STREAM",
        "RETUNED_TORCH",
        "RETUNED_TORCH_INDEX",
        "RETUNED_TRACE_DIR",
        "RETUNED_TRITON",
        "RETUNED_TRITON_TIMING",
        "RETUNED_TRUST",
        "RETUNED_TRUSTED_KEY",
        "RETUNED_TUNED",
    }
)
"""Names in the environment that are not settings of the daemon: others read them."""


def _split(separator: str) -> BeforeValidator:
    def split(value: object) -> object:
        if isinstance(value, str):
            return [part for part in (p.strip() for p in value.split(separator)) if part]
        return value

    return BeforeValidator(split)


def _cores(value: object) -> object:
    """Read ``0,2-3`` as taskset does."""
    if not isinstance(value, str):
        return value
    cores: list[int] = []
    for part in filter(None, value.replace(" ", "").split(",")):
        low, dash, high = part.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise ValueError("cores are written like 0,2-3")
        first, last = int(low), int(high or low)
        if last - first > 4096:
            raise ValueError("cores are written like 0,2-3")
        cores += range(first, last + 1)
    return cores


def _pairs(value: object) -> object:
    """Read ``a=b,c=d``."""
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in value.split(",") if part.strip()]
    if not all(sign for _, sign, _ in pairs):
        raise ValueError("pairs are written like a=b,c=d")
    return {key.strip(): text.strip() for key, _, text in pairs}


def _json(value: object) -> object:
    """Read JSON, from the environment."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError("is written as JSON in the environment") from None


def _ordered(bounds: tuple[int, int | str]) -> tuple[int, int | str]:
    low, high = bounds
    if isinstance(high, int) and low > high:
        raise ValueError(f"the least number, {low}, is above the largest, {high}")
    return bounds


_Whole = Annotated[int, Field(strict=True, ge=-(2**53), le=2**53)]
_LastPlace = Annotated[str, Field(pattern=r"^[A-Za-z_]\w{0,99}( *- *[0-9]{1,9})?$")]
Bounds = Annotated[tuple[_Whole, _Whole | _LastPlace], AfterValidator(_ordered)]
"""Least and largest number, both included; the largest may be a length less a number."""
KernelBounds = Annotated[dict[str, dict[str, Bounds]], BeforeValidator(_json)]
Folder = Annotated[Path, AfterValidator(Path.expanduser)]
Paths = Annotated[tuple[Folder, ...], _split(os.pathsep)]
Cores = Annotated[tuple[Annotated[int, Field(ge=0, le=65_535)], ...], BeforeValidator(_cores)]
Pairs = Annotated[dict[str, str], BeforeValidator(_pairs)]
Proposer = Literal["search", "porting", "recipes"]
Proposers = Annotated[tuple[Proposer, ...], _split(",")]


def _state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "retuned"


class Settings(BaseModel):
    """Everything a person may set."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    state_dir: Folder = Field(default_factory=_state_dir)
    """Folder of the state: database, evidence, compiled variants. Readable by its owner only."""
    watch_dirs: Paths = ()
    """Folders into which profilers write traces. In the environment separated by colons."""
    socket_dir: Folder | None = None
    """Folder of the servers' control sockets; `sockets` in the state folder where not set."""
    policy_files: Paths = ()
    """Gate policies, files or folders of YAML files. Without one nothing is ever swapped."""
    definition_files: Paths = ()
    """Definitions of your own kernels, files or folders of YAML files; see
    `docs/writing-a-definition.md`."""
    allow_unconfined_references: bool = False
    """Run the references of those definitions even where the kernel has neither seccomp nor
    Landlock: then nothing but a static check stands between a definition file and this machine."""

    target: str = Field(default="local", min_length=1, max_length=253)
    """Name of the server that is watched, as proposals and policies call it."""
    env: str = Field(default="dev", min_length=1, max_length=63)
    """Environment of the server, which gates ask for, such as `prod`."""
    labels: Pairs = Field(default_factory=dict)
    """Labels of the server, which policies select by. In the environment written `a=b,c=d`."""
    group_map: Pairs = Field(default_factory=dict)
    """Policy group by group of this machine (`wheel=sre-oncall`); `user:ada=sre-leads` maps one
    user. In the environment written `a=b,c=d`."""

    window_s: float = Field(default=300.0, gt=0.0)
    """Length of a window of the workload, seconds."""
    settle_s: float = Field(default=30.0, ge=0.0)
    """How long after a window's end its trace files may still land, seconds; at least the 2 s for
    which a file must have stood still, and two polls."""
    baseline_windows: int = Field(default=6, ge=1)
    """Windows that make the first baseline."""
    explain_windows: int = Field(default=2, ge=1)
    """Windows from a drift report on that show which shapes the new traffic has."""
    detector_preset: Literal["production", "demo"] = "production"
    """How eager the drift detector is: `production` for days of traffic, `demo` for minutes, where
    fewer checks keep a swap of a pod, too."""
    max_trace_bytes: int = Field(default=16 * 2**30, ge=1)
    """Trace files larger than this after decompression are refused, bytes."""

    kernel_bounds: KernelBounds = Field(default_factory=dict)
    """Between which numbers a live kernel's whole numbers lie where they are places in another
    tensor, by kernel and parameter: `{"pkg.ops:gather": {"index_ptr": [0, "n_rows - 1"]}}`; see
    `docs/lifting.md`. In the environment as JSON."""

    lab_language: Literal["auto", "cpu_cpp", "triton"] = "auto"
    """Language of the server's kernels and of the variants: `cpu_cpp` for a server on the CPU,
    `triton` for one on a GPU; `auto` takes `triton` where there is a GPU that PyTorch can use."""
    lab_cores: Cores = ()
    """Cores that experiments may use, like `0,2-3`; empty picks cores that the server does not."""
    experiments_per_day: int = Field(default=24, ge=0)
    """Most experiments that begin within 24 hours; each costs `max_experiment_s` of the lab."""
    experiment_s_per_day: float = Field(default=4 * 3600.0, ge=0.0)
    """No experiment begins when those of the last 24 hours took so long, seconds."""
    max_candidates: int = Field(default=32, ge=1)
    """Most variants that one experiment compiles."""
    generators: Annotated[Proposers, Field(min_length=1)] = ("search",)
    """Generators of variants: `search` (parameters), `porting` (winners from elsewhere), `recipes`
    (named changes; they may write source). A bandit decides the turns of several. In the
    environment separated by commas."""
    max_experiment_s: float = Field(default=120.0, gt=0.0)
    """Most wall time of one experiment, seconds."""
    finalists: int = Field(default=3, ge=1, le=3)
    """Most variants that are measured again from zero on held-out seeds."""
    max_attempts: int = Field(default=3, ge=1)
    """Most experiments on one hypothesis and its refinements."""
    max_shapes: int = Field(default=4, ge=1, le=64)
    """Most shapes that one hypothesis is about."""

    min_saving_ratio: float = Field(default=0.002, ge=0.0, le=1.0)
    """Smallest share of all GPU time that a swap must save to be proposed."""
    proposal_ttl_s: float = Field(default=86_400.0, gt=0.0)
    """After this an undecided proposal is expired, seconds; the `ttl` of its policy's gate can end
    it sooner, never later."""
    quarantine_s: float = Field(default=604_800.0, ge=0.0)
    """How long a variant that was rolled back is not proposed again, seconds."""
    retention_days: float = Field(default=30.0, ge=8.0, le=36_500.0)
    """Compiled variants and raw samples that nothing in force, ordered or proposed needs are
    removed after so many days; sources and verdicts stay. A win is proposed again within a week."""
    evidence_retention_days: float = Field(default=365.0, ge=8.0, le=36_500.0)
    """Signed evidence that nothing in force, ordered or proposed needs is removed after so many
    days, never sooner than `retention_days`."""
    shadow_every: int = Field(default=50, ge=1)
    """One swapped launch in so many is checked against the incumbent."""

    capture_inputs: bool = False
    """Whether samples of what launches are given may be taken for experiments, where the policy of
    the kernel permits it too (`spec.capture`). They are data of the server's users: see
    docs/captured-inputs.md."""
    capture_every: int = Field(default=100_000, ge=1000)
    """One launch in so many gives its inputs, per shape."""
    capture_max_bytes: int = Field(default=64 * 2**20, ge=1024, le=2**30)
    """Most bytes of captured inputs of one kernel, in each process of the server and for one
    experiment, whatever a policy permits."""
    capture_keep_s: float = Field(default=86_400.0, gt=0.0)
    """Longest time that an experiment's captured inputs are kept, seconds; they are removed when it
    ends anyway."""

    end_to_end_url: str = Field(default="", max_length=2000)
    """Base address of the server's OpenAI-compatible API, such as `http://127.0.0.1:8000/v1`, where
    a swap is measured on the whole server, switched off and on in turn. Empty measures nothing."""
    end_to_end_prompts: Folder | None = None
    """File of the requests that are sent to measure, one JSON object a line as the body of
    `POST /completions`; see docs/end-to-end.md."""
    end_to_end_concurrency: int = Field(default=4, ge=1, le=256)
    """Requests that are under way at a time while a swap is measured."""
    end_to_end_s: float = Field(default=1800.0, gt=0.0)
    """Most time that measuring one swap on the whole server may take, seconds."""

    server_metrics_url: str = Field(default="", max_length=2000)
    """Address of the Prometheus metrics of the server, such as `http://127.0.0.1:8000/metrics`.
    `spec.liveProof.slo` of a policy needs it. Without it no swap that has such bounds is proven. In
    a pod the injection sets it."""

    evolve_url: str = Field(default="", max_length=2000)
    """Base address of an OpenAI-compatible endpoint, such as `https://host/v1`, that writes
    variants of kernels; empty is off. What is sent there: docs/evolution.md."""
    evolve_model: str = Field(default="", max_length=200)
    """Name of the language model, as the endpoint knows it."""
    evolve_key_variable: str = Field(default="", pattern=r"^([A-Za-z_][A-Za-z0-9_]{0,127})?$")
    """Variable in the environment that holds the endpoint's key; the key itself is never a setting.
    Empty sends none."""
    evolve_prompt_usd_per_mtok: float | None = Field(default=None, ge=0.0)
    """Price of what the model reads, dollars per million tokens; 0 for a server of your own."""
    evolve_completion_usd_per_mtok: float | None = Field(default=None, ge=0.0)
    """Price of what the model writes, dollars per million tokens; 0 for a server of your own."""
    evolve_max_tokens: int = Field(default=400_000, ge=1)
    """Most tokens of one experiment, read and written; a question that might pass it is not
    asked."""
    evolve_max_usd: float = Field(default=2.0, ge=0.0)
    """Most money of one experiment, dollars; a question that might pass it is not asked."""
    evolve_max_usd_per_day: float = Field(default=10.0, ge=0.0)
    """Most money of all experiments within 24 hours, dollars."""
    evolve_temperature: float | None = Field(default=0.8, ge=0.0, le=2.0)
    """How freely the model chooses; not set (`null` in a file) leaves it to the endpoint."""
    evolve_answer_tokens: int = Field(default=8_000, ge=256, le=200_000)
    """Longest answer, tokens; models that think aloud need more."""
    evolve_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """How the endpoint calls the longest answer."""
    evolve_hint_dir: Folder | None = None
    """Folder of people's hints for the model, `DEFINITION.md` or `FAMILY.md`."""

    environment_mismatch: Literal["refuse", "warn"] = "refuse"
    """What happens where a server runs on another device, Triton or Triton switches than those a
    variant was measured with: `refuse` swaps nothing in, `warn` swaps and writes it to the log."""

    mixed_epochs: Literal["refuse", "allow"] = "refuse"
    """Whether processes of one server may differ in what they run: `refuse` takes a swap back from
    all where one died while they committed, or does not follow in time; `allow` tells those that
    are behind again. Kernels that take part in collectives need `refuse`."""
    catch_up_s: float = Field(default=300.0, gt=0.0)
    """How long a process that was restarted or came late may take to follow the others, seconds."""

    agent_url: str = Field(default="", max_length=2000)
    """Address of the operator's agent API, `https://host:port`, for `retuned sidecar`; in a pod the
    injection sets this and what follows."""
    token_file: Folder | None = None
    """File of the token that proves which pod this is; the kubelet writes and renews it."""
    ca_file: Folder | None = None
    """Certificate authority of the agent API, PEM; not set takes the machine's."""
    pod_namespace: str = Field(default="", max_length=63)
    """Namespace of the pod."""
    pod_name: str = Field(default="", max_length=253)
    """Name of the pod."""
    pod_uid: str = Field(default="", max_length=64)
    """Uid of the pod."""
    report_poll_s: float = Field(default=10.0, gt=0.0, le=60.0)
    """How often a sidecar tells the operator how its slots stand, seconds."""
    spool_bytes: int = Field(default=64 * 2**20, ge=2**20)
    """Most bytes of reports that a sidecar keeps while the operator does not answer; windows go
    first, what became of orders last."""
    max_folder_bytes: int = Field(default=512 * 2**20, ge=2**20)
    """Most bytes of traces in a sidecar's watched folders; what was read, and beyond this the
    oldest, is removed there, so that a profiler cannot fill the pod's disk."""

    observe_poll_s: float = Field(default=5.0, gt=0.0)
    """How often folders are looked at and experiments are planned, seconds."""
    steer_poll_s: float = Field(default=0.25, gt=0.0)
    """How often decisions, orders and watched swaps are looked at, seconds; a rollback waits for
    at most this."""
    metrics_port: int = Field(default=9475, ge=0, le=65_535)
    """Port of the Prometheus metrics; 0 serves none."""
    metrics_address: str = "127.0.0.1"
    """Address of the Prometheus metrics; they name kernels, so think before opening them."""
    review: str = Field(default="", max_length=80)
    """Address of the review page, `HOST:PORT` of this machine alone, such as `127.0.0.1:9476`;
    empty serves none. The page identifies its reader by the user that the browser runs as
    (`docs/on-call.md`)."""
    review_url: str = Field(default="", max_length=2000)
    """Address under which people reach the review page, which messages link to; empty takes that of
    `review`, which only this machine can open."""
    alertmanager_url: str = Field(default="", max_length=2000)
    """Base address of an Alertmanager that proposals are posted to as alerts, for a machine whose
    metrics no Prometheus reads; empty posts none. Channels: docs/notify.md."""
    alertmanager_token: str = Field(default="", max_length=1000)
    """Bearer token for it: a file, or `env:NAME`. Retuned reads this and all secrets below again
    for each use; the secrets themselves are never settings."""
    slack_webhook: str = Field(default="", max_length=1000)
    """Address of a Slack incoming webhook, which is a secret: a file, or `env:NAME`."""
    slack_token: str = Field(default="", max_length=1000)
    """Slack bot token for `chat.postMessage`: a file, or `env:NAME`; instead of `slack_webhook`,
    and with `slack_channel`."""
    slack_channel: str = Field(default="", pattern=r"^([A-Z0-9]{2,20})?$")
    """Id of the Slack channel, such as `C012AB3CD`."""
    slack_signing_secret: str = Field(default="", max_length=1000)
    """Signing secret of the Slack app, a file or `env:NAME`: with `slack_team`, `slack_users` and
    `channels_listen` messages have buttons that people may decide by."""
    slack_team: str = Field(default="", pattern=r"^(T[A-Z0-9]{1,20})?$")
    """Id of the Slack workspace that presses may come from."""
    slack_users: Pairs = Field(default_factory=dict)
    """User of this machine by Slack's user id; who is not here has no word there. In the
    environment written `U012AB=ada,U034CD=bob`."""
    webhook_url: str = Field(default="", max_length=2000)
    """Address of your own that every message is posted to, signed with `webhook_secret`."""
    webhook_secret: str = Field(default="", max_length=1000)
    """Secret that those requests are signed with: a file, or `env:NAME`."""
    channels_listen: str = Field(default="", max_length=80)
    """Where Slack's presses and Alertmanager's webhooks arrive, `HOST:PORT` of this machine alone;
    what comes from elsewhere comes through a proxy that ends TLS. Empty listens nowhere."""
    alertmanager_webhook_token: str = Field(default="", max_length=1000)
    """Bearer token that Alertmanager's webhooks bring along: a file, or `env:NAME`. Without it none
    is heard."""
    alertmanager_pause_s: float = Field(default=21_600.0, ge=60.0, le=604_800.0)
    """How long an alert with the label `retuned_pause: "true"` stops tuning unless Alertmanager
    sends it again, seconds. `repeat_interval` must be at least half of it and less than it."""
    gpus: int = Field(default=1, ge=1, le=100_000)
    """Accelerators that the watched server uses; savings in hours are reckoned with it."""
    gpu_hour_usd: float | None = Field(default=None, ge=0.0)
    """Price of an hour of one accelerator, dollars; not set shows no money."""
    traces_url: str = Field(default="", max_length=2000)
    """Address that traces are sent to by OTLP over HTTP, such as
    `http://127.0.0.1:4318/v1/traces`. Empty takes that of OpenTelemetry's own variables, and
    without them nothing is sent; see docs/tracing.md."""
    log_format: Literal["text", "json"] = "text"
    """`text` for people, `json` for machines: one object a line."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is logged."""

    @property
    def sockets(self) -> Path:
        """Folder of the control sockets."""
        return self.socket_dir or self.state_dir / "sockets"

    @property
    def keys(self) -> Path:
        """Folder of the keys that sign evidence."""
        return self.state_dir / "keys"


def load_settings(
    config: Path | None = None, overrides: Mapping[str, Any] | None = None
) -> Settings:
    """Read all layers.

    Parameters
    ----------
    config
        YAML or TOML file; None takes the one that ``RETUNED_CONFIG`` names, or none.
    overrides
        Flags of the command line, by setting; None values are left aside.

    Raises
    ------
    UnreadableInput
        If the file is absent, or no plain YAML or TOML.
    UsageError
        With the file and line, variable or flag of each thing that is wrong.
    """
    named = os.environ.get("RETUNED_CONFIG")
    path = config or (Path(named) if named else None)
    tree = _read_config(path) if path else Tree(data={}, lines={})
    flags = {key: value for key, value in (overrides or {}).items() if value is not None}
    said = _environment()
    try:
        return Settings.model_validate({**tree.data, **said, **flags})
    except ValidationError as error:
        raise UsageError(_say(error, flags=flags, path=path, tree=tree)) from error


def _read_config(path: Path) -> Tree:
    text = read_text(path)
    tree = _toml(text, path) if path.suffix == ".toml" else parse(text, path=path)
    data = {} if tree.data is None else tree.data  # a file of comments only
    if not isinstance(data, dict):
        raise UsageError(f"{path}:1: expected `setting: value` lines")
    return Tree(data=data, lines=tree.lines)


def _toml(text: str, path: Path) -> Tree:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UnreadableInput("not-toml", where=str(path), message=str(error)) from error
    lines: dict[tuple[str | int, ...], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        key = line.strip().removeprefix("[").partition("=")[0].strip(" ]\"'")
        if key in data:
            lines.setdefault((key,), number)
    return Tree(data=data, lines=lines)


def _environment() -> dict[str, str]:
    """Return what the environment says, by setting; capitals do not matter there."""
    known = {PREFIX + name.upper(): name for name in Settings.model_fields}
    said: dict[str, str] = {}
    for name in sorted(os.environ):
        upper = name.upper()
        if upper in known:
            said[known[upper]] = os.environ[name]
        elif upper.startswith(PREFIX) and upper not in RESERVED:
            hint = (
                suggest(upper, sorted(known.keys() | RESERVED))
                or "; docs/configuration.md lists what is known"
            )
            raise UsageError(f"unknown setting {name} in the environment{hint}")
    return said


def _say(error: ValidationError, *, flags: Mapping[str, Any], path: Path | None, tree: Tree) -> str:
    texts = []
    for problem in problems_of(error, schema=_schema(), tree=tree):
        name = problem.path.partition(".")[0]
        variable = PREFIX + name.upper()
        if name in flags:
            where = f"flag {name}"
        elif variable in {n.upper() for n in os.environ}:
            where = f"environment {variable}"
        else:
            line = problem.line or tree.lines.get((name,))
            where = f"{path}:{line}" if line else str(path)
        texts.append(f"{where}: {problem.path}: {problem.message}")
    return "; ".join(texts)


def _schema() -> dict[str, Any]:
    return Settings.model_json_schema()
