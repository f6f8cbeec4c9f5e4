"""Records of a survey: the JSON of ``retuned survey``. Fields are added, never renamed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from retuned.contract import Record
from retuned.report.survey_features import AdapterState, Feature
from retuned.report.survey_files import SurveyedTable


class Gain(Record):
    """Time of the configuration in use over that of the best one."""

    low: float
    """Lower end of the range."""
    high: float
    """Upper end of the range."""
    expected: float
    """Ratio that the order of rows uses."""
    source: Literal["experiment", "prior", "none"]
    """``experiment`` is measured on this installation; ``prior`` on another machine."""
    note: str = ""
    """Cases of the prior, or the verdict of the experiment."""


class Roof(Record):
    """The time that physics allows, over the time that was measured; 1 is at the roof.

    The work is counted from below: every tensor once, and matrix products alone. A key holds ends
    of size classes, so `low` and `high` are the ends of what it leaves open. 1 / `low` is an upper
    bound of how many times as fast a better kernel can be; 1 / `high` is one for launches with the
    most work only.
    """

    low: float | None = None
    """If all that the key leaves open is favourable: the least work; None with a reason."""
    high: float | None = None
    """If all of it is unfavourable: the most work; at most 1; None with a reason."""
    sampled: float | None = None
    """Mean over steps of this size whose lengths the server sampled: an estimate between the ends,
    not a bound; None without such steps, and over several keys."""
    low_us: float | None = None
    """Time that physics allows for the least work, microseconds; None over several keys."""
    high_us: float | None = None
    """Time that physics allows for the most work, microseconds; None over several keys."""
    each_us: float | None = None
    """Measured mean time of one launch, microseconds; None over several keys, or if not timed."""
    reason: str = ""
    """Code of `ROOF_REASONS`; empty if there is a distance."""
    note: str = ""
    """What is not known; empty if nothing is to be added."""


ROOF_REASONS: Mapping[str, str] = {
    "roof-unknown": "the work does not follow from the key, or the card's peak rates are unknown",
    "time-unknown": "no launch was timed",
    "impossibly-fast": "the measured time is below what physics allows: the time, the key or the "
    "card is wrong",
}
"""Codes why the distance to the roof is unknown, each with its meaning."""


class SurveyedKey(Record):
    """One combination of axes that occurred in traffic."""

    axes: dict[str, int] = Field(default_factory=dict)
    """Values of the axes, bucket ends; empty where a trace gives shapes only."""
    shape: str = ""
    """Shape in the trace; empty for a server."""
    launches: int
    """Launches with this key, replays of graphs left out."""
    captured: int = 0
    """Launches that were captured into graphs."""
    weight: float
    """Part of the tunable's time; of its launches where none was timed."""
    how: str
    """``frozen``, ``exact``, ``nearest``, ``default``, ``literal``, ``table`` or ``unknown``."""
    config: str = ""
    """The configuration in use, as text."""
    detail: str = ""
    """What the server adds, such as the size of the only question."""
    gain: Gain
    """Expected gain at this key."""
    roof: Roof = Roof()
    """Distance to the roof at this key."""
    remarks: tuple[str, ...] = ()
    """Codes of `REMARKS` that are about this key."""


class RankDifference(Record):
    """A key that processes, or two starts of a server, resolved to different configurations."""

    axes: dict[str, int]
    """Values of the axes."""
    configs: dict[str, str]
    """Configuration by process; ``before`` and ``now`` for two starts."""


class ChangeWay(Record):
    """One way to change a tunable here."""

    way: str
    """``next-call``, ``recapture`` or ``restart``."""
    state: str
    """``on``, or the code why it is not open."""
    cost_s: float | None
    """Seconds for all captured sizes; None without a measurement."""
    cost: str
    """The cost in words."""


class SurveyedTunable(Record):
    """A kernel whose configuration Retuned can change in a running server."""

    id: str
    """Id in the control plane; empty for a kernel of a trace."""
    family: str
    """Family that the server reports, or the table's for a trace."""
    kernel: str
    """Name in traces."""
    processes: tuple[str, ...] = ()
    """Processes that report it."""
    share: float | None
    """Part of kernel time (trace) or of busy time (server); None if nothing was timed."""
    share_source: Literal["trace", "server", "none"]
    """Where `share` comes from."""
    resolved: dict[str, int]
    """Launches by how their configuration was chosen."""
    asked: tuple[SurveyedKey, ...]
    """Most time first."""
    hidden: int = 0
    """Keys that are not listed."""
    differences: tuple[RankDifference, ...] = ()
    """Keys where processes differ."""
    gain: Gain
    """Over all keys."""
    roof: Roof = Roof()
    """Over the keys that have a distance, by their time."""
    saving: float | None
    """Part of kernel time that a change is expected to save; None without a share."""
    ways: tuple[ChangeWay, ...]
    """Ways of change."""
    refused: str = ""
    """Code why the server refuses a change; empty if it does not."""
    table: str = ""
    """State of a table in force: ``engaged``, ``lost``; empty without one."""
    remarks: tuple[str, ...] = ()
    """Codes of `REMARKS`."""


REMARKS: Mapping[str, str] = {
    "gain-beyond-roof": "the expected gain needs less time than physics allows, so the gain, the "
    "time or the key is wrong",
    "graphs-not-counted": "launches inside captured graphs are not timed, so the share is a lower "
    "bound",
    "not-in-all-processes": "some processes do not report this tunable",
    "roof-partial": "some keys that were timed have no distance to the roof; it is over the others",
    "ranks-differ": "processes resolved one key to different configurations",
    "start-differs": "an earlier start of the server chose another configuration for one key",
    "share-partial": "some keys were not timed, so the share is a lower bound",
    "stream-idle": "at every launch of some keys that was due to be timed, the device waited for "
    "the host; a faster kernel does not help there",
}
"""Codes of remarks, each with its meaning."""


class FixedFamily(Record):
    """Kernels that Retuned cannot change in a running server."""

    family: str
    """Name in ``docs/tunables.md``."""
    title: str
    """Name for people."""
    kernels: int
    """Kernels of the family."""
    largest: str
    """Its kernel with the most time."""
    launches: int
    """Launches."""
    share: float
    """Part of kernel time."""
    reason: str
    """Code why not."""
    why: str
    """The reason as a sentence."""
    ways: tuple[ChangeWay, ...] = ()
    """Ways that need a restart; empty without one."""
    gain: Gain | None = None
    """What measurements say a change could gain; None without one."""


class Conclusion(Record):
    """The survey's last sentence."""

    code: Literal[
        "nothing-observed",
        "nothing-to-gain",
        "gain-expected",
        "gain-unknown",
        "gain-out-of-reach",
        "tables-faulty",
    ]
    """Stable word."""
    sentence: str
    """The sentence."""


class Survey(Record):
    """Everything that ``retuned survey`` found."""

    schema_version: Literal[1] = 1
    """Fields are added under the same number; a change of meaning gets another one."""
    processes: tuple[str, ...] = ()
    """Processes that answered."""
    launches: int = 0
    """Launches in the traces."""
    kernel_time_ns: int = 0
    """Kernel time of the traces, nanoseconds."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions that the first process reports."""
    card: str = ""
    """Card whose peak rates the roofs have; empty if processes or traces differ or name none."""
    tunables: tuple[SurveyedTunable, ...] = ()
    """Largest expected saving first."""
    fixed: tuple[FixedFamily, ...] = ()
    """Largest share first."""
    adapters: tuple[AdapterState, ...] = ()
    """Parts of the runtime by process."""
    features: tuple[Feature, ...] = ()
    """Features that switch tuning off or change its key."""
    tables: tuple[SurveyedTable, ...] = ()
    """Tuned files."""
    changeable_share: float | None = None
    """Part of kernel time that Retuned can change in the running server."""
    expected_saving: float | None = None
    """Part of kernel time that changes are expected to save."""
    conclusion: Conclusion
