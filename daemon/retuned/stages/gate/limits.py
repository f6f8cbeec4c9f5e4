"""What a policy limits: experiments, the floor of validation, and how a swap spreads.

On one machine most of this is not enforced; `enforcement.NOT_ENFORCED` says which, and what holds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from retuned.stages.gate.values import (
    DNS,
    Bytes,
    Duration,
    Percent,
    PolicyModel,
    PositiveDuration,
    parse_duration,
)

_DAY = parse_duration("24h")


class ExperimentBudget(PolicyModel):
    """What experiments may cost."""

    gpu_hours_per_day: float = Field(default=4.0, ge=0.0)
    """Device time of all experiments in 24 hours; 0 forbids experiments."""
    max_trials: int = Field(default=64, ge=1)
    """Variants in one experiment."""
    trial_deadline: PositiveDuration = Field(default=parse_duration("15m"))
    """Time of one variant, compiling included."""


class PauseWhen(PolicyModel):
    """What stops experiments from starting."""

    slo_alert_firing: bool = True
    """An alert on the server's service level is firing."""


class Experiments(PolicyModel):
    """Experiments under this policy."""

    max_concurrent: int = Field(default=1, ge=0)
    """At the same time; 0 forbids experiments."""
    budget: ExperimentBudget = ExperimentBudget()
    """Limits."""
    priority_class_name: str = Field(default="retuned-experiment", pattern=DNS)
    """Kubernetes priority of experiment pods."""
    pause_when: PauseWhen = PauseWhen()
    """Reasons to pause."""


class EndToEndRule(StrEnum):
    """Whether a swap must prove itself on the whole server."""

    REQUIRED = "required"
    """Only a swap that was measured, and kept half of its promise, is kept."""
    WHEN_POSSIBLE = "whenPossible"
    """One that was measured and failed goes back; one that could not be measured stays."""
    OFF = "off"
    """Nothing is measured."""


class BatchInvariance(StrEnum):
    """Whether a row may get other bits in a batch of another size."""

    IF_INCUMBENT = "ifIncumbent"
    """Not where the incumbent's rows keep theirs."""
    OFF = "off"
    """It may: nobody compares answers bit by bit."""


class Validation(PolicyModel):
    """The floor that no approval overrides."""

    min_speedup: float = Field(default=1.05, ge=1.0)
    """Smallest lower confidence bound of incumbent time over candidate time."""
    confidence: float = Field(default=0.99, ge=0.5, lt=1.0)
    """Smallest confidence of that bound."""
    batch_invariance: Annotated[
        BatchInvariance, BeforeValidator(lambda value: "off" if value is False else value)
    ] = BatchInvariance.IF_INCUMBENT
    """Whether rows must keep their bits in batches of other sizes. It is asked of the variant; a
    narrow guard sends other sizes to the incumbent, whose bits are its own."""
    max_vram_increase_bytes: Bytes = Field(
        default=0, validation_alias="maxVRAMIncrease", serialization_alias="maxVRAMIncrease"
    )
    """Device memory the variant may take beyond the incumbent."""
    end_to_end: Annotated[
        # YAML of Kubernetes reads a bare `off` as false
        EndToEndRule, BeforeValidator(lambda value: "off" if value is False else value)
    ] = EndToEndRule.WHEN_POSSIBLE
    """Whether a swap is measured on the whole server, switched off and on in turn."""


class Capture(PolicyModel):
    """Samples of what launches of the server are given, for experiments; data of its users."""

    enabled: bool = False
    """Whether any are taken."""
    max_bytes: Bytes = 64 * 2**20
    """Kept for one kernel, in each process of the server and for one experiment."""
    retention: PositiveDuration = Field(default=_DAY)
    """How long an experiment may keep them; they go when it ends anyway."""


class CanaryStep(PolicyModel):
    """A share of the launches of a server, and what it takes to go on from it."""

    fraction: float = Field(gt=0.0, le=1.0)
    """Share of launches that run the new kernel."""
    min_checks: int = Field(default=300, ge=1)
    """Clean shadow checks at this step, of each shape bucket: 300 bound a failure rate of 1 %."""
    min_seconds: float = Field(default=60.0, ge=0.0)
    """Shortest time at this step."""
    patience: Duration = Field(default=parse_duration("1h"))
    """Shape buckets that have too few checks by then are left out of the guard."""


class Orphan(StrEnum):
    """What a canary does whose daemon does not come back."""

    HOLD = "hold"
    """It keeps its fraction."""
    ROLLBACK = "rollback"
    """It goes back by itself."""


class Canary(PolicyModel):
    """First servers, and first launches of a server, to be swapped."""

    pods: int = Field(default=1, ge=1)
    """How many servers."""
    bake: Duration = Field(default=parse_duration("30m"))
    """How long they are watched alone."""
    steps: tuple[CanaryStep, ...] = Field(default=(), max_length=16)
    """Rising shares of the launches of a server; after the last come all. None swaps all at
    once."""
    shadow_first: bool = False
    """Serve the incumbent and shadow the new kernel until it has the checks of the first step."""
    lease: Duration = Field(default=parse_duration("10m"))
    """An unfinished canary that no daemon asks after for so long is an orphan."""
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

    max_share: float = Field(default=0.1, gt=0.0, le=1.0)
    """Most time of checks over time passed, in each process; checks beyond are left out."""


class Metric(PolicyModel):
    """One number that must stay good during a rollout."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    """Name."""
    query: str = Field(min_length=1, max_length=4000)
    """PromQL with one value; ``$namespace``, ``$target`` and ``$pods`` (those with the swap, a
    regular expression) are filled in."""
    max: str = Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,6})?x baseline$")
    """Bound, such as ``1.02x baseline``: what the query said when the first pod was told."""
    min_samples: int = Field(default=200, ge=1)
    """Fewest stored samples that the value rests on, as Prometheus counts them."""


class Analysis(PolicyModel):
    """How a rollout is judged."""

    interval: PositiveDuration = Field(default=parse_duration("1m"))
    """Between two looks."""
    failure_limit: int = Field(default=1, ge=0)
    """Failed looks that are forgiven."""
    inconclusive_limit: int = Field(default=3, ge=0)
    """Looks without an answer before a person is asked."""
    no_data_as: Literal["Inconclusive", "Failed"] = "Inconclusive"
    """What a look without data is; never a success."""
    metrics: tuple[Metric, ...] = ()
    """What is looked at."""


class RollbackCause(StrEnum):
    """What sends a swap back without asking."""

    ANALYSIS_FAILED = "AnalysisFailed"
    NUMERIC_MISMATCH = "NumericMismatch"
    POD_CRASH = "PodCrash"
    SLO_ALERT = "SLOAlert"


class AutoRollback(PolicyModel):
    """Going back by itself."""

    enabled: bool = True
    """Whether to; a numeric mismatch goes back always."""
    on: tuple[RollbackCause, ...] = tuple(RollbackCause)
    """Causes; write the key quoted in Kubernetes, whose YAML reads a bare ``on`` as true."""
    quarantine: Duration = Field(default=parse_duration("7d"))
    """How long the artifact is not proposed again."""


class Rollout(PolicyModel):
    """How a swap spreads over servers."""

    canary: Canary = Canary()
    """First servers, and first launches."""
    shadow: Shadow = Shadow()
    """Checks of launches."""
    waves: tuple[Percent, ...] = Field(default=("100%",), min_length=1)
    """Rising shares, the last is 100%."""
    max_concurrent_swaps: int = Field(default=1, ge=1)
    """Servers that are being swapped at one time."""
    min_healthy_percent: int = Field(default=90, ge=0, le=100)
    """Below it no further server is touched."""
    min_interval: Duration = Field(default=parse_duration("10m"))
    """Between two swaps of one target."""
    analysis: Analysis = Analysis()
    """How it is judged."""
    auto_rollback: AutoRollback = AutoRollback()
    """Going back by itself."""
    post_promotion_watch: Duration = Field(default=_DAY)
    """How long the winner is watched after the last wave."""

    @model_validator(mode="after")
    def _rising(self) -> Rollout:
        shares = [int(wave.removesuffix("%")) for wave in self.waves]
        if shares != sorted(set(shares)) or shares[-1] != 100:
            raise ValueError("waves must rise and end with 100%")
        return self
