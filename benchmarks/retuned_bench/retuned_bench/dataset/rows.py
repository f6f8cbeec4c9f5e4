"""From experiments to rows: verified evidence, duplicates, and the split of related rows.

Pure decisions; what must be looked up comes in through `Knowledge`. Between experiments a `Maker`
remembers 16 bytes and a split per row and source, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from retuned.contract import Definition, Digest, Environment, Solution, digest_of
from retuned.ports import Finding
from retuned.stages.verdict import EvidenceFault, Status
from retuned_bench.dataset.options import SEED
from retuned_bench.dataset.records import Attempt, EpisodeRow, Licenses, SftRow, Split
from retuned_bench.dataset.rules import (
    CATALOG_LICENSE,
    VERIFIED,
    Knowledge,
    fault_of,
    kin_of,
    reward_of,
    split_of,
)
from retuned_bench.dataset.sources import group_of
from retuned_bench.dataset.text import (
    RenderedText,
    author_of,
    completion_of,
    key_of,
    prompt_of,
    same_variant,
)
from retuned_bench.dataset.trials import EndedExperiment


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What the rows of one experiment share."""

    trial: EndedExperiment
    definition: Definition
    incumbent: Solution
    proven: dict[Digest, str]
    environment: Environment
    kin: str
    split: Split
    prompt: RenderedText


@dataclass(slots=True)
class Maker:
    """Makes rows, and knows again what it has made."""

    knowledge: Knowledge
    seed: str = SEED
    left_out: Counter[str] = field(default_factory=Counter)
    """What did not become a row or an attempt, by stable reason."""
    _seen: set[bytes] = field(default_factory=set)
    _places: dict[bytes, Split] = field(default_factory=dict)

    def winners(self, trial: EndedExperiment) -> Iterator[SftRow]:
        """Yield the best winner of each source; winners whose evidence is in doubt are left out."""
        setting = self._setting(trial)
        if setting is None:
            return
        best: dict[Digest, Finding] = {}
        for finding in trial.findings:
            if finding.verdict.status is not Status.PROMOTE:
                self.left_out["not-a-winner"] += 1
            elif setting.proven[finding.solution.digest] != VERIFIED:
                self.left_out[setting.proven[finding.solution.digest]] += 1
            else:
                group = group_of(finding.solution)
                self.left_out["near-duplicate"] += group in best
                best[group] = max((finding, best.get(group, finding)), key=_lower)
        for group, finding in best.items():
            if self._again("near-duplicate", setting.prompt.text, group):
                continue
            if self._belongs(setting.split, group_of(setting.incumbent), group):
                yield self._winner(setting, finding, group)

    def episode(self, trial: EndedExperiment) -> EpisodeRow | None:
        """Return an experiment with all that was tried; None if nothing of it can be told."""
        setting = self._setting(trial)
        if setting is None:
            return None
        if not self._belongs(setting.split, group_of(setting.incumbent)):
            return None
        attempts: list[Attempt] = []
        seen: set[str] = set()
        redacted = setting.prompt.redacted
        for finding in trial.findings:
            group = group_of(finding.solution)
            same = same_variant(finding.solution, group)
            if same in seen:
                self.left_out["duplicate"] += 1
            elif self._belongs(setting.split, group):
                seen.add(same)
                number = len(attempts) + 1
                attempt, changed = self._attempt(setting, finding, group, number=number)
                attempts.append(attempt)
                redacted = redacted or changed
        row = self._episode(setting, attempts, redacted=redacted) if attempts else None
        return None if row is None or self._again("duplicate", row.id) else row

    def _setting(self, trial: EndedExperiment) -> _Setting | None:
        """Return what rows share; None, and the reason counted, where something is not known."""
        plan, know = trial.plan, self.knowledge
        definition = know.definition(plan.definition)
        incumbent = know.incumbent(plan.definition, plan.incumbent)
        proven: dict[Digest, str] = {}
        environment: Environment | None = None
        for finding in trial.findings:
            document, fault = know.evidence(finding.verdict.evidence)
            fault = fault or fault_of(trial, finding, document)
            proven[finding.solution.digest] = fault or VERIFIED
            if document is not None and not fault:
                environment = document.environment
        for reason, missing in (
            ("no-candidates", not trial.findings),
            ("definition-unknown", definition is None),
            ("incumbent-unknown", incumbent is None),
            (_nothing_proven(proven.values()), environment is None),
        ):
            if missing:
                self.left_out[reason] += max(1, len(trial.findings))
                return None
        assert definition is not None
        assert incumbent is not None
        assert environment is not None
        kin = kin_of(definition.op_type)
        return _Setting(
            trial=trial,
            definition=definition,
            incumbent=incumbent,
            proven=proven,
            environment=environment,
            kin=kin,
            split=split_of(kin, seed=self.seed),
            prompt=prompt_of(
                definition,
                plan.workloads,
                environment=environment,
                incumbent=incumbent,
                redact=know.redact,
            ),
        )

    def _winner(self, setting: _Setting, finding: Finding, group: Digest) -> SftRow:
        know, verdict = self.knowledge, finding.verdict
        assert verdict.speedup is not None, "a promotion has one"
        assert verdict.noise_floor_ratio is not None, "a promotion has one"
        answer = completion_of(finding.solution, guard=verdict.guard, redact=know.redact)
        return SftRow(
            id=digest_of([setting.prompt.text, answer.text]),
            split=setting.split,
            kin=know.redact(setting.kin),
            op_type=know.redact(setting.definition.op_type),
            group=group,
            prompt=setting.prompt.text,
            completion=answer.text,
            speedup=verdict.speedup,
            noise_floor_ratio=verdict.noise_floor_ratio,
            licenses=Licenses(
                definition=self._license_of_definition(setting),
                incumbent=self._license(setting.incumbent),
                completion=self._license(finding.solution),
            ),
            redacted=setting.prompt.redacted or answer.redacted,
            candidate=finding.solution.digest,
            author=author_of(finding.solution),
        )

    def _attempt(
        self, setting: _Setting, finding: Finding, group: Digest, *, number: int
    ) -> tuple[Attempt, bool]:
        """Return an attempt, and whether something was taken out of it."""
        know, solution, verdict = self.knowledge, finding.solution, finding.verdict
        evidence = setting.proven[solution.digest]
        if evidence != VERIFIED:
            self.left_out["reward-not-verified"] += 1
        answer = completion_of(solution, guard=verdict.guard, redact=know.redact)
        attempt = Attempt(
            number=number,
            candidate=solution.digest,
            parents=solution.parents,
            generator=setting.trial.generators.get(solution.digest, ""),
            author=author_of(solution),
            group=group,
            completion=answer.text,
            status=verdict.status,
            reason=verdict.reason,
            gate=verdict.gate,
            detail=know.redact(verdict.detail),
            speedup=verdict.speedup if evidence == VERIFIED else None,
            reward=reward_of(verdict) if evidence == VERIFIED else None,
            evidence=evidence,
            license=self._license(solution),
        )
        return attempt, answer.redacted

    def _episode(
        self, setting: _Setting, attempts: Sequence[Attempt], *, redacted: bool
    ) -> EpisodeRow:
        rewards = [each.reward for each in attempts if each.reward is not None]
        body = [each.model_dump(mode="json") for each in attempts]
        return EpisodeRow(
            id=digest_of([setting.prompt.text, body]),
            split=setting.split,
            kin=self.knowledge.redact(setting.kin),
            op_type=self.knowledge.redact(setting.definition.op_type),
            prompt=setting.prompt.text,
            attempts=tuple(attempts),
            best_reward=max(rewards, default=None),
            definition_license=self._license_of_definition(setting),
            incumbent_license=self._license(setting.incumbent),
            redacted=redacted,
        )

    def _license(self, solution: Solution) -> str:
        shipped = all(self.knowledge.shipped(source) for source in solution.sources)
        return CATALOG_LICENSE if shipped else self.knowledge.license

    def _license_of_definition(self, setting: _Setting) -> str:
        own = self.knowledge.own(setting.definition.name)
        return self.knowledge.license if own else CATALOG_LICENSE

    def _again(self, reason: str, *parts: str) -> bool:
        """Whether the same was there before; if so it is counted."""
        key = key_of(*parts)
        again = key in self._seen
        self._seen.add(key)
        self.left_out[reason] += again
        return again

    def _belongs(self, split: Split, *groups: Digest) -> bool:
        """Whether no source of a row is in another split, which would give tests away."""
        keys = [key_of(group) for group in groups]
        if any(self._places.get(key, split) is not split for key in keys):
            self.left_out["source-in-another-split"] += 1
            return False
        self._places.update(dict.fromkeys(keys, split))
        return True


def _nothing_proven(faults: Iterable[str]) -> str:
    """Return why no evidence of an experiment counts: what is wrong with all of it, if one thing.

    A revoked key is such a thing; a version that signed nothing left no evidence at all.
    """
    found = set(faults)
    alike = len(found) == 1 and EvidenceFault.MISSING not in found
    return found.pop() if alike else "no-verified-evidence"


def _lower(finding: Finding) -> float:
    return finding.verdict.speedup.lower if finding.verdict.speedup else 0.0
