"""Whom a slot map names, from what each node of a cluster says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError

from config.cluster import ClusterError, Owner, Slot, SlotMap
from config.locator import Address, LocatedConnection
from config.redis_url import Cluster

SEED = ("seed", 6379)
A, B, C = ("10.0.0.1", 6379), ("10.0.0.2", 6379), ("10.0.0.3", 6379)
TAG, SLOT = "{s3}", 6970
NAMES = {SEED: b"a", A: b"a", B: b"b", C: b"c"}


def claim(epoch: int, address: Address, *, down: bool = False) -> Owner:
    return Owner(0, 16383, epoch, address, is_down=down)


class Said(SlotMap):
    """Nodes that say what the test says: the owner of all slots, None if there is none."""

    def __init__(self, said: Mapping[Address, Owner | None]) -> None:
        super().__init__(Cluster((SEED,)))
        self.said = {SEED: next(iter(said.values())), **said}
        self.asked: list[Address] = []
        self.reachable = True

    def _ask_one(self, host: Address) -> tuple[bytes, list[Owner]]:
        self.asked.append(host)
        if host not in self.said:
            raise RedisConnectionError("refused")
        self._nodes = self._nodes or (A, B, C)
        owner = self.said[host]
        return NAMES.get(host, str(host).encode()), [owner] if owner is not None else []

    def _exchange(self, host: Address, *commands: Any) -> list[Any]:
        if not self.reachable:
            raise RedisConnectionError("timeout")
        return [b"PONG"]

    def everyone(self) -> None:
        for _ in range(3):
            self.ask(everyone=True)


class Cuttable:
    is_cut = False

    def __init__(self, slots: SlotMap, peer: Address) -> None:
        self.peer, self.slot = peer, Slot(slots, TAG)
        slots.register(cast("LocatedConnection", self))

    def is_elsewhere(self) -> bool:
        return self.peer != self.slot.named

    def cut(self) -> None:
        self.is_cut = True


@given(epochs=st.permutations([3, 7, 9]), order=st.permutations([A, B, C]))
def test_the_highest_epoch_counts_whoever_tells_of_it(epochs: list[int], order: list[Address]) -> None:
    slots = Said({teller: claim(epoch, owner) for teller, epoch, owner in zip(order, epochs, (A, B, C), strict=True)})
    slots.everyone()
    slots.address(SLOT)
    assert slots.named(SLOT) == dict(zip(epochs, (A, B, C), strict=True))[9]


def test_a_node_that_is_cut_off_is_not_believed_again() -> None:
    slots = Said({A: claim(1, A), B: claim(4, B), C: claim(4, B)})
    slots.address(SLOT)
    slots.everyone()
    assert slots.named(SLOT) == B
    del slots.said[B], slots.said[C], slots.said[SEED]
    slots._said.clear()
    slots.ask()
    assert slots.named(SLOT) == B


def test_a_cluster_that_was_set_up_anew_is_believed() -> None:
    slots = Said(dict.fromkeys((A, B, C), claim(9, A)))
    slots.address(SLOT)
    slots.said = dict.fromkeys((SEED, A, B, C), claim(1, C))
    slots.everyone()
    assert slots.named(SLOT) == C


def test_the_node_that_a_redirection_names_is_asked_first() -> None:
    slots = Said(dict.fromkeys((A, B, C), claim(1, A)))
    slots.address(SLOT)
    slots.said[C] = claim(2, C)
    slots.asked.clear()
    slots.moved(SLOT, C)
    assert slots.address(SLOT) == C
    assert slots.asked[0] == C


def test_a_node_that_nobody_knew_is_asked_when_a_redirection_names_it() -> None:
    new = ("10.0.0.9", 6379)
    slots = Said(dict.fromkeys((A, B, C), claim(1, A)))
    slots.address(SLOT)
    slots.said[new] = claim(2, new)
    slots.moved(SLOT, new)
    assert slots.address(SLOT) == new


def test_an_answer_serves_those_who_connect_at_the_same_time() -> None:
    slots = Said(dict.fromkeys((A, B, C), claim(1, A)))
    slots.address(SLOT)
    count = len(slots.asked)
    slots._asked_at += 3600
    slots.address(SLOT)
    assert len(slots.asked) == count
    slots.doubt()
    slots.address(SLOT)
    assert len(slots.asked) > count


def test_a_slot_that_moves_ends_the_connections_to_its_old_node_and_no_other() -> None:
    slots = Said(dict.fromkeys((A, B, C), claim(1, A)))
    slots._watching = True
    slots.address(SLOT)
    stale, fresh = Cuttable(slots, A), Cuttable(slots, B)
    fresh.slot = Slot(slots, TAG)
    slots.said = dict.fromkeys((SEED, A, B, C), claim(2, B))
    slots.everyone()
    assert (stale.is_cut, fresh.is_cut, slots.switches(SLOT)) == (True, False, 1)


def test_a_node_that_the_others_find_down_is_left_and_tried_only_if_it_answers() -> None:
    slots = Said(dict.fromkeys((A, B, C), claim(1, A)))
    slots._watching = True
    slots.address(SLOT)
    waiting = Cuttable(slots, A)
    slots.said = dict.fromkeys((SEED, B, C), claim(1, A, down=True))
    slots.everyone()
    assert waiting.is_cut
    slots.reachable = False
    with pytest.raises(ClusterError, match=r"10\.0\.0\.1:6379 is down, and no replica has taken over"):
        slots.address(SLOT)
    slots.reachable = True
    slots._silent.clear()
    assert slots.address(SLOT) == A


def test_the_nodes_of_the_url_are_asked_when_no_other_answers_and_an_error_says_why() -> None:
    slots = Said(dict.fromkeys((A, B, C), claim(1, A)))
    slots.address(SLOT)
    slots.said = {SEED: claim(2, B)}
    slots.doubt()
    assert slots.address(SLOT) == B
    slots.said = {}
    slots.doubt()
    with pytest.raises(ClusterError, match="no node of the cluster answers: refused"):
        slots.address(SLOT)


def test_a_slot_that_another_thread_asks_for_meanwhile_breaks_nobody() -> None:
    slots = Said({A: claim(1, A)})

    class Interrupted(list[Owner]):
        def __iter__(self) -> Iterator[Owner]:
            slots._slots.add(5000 + len(slots._slots))
            return super().__iter__()

    asked = slots._ask_one
    slots._ask_one = lambda host: (asked(host)[0], Interrupted([claim(1, A)]))  # type: ignore[method-assign]
    assert slots.address(SLOT) == A
    assert slots.address(SLOT + 1) == A


def test_a_slot_that_nobody_has_is_named() -> None:
    slots = Said(dict.fromkeys((A, B, C)))
    with pytest.raises(ClusterError, match="no node of the cluster has slot 6970"):
        slots.address(SLOT)


class Replying(SlotMap):
    """One node with these replies to CLUSTER SLOTS and CLUSTER NODES."""

    def __init__(self, slots: Any, nodes: Any) -> None:
        super().__init__(Cluster((SEED,)))
        self.replies = [slots, nodes]

    def _exchange(self, host: Address, *commands: Any) -> list[Any]:
        return self.replies


NODES = (
    b"n1 10.0.0.1:6379@16379,host1 myself,master - 0 0 5 connected 0-8191\n"
    b"n2 :0@0,host2 master,fail - 0 0 7 disconnected 8192-16383 [93-<-n1]\n"
)


def test_the_addresses_are_those_that_nodes_announce_to_clients() -> None:
    slots = [
        [0, 8191, [b"host1", 7001, b"n1", [b"ip", b"10.0.0.1"]], [b"::1", 7003, b"n3", []]],
        [8192, 16383, [b"host2", 7002, b"n2", []]],
    ]
    said_by, owners = Replying(slots, NODES)._ask_one(SEED)
    assert said_by == b"n1"
    assert owners == [
        Owner(0, 8191, 5, ("host1", 7001), replicas=(("::1", 7003),)),
        Owner(8192, 16383, 7, ("host2", 7002), is_down=True),
    ]


@pytest.mark.parametrize("host", [None, b""])
def test_a_node_without_a_name_is_where_it_was_asked_and_an_unknown_one_nowhere(host: bytes | None) -> None:
    slots = [[0, 100, [host, 7001, b"n1", []]], [101, 16383, [b"?", 7002, b"n2", []]]]
    _, owners = Replying(slots, NODES)._ask_one(SEED)
    assert owners == [Owner(0, 100, 5, ("seed", 7001))]


def test_without_the_right_to_see_epochs_the_map_is_used_as_it_is() -> None:
    slots = [[0, 16383, [b"10.0.0.1", 6379, b"n1"]]]
    said_by, owners = Replying(slots, NoPermissionError("no rights"))._ask_one(SEED)
    assert (said_by, owners) == (b"seed:6379", [Owner(0, 16383, 0, A)])


def test_a_node_that_is_in_no_cluster_says_so() -> None:
    refused = Replying(NoPermissionError("This instance has cluster support disabled"), b"")
    with pytest.raises(ClusterError, match="cluster support disabled"):
        refused.address(SLOT)
