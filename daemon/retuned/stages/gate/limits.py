"""Limits of a policy: experiments, the floor of validation, and how a swap spreads.

`enforcement.CLUSTER_ONLY` lists the fields that act in a cluster only.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from retuned.stages.gate.values import (
    DNS,
    Bytes,
    Duration,
    Percent,
    PolicyModel,
    PositiveDuration,
    parse_duration,
)
from retuned.stages.gate.windows import ProofWindow

_DAY = parse_duration("24h")


class ExperimentBudget(PolicyModel):
    """Cost limits of experiments."""

    gpu_hours_per_day: float = Field(default=4.0, ge=0.0)
    """Device time of all experiments in 24 hours; 0 forbids experiments."""
    max_trials: int = Field(default=64, ge=1)
    """Variants in one experiment."""
    trial_deadline: PositiveDuration = Field(default=parse_duration("15m"))
    """Time limit of one variant, compiling included. In a cluster only."""


class PauseWhen(PolicyModel):
    """Conditions under which experiments do not start."""

    slo_alert_firing: bool = True
    """An alert on the server's service level is firing."""


class Experiments(PolicyModel):
    """Experiments under this policy."""

    max_concurrent: int = Field(default=1, ge=0)
    """Most experiments at the same time; 0 forbids experiments."""
    budget: ExperimentBudget = ExperimentBudget()
    """Cost limits."""
    priority_class_name: str = Field(default="retuned-experiment", pattern=DNS)
    """Kubernetes priority of experiment pods. In a cluster only."""
    pause_when: PauseWhen = PauseWhen()
    """Conditions under which experiments pause. In a cluster only."""


class Pauses(PolicyModel):
    """Moments in which the server launches nothing. Those of experiments: on one machine only."""

    experiments: bool = False
    """Whether experiments on tunables may use the server's own GPU, in pauses of the server.

    Without it they need another GPU of the same model on which nothing runs."""
    longest_ms: int = Field(default=500, ge=10, le=2000)
    """Longest pause of an experiment, milliseconds."""
    max_share: float = Field(default=0.2, ge=0.01, le=1.0)
    """Most time of pauses over elapsed time: while an experiment runs, and of captures beside
    requests."""
    recapture: bool = True
    """Whether graphs are captured again with a table while no request is under way.

    One size takes about a second, and a request that arrives in that time waits."""
    recapture_after: Duration | None = None
    """How long these captures wait for a moment without requests.

    After it they run beside requests, one size after the other, and each is a pause of the server
    (0.03 to about 2 s in three servers on an H200). `maxShare` bounds their time, and sizes in use
    come first. Without it they wait without end, and a server that is never without requests keeps
    its own choices in its graphs."""


class EndToEndRule(StrEnum):
    """Whether a swap must be measured on the whole server."""

    REQUIRED = "required"
    """A swap is kept only if it was measured and reached half of its predicted gain."""
    WHEN_POSSIBLE = "whenPossible"
    """A swap that was measured and failed is rolled back; one that could not be measured is kept.
    """
    OFF = "off"
    """The server is not measured."""


class LiveProofMode(StrEnum):
    """Whether a swap must be proven on live traffic."""

    REQUIRED = "required"
    """A swap is kept only if steps of the server were faster with it."""
    OBSERVE = "observe"
    """It is measured where that is possible, and the result is reported; nothing follows."""
    OFF = "off"
    """It is not measured."""


class Unproven(StrEnum):
    """What a live proof without a gain or a harm leads to."""

    WITHDRAW = "withdraw"
    """The swap rolls back."""
    KEEP = "keep"
    """The swap is kept."""


class NotSwitchable(StrEnum):
    """What a required live proof means for a swap that cannot be switched off and on."""

    CANARY = "canary"
    """Boots of canary replicas must prove it against control replicas; without them it is held."""
    REFUSE = "refuse"
    """Nothing is swapped."""
    KEEP = "keep"
    """The swap is kept without a measurement."""


CANARY_SHAM_PAIRS = 8
"""A/A pairs of canary replicas, before those with the swap."""
CANARY_MOST_PAIRS = 16
"""Pairs that count after which a proof by canary replicas ends."""


class OwnOverhead(StrEnum):
    """Whether Retuned measures what it adds to a step of the server."""

    MEASURED = "measured"
    """It is measured once a day, and launches are counted less often where it is too much."""
    OFF = "off"
    """It is not measured."""


def _within_a_day(duration: timedelta) -> timedelta:
    if duration > _DAY:
        raise ValueError("a replica is measured for at most 24h")
    return duration


BootDuration = Annotated[PositiveDuration, AfterValidator(_within_a_day)]
"""A time of a canary replica's life."""


class ServiceLevels(PolicyModel):
    """Bounds of what users see while a swap is proven; a breach switches it off.

    They are read from the server's own metrics, over ten seconds.
    """

    ttft_p99_ms: int | None = Field(default=None, ge=1, le=3_600_000)
    """Longest time to the first token of 99 of 100 requests, milliseconds; default no bound."""
    itl_p99_ms: int | None = Field(default=None, ge=1, le=3_600_000)
    """Longest time between two tokens in 99 of 100 cases, milliseconds; default no bound."""
    max_queue: int | None = Field(default=None, ge=0, le=10**9)
    """Most requests that wait; default no bound."""

    @property
    def asked(self) -> bool:
        """Whether there is a bound."""
        return any(each is not None for each in (self.ttft_p99_ms, self.itl_p99_ms, self.max_queue))


class LiveProof(PolicyModel):
    """Live proof: a swap is switched off and on in random order, and steps are timed."""

    mode: Annotated[
        # YAML of Kubernetes reads a bare `off` as false
        LiveProofMode, BeforeValidator(lambda value: "off" if value is False else value)
    ] = LiveProofMode.OBSERVE
    """Whether the proof decides, is only reported, or is not made."""
    min_effect: float = Field(default=0.005, gt=0.0, le=0.5)
    """Smallest difference of step time that counts as an effect."""
    max_harm: float = Field(default=0.05, gt=0.0, le=1.0)
    """Slowdown that ends the proof immediately when several pairs in a row show it."""
    max_duration: PositiveDuration = Field(default=parse_duration("30m"))
    """Longest time until a verdict, pauses included."""
    long_blocks: int = Field(default=20, ge=0, le=200)
    """Pairs of 10 s that must confirm a gain before it is final."""
    on_no_effect: Unproven = Unproven.WITHDRAW
    """What follows where the swap changes nothing that can be measured."""
    on_too_little_traffic: Unproven = Unproven.WITHDRAW
    """What follows where traffic was too little for a verdict."""
    switching: bool = True
    """Whether swaps may be switched off and on in serving servers to measure them.

    Without it `whenNotSwitchable` says what follows, as for a swap that cannot be switched."""
    when_not_switchable: NotSwitchable = NotSwitchable.REFUSE
    """What `mode: required` means where nothing can be switched off and on, as in a tuned file.

    The same holds where the steps of a server are not known."""
    canary_pairs: int = Field(default=1, ge=1, le=8)
    """Most pairs of canary replicas that run at one time; each pair needs two additional pods."""
    canary_leave_out: BootDuration = Field(default=parse_duration("10m"))
    """First time of a canary replica that is left out, after its first step."""
    canary_window: BootDuration = Field(default=parse_duration("10m"))
    """Time of a canary replica that is measured after that."""
    sentinel: float = Field(default=0.008, ge=0.0, le=0.1)
    """Share of time in which a promoted swap is switched off to measure it; 0 ends that.

    One pair of blocks of 10 s runs at a random moment of each period. In a cluster one pod of each
    environment is measured."""
    own_overhead: Annotated[
        OwnOverhead, BeforeValidator(lambda value: "off" if value is False else value)
    ] = OwnOverhead.MEASURED
    """Whether the cost of Retuned's own wrappers is measured; they leave the server meanwhile.

    It concerns the whole server: `off` in one policy that selects it is enough."""
    slo: ServiceLevels = ServiceLevels()
    """Service levels that the server must meet while a swap is measured."""
    windows: tuple[ProofWindow, ...] = Field(default=(), max_length=64)
    """Times at which a swap with a live proof may start, beside `spec.windows`; default always.

    A proof that has begun goes on. With `mode: off` they have no effect."""

    @property
    def switches(self) -> bool:
        """Whether swaps may be switched off and on in serving servers."""
        return self.switching and self.mode is not LiveProofMode.OFF


class BatchInvariance(StrEnum):
    """Whether a row may get other bits in a batch of another size."""

    IF_INCUMBENT = "ifIncumbent"
    """Not if the incumbent's rows keep their bits."""
    OFF = "off"
    """It may; outputs are not compared bit by bit."""


class Validation(PolicyModel):
    """The floor that no approval overrides."""

    min_speedup: float = Field(default=1.05, ge=1.0)
    """Smallest lower confidence bound of incumbent time over candidate time."""
    confidence: float = Field(default=0.99, ge=0.5, lt=1.0)
    """Smallest confidence of that bound."""
    batch_invariance: Annotated[
        BatchInvariance, BeforeValidator(lambda value: "off" if value is False else value)
    ] = BatchInvariance.IF_INCUMBENT
    """Whether rows must keep their bits in batches of other sizes.

    This applies to the variant; with a narrow guard, other sizes run the incumbent, whose bits
    differ."""
    max_vram_increase_bytes: Bytes = Field(
        default=0, validation_alias="maxVRAMIncrease", serialization_alias="maxVRAMIncrease"
    )
    """Device memory that the variant may use beyond the incumbent's."""
    end_to_end: Annotated[
        # YAML of Kubernetes reads a bare `off` as false
        EndToEndRule, BeforeValidator(lambda value: "off" if value is False else value)
    ] = EndToEndRule.WHEN_POSSIBLE
    """Whether a swap is measured on the whole server, off and on in turn."""


class Capture(PolicyModel):
    """Samples of the inputs of the server's launches, for experiments. They contain user data."""

    enabled: bool = False
    """Whether samples are taken."""
    max_bytes: Bytes = 64 * 2**20
    """Most bytes for one kernel, in each process of the server and for one experiment."""
    retention: PositiveDuration = Field(default=_DAY)
    """How long an experiment may keep them; they are deleted earlier if the experiment ends."""


class CanaryStep(PolicyModel):
    """A share of the launches of a server, and the conditions to leave this step."""

    fraction: float = Field(gt=0.0, le=1.0)
    """Share of launches that run the new kernel."""
    min_checks: int = Field(default=300, ge=1)
    """Clean shadow checks at this step, of each shape bucket: 300 bound a failure rate of 1 %."""
    min_seconds: float = Field(default=60.0, ge=0.0)
    """Shortest time at this step."""
    patience: Duration = Field(default=parse_duration("1h"))
    """After this time, shape buckets with too few checks are left out of the guard."""


class Orphan(StrEnum):
    """What a canary does if its daemon does not return."""

    HOLD = "hold"
    """It keeps its fraction."""
    ROLLBACK = "rollback"
    """It rolls back."""


class Canary(PolicyModel):
    """First servers, and first launches of a server, to be swapped."""

    pods: int = Field(default=1, ge=1)
    """How many servers."""
    bake: Duration = Field(default=parse_duration("30m"))
    """How long they are watched before further servers are swapped."""
    steps: tuple[CanaryStep, ...] = Field(default=(), max_length=16)
    """Rising shares of the launches of a server; all launches follow the last step.

    An empty list swaps all launches immediately."""
    shadow_first: bool = False
    """Serve the incumbent and shadow the new kernel until it has the checks of the first step."""
    lease: Duration = Field(default=parse_duration("10m"))
    """An unfinished canary becomes an orphan if no daemon contacts it for this long."""
    orphan: Orphan = Orphan.HOLD
    """What an orphan does."""

    @model_validator(mode="after")
    def _steps_rise(self) -> Canary:
        shares = [step.fraction for step in self.steps]
        if shares != sorted(set(shares)):
            raise ValueError("the fractions of a canary's steps must rise")
        return self


class Shadow(PolicyModel):
    """Checks of launches against the incumbent."""

    max_share: float = Field(default=0.02, gt=0.0, le=1.0)
    """Most time of checks over elapsed time, in each process; further checks are skipped.

    The device's time of the incumbent and of the comparison counts."""


class Metric(PolicyModel):
    """One number that must stay within a bound during a rollout."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    """Name of the metric."""
    query: str = Field(min_length=1, max_length=4000)
    """PromQL with one value; ``$namespace``, ``$target`` and ``$pods`` (those with the swap, a
    regular expression) are filled in."""
    max: str = Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,6})?x baseline$")
    """Bound, such as ``1.02x baseline``.

    The baseline is the value of the query when the first pod got the order."""
    min_samples: int = Field(default=200, ge=1)
    """Fewest stored samples behind the value, as Prometheus counts them."""


class Analysis(PolicyModel):
    """Metric checks during a rollout."""

    interval: PositiveDuration = Field(default=parse_duration("1m"))
    """Time between two measurements."""
    failure_limit: int = Field(default=1, ge=0)
    """Failed measurements that are allowed."""
    inconclusive_limit: int = Field(default=3, ge=0)
    """Inconclusive measurements before the rollout pauses for a decision."""
    no_data_as: Literal["Inconclusive", "Failed"] = "Inconclusive"
    """Result of a measurement without data; never a success."""
    metrics: tuple[Metric, ...] = ()
    """Metrics to measure. On one machine no query is made: a measurement has no data there."""


class RollbackCause(StrEnum):
    """Why a swap is rolled back without approval."""

    ANALYSIS_FAILED = "AnalysisFailed"
    NUMERIC_MISMATCH = "NumericMismatch"
    POD_CRASH = "PodCrash"
    """In a cluster only: on one machine a crash looks like a restart."""
    SLO_ALERT = "SLOAlert"
    """In a cluster only: on one machine no alerts are read."""


class AutoRollback(PolicyModel):
    """Rollback without a person."""

    enabled: bool = True
    """Whether swaps are rolled back automatically; a numeric mismatch always is."""
    on: tuple[RollbackCause, ...] = tuple(RollbackCause)
    """Causes. Quote the key in Kubernetes, whose YAML reads a bare ``on`` as true."""
    quarantine: Duration = Field(default=parse_duration("7d"))
    """How long the artifact is not proposed again."""


class Rollout(PolicyModel):
    """How a swap spreads over servers."""

    canary: Canary = Canary()
    """First servers, and first launches of a server."""
    shadow: Shadow = Shadow()
    """Checks of launches against the incumbent."""
    waves: tuple[Percent, ...] = Field(default=("100%",), min_length=1)
    """Rising shares of the servers; the last is 100%."""
    max_concurrent_swaps: int = Field(default=1, ge=1)
    """Servers that may be swapped at the same time."""
    min_healthy_percent: int = Field(default=90, ge=0, le=100)
    """Share of healthy servers below which no further server is swapped."""
    min_interval: Duration = Field(default=parse_duration("10m"))
    """Shortest time between two swaps of one target."""
    analysis: Analysis = Analysis()
    """Metric checks during the rollout."""
    auto_rollback: AutoRollback = AutoRollback()
    """Rollback without a person."""
    post_promotion_watch: Duration = Field(default=_DAY)
    """How long the swap is watched after the last wave."""

    @model_validator(mode="after")
    def _rising(self) -> Rollout:
        shares = [int(wave.removesuffix("%")) for wave in self.waves]
        if shares != sorted(set(shares)) or shares[-1] != 100:
            raise ValueError("waves must rise and end with 100%")
        return self
