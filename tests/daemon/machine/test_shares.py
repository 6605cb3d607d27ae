"""Limits per user: refused at the limit, counted by user and resource; administrators are never refused."""

import errno

import pytest

from utracefs_protocol.errors import TraceError
from utracefsd.machine.shares import LIMITS, Resource, Shares


@pytest.mark.parametrize("resource", Resource)
def test_the_limit_is_the_last_that_fits(resource: Resource) -> None:
    shares = Shares({resource: 2})
    for _ in range(2):
        shares.check(resource, 1000)
        shares.add(resource, 1000)
    with pytest.raises(TraceError) as caught:
        shares.check(resource, 1000)
    assert caught.value.errno == LIMITS[resource].errno
    assert "user 1000" in caught.value.text
    assert "{" not in caught.value.text
    assert ";" in caught.value.text, "and what to do about it"
    shares.check(resource, 1000, privileged=True)
    shares.check(resource, 1001)
    shares.drop(resource, 1000)
    shares.check(resource, 1000)
    assert shares.held(resource, 1000) == 1


def test_the_errors_that_the_protocol_promises() -> None:
    assert {resource: limit.errno for resource, limit in LIMITS.items()} == {
        Resource.CONNECTIONS: errno.EMFILE,
        Resource.DESCRIPTORS: errno.EMFILE,
        Resource.MESSAGE_BYTES: errno.ENOBUFS,
        Resource.EVENTS: errno.EMFILE,
        Resource.FIELDS: errno.EMFILE,
        Resource.OLD_IDS: errno.EMFILE,
        Resource.REGISTRATIONS: errno.EMFILE,
        Resource.ENABLERS: errno.ENOMEM,
        Resource.ENABLER_PAGES: errno.ENOMEM,
        Resource.RING_BYTES: errno.ENOMEM,
        Resource.STORED_RINGS: errno.EMFILE,
    }


def test_amounts() -> None:
    shares = Shares({Resource.RING_BYTES: 3 << 20})
    shares.add(Resource.RING_BYTES, 7, 2 << 20)
    shares.check(Resource.RING_BYTES, 7, 1 << 20)
    with pytest.raises(TraceError, match="2048 KiB; 3072 KiB"):
        shares.check(Resource.RING_BYTES, 7, (1 << 20) + 1)
    assert shares.held(Resource.EVENTS, 7) == 0
    assert shares.most_of(Resource.RING_BYTES, 7) == 3 << 20
    assert shares.held(Resource.RING_BYTES, 7) == 2 << 20
    shares.add(Resource.RING_BYTES, 7, 2 << 20)  # whatever the limit
    assert shares.most_of(Resource.RING_BYTES, 7) - shares.held(Resource.RING_BYTES, 7) <= 0


def test_what_is_not_held_is_not_dropped() -> None:
    shares = Shares()
    shares.add(Resource.EVENTS, 7)
    with pytest.raises(ValueError, match="user 7"):
        shares.drop(Resource.EVENTS, 7, 2)
    shares.drop(Resource.EVENTS, 7)
    assert shares.held(Resource.EVENTS, 7) == 0


@pytest.mark.parametrize("resource", Resource)
def test_the_limit_in_all_is_for_many_users(resource: Resource) -> None:
    """Administrators may exceed it, except for descriptors, of which some are reserved for the tree's socket,
    and for places whose number is fixed."""
    shares = Shares(in_all={resource: 3})
    for uid in (1000, 1001, 1002):
        shares.check(resource, uid)
        shares.add(resource, uid)
    with pytest.raises(TraceError) as caught:
        shares.check(resource, 1003)
    assert caught.value.errno == LIMITS[resource].errno
    assert f"3 {resource.value}" in caught.value.text
    if resource in (Resource.DESCRIPTORS, Resource.STORED_RINGS):
        with pytest.raises(TraceError):
            shares.check(resource, 0, privileged=True)
    else:
        shares.check(resource, 0, privileged=True)
    shares.drop(resource, 1001)
    shares.check(resource, 1003)
    assert shares.total(resource) == 2


@pytest.mark.parametrize("resource", Resource)
@pytest.mark.parametrize("in_all", [1, 94, 512, None])
def test_few_users_cannot_have_all(resource: Resource, in_all: int | None) -> None:
    """However small the total: each may take half of what is left, and the next user finds as much again."""
    shares = Shares(in_all={} if in_all is None else {resource: in_all})
    left = shares.in_all[resource]
    for uid in (1, 2, 3):
        most = shares.most_of(resource, uid)
        if left:
            shares.check(resource, uid, most)
            shares.add(resource, uid, most)
        assert most == min(LIMITS[resource].most, (left + 1) // 2)
        left -= most
        with pytest.raises(TraceError):
            shares.check(resource, uid)
    shares.drop(resource, 1)
    shares.check(resource, 4 if left else 1)


def test_refusals_are_counted_and_few_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    shares = Shares({Resource.EVENTS: 0})
    for _ in range(120):
        with pytest.raises(TraceError):
            shares.check(Resource.EVENTS, 7)
    assert shares.refusal(Resource.EVENTS, 8) is not None
    assert "events: 0 of 65535\n  refused: 120\n  refused to user 7: 120\nfields" in shares.text()
    logged = [record.getMessage() for record in caplog.records]
    assert [line.partition(":")[0] for line in logged] == [
        f"user 7 is refused, number {count}" for count in (1, 10, 100)
    ]


def test_scarce_is_more_than_half_of_ones_own_or_of_all() -> None:
    shares = Shares({Resource.EVENTS: 4}, {Resource.EVENTS: 8})
    shares.add(Resource.EVENTS, 1, 2)
    assert not shares.scarce(Resource.EVENTS, 1)
    shares.add(Resource.EVENTS, 1)
    assert shares.scarce(Resource.EVENTS, 1)
    assert not shares.scarce(Resource.EVENTS, 2)
    shares.add(Resource.EVENTS, 3, 2)
    assert shares.scarce(Resource.EVENTS, 2)


def test_the_text_has_limits_and_who_holds_most() -> None:
    shares = Shares({Resource.EVENTS: 20}, {Resource.EVENTS: 100})
    assert "\nevents: 0 of 100\nfields of large events: 0 of " in shares.text()
    for uid, held in ((1000, 2), (1001, 9), (1002, 3), (1003, 1)):
        shares.add(Resource.EVENTS, uid, held)
    users = "  user 1001: 9 of 20\n  user 1002: 3 of 20\n  user 1000: 2 of 20\n"
    assert f"\nevents: 15 of 100\n{users}fields of large events: 0 of " in shares.text()
    for resource in Resource:
        assert f"{resource.value}: " in shares.text()
