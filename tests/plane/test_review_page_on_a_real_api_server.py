"""The review page's words on a real API server: impersonation, roles, admission and the audit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.expect import raises_naming
from tests.operators.examples import ARTIFACT
from tests.plane.control_plane import ControlPlane
from tests.plane.reviewing import Place, reviewed

from retuned.clock import SystemClock
from retuned.errors import Refused
from retuned.review.ports import ReviewedProposal
from retuned.review.records import Act, Person
from retuned_operator.kube.errors import Forbidden
from retuned_operator.kube.resources import DECISIONS, SECRETS
from retuned_operator.review.access import AccessReview
from retuned_operator.review.decisions import ClusterDeciding

pytestmark = pytest.mark.plane

ADA = Person(user="ada", groups=("gpu-platform",))
EVE = Person(user="eve", groups=("interns",))


@pytest.fixture(scope="module")
def place(plane: ControlPlane) -> Iterator[Place]:
    with reviewed(plane, "reviewing") as found:
        yield found


@pytest.fixture(scope="module")
def deciding(place: Place) -> ClusterDeciding:
    return ClusterDeciding(place.page, clock=SystemClock())


@pytest.fixture(scope="module")
def seen(place: Place) -> ReviewedProposal:
    return ReviewedProposal(artifact=ARTIFACT, policy=place.digest())


def test_a_word_is_written_as_the_person_and_the_admission_policy_agrees(
    place: Place, deciding: ClusterDeciding, seen: ReviewedProposal
) -> None:
    key = place.proposal("swp-yes")
    deciding.decide(ADA, key, Act.APPROVE, seen=seen, comment="looks right")
    (word,) = place.said("swp-yes")
    assert (word["user"], word["groups"]) == ("ada", ["gpu-platform"])
    assert (word["decision"], word["channel"]) == ("Approve", "review-page")


def test_who_may_only_look_and_who_asked_are_refused_by_the_cluster_itself(
    place: Place, deciding: ClusterDeciding, seen: ReviewedProposal
) -> None:
    key = place.proposal("swp-no", requestedBy="ada")
    with raises_naming(Refused, "swapdecisions"):
        deciding.decide(EVE, key, Act.APPROVE, seen=seen, comment="let me")
    with pytest.raises(Refused, match="the user who asked for a swap cannot approve it"):
        deciding.decide(ADA, key, Act.APPROVE, seen=seen, comment="mine")
    assert place.said("swp-no") == []


def test_the_page_may_speak_for_nobody_else_and_say_nothing_itself(
    place: Place, deciding: ClusterDeciding, seen: ReviewedProposal
) -> None:
    key = place.proposal("swp-else")
    for who in (
        Person(user="mallory", groups=("gpu-platform",)),
        Person(user="ada", groups=("cluster-admins",)),
        Person(user="ada", groups=("system:masters",)),
    ):
        with pytest.raises(Refused):
            deciding.decide(who, key, Act.REJECT, seen=seen, comment="x")
    with pytest.raises(Forbidden):
        place.page.create(DECISIONS, {"metadata": {"name": "own", "namespace": place.name}})
    with pytest.raises(Forbidden):
        place.page.acting_as("ada", ("gpu-platform",)).list(SECRETS, namespace=place.name)
    assert place.said("swp-else") == []


def test_what_somebody_may_see_is_what_the_cluster_lets_them_list(place: Place) -> None:
    sight = AccessReview(place.page, clock=SystemClock())
    assert sight.sees(EVE, place.name)
    assert sight.namespaces(ADA, (place.name, "default")) == {place.name, "default"}
    assert not sight.sees(Person(user="mallory"), place.name)
