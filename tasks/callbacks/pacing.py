"""The times of retries of callbacks, and the hosts that may be called now: values and times only.

an answer that is no 2xx ─▶ this callback waits: 1 s, 2 s, 4 s … 5 min
no answer                ─▶ its host waits likewise, and with it all callbacks to that host
"""

from __future__ import annotations

from dataclasses import dataclass, field

_FIRST_S = 1.0
_LONGEST_S = 300.0
_LONGEST_CLOSED_S = 60.0
# Of the mean time of a call: each call changes it by a fifth.
_SMOOTHING = 0.2
_FIRST_MEAN_S = 0.05
# Names below a domain are their owner's to make up.
_MOST_HOSTS = 4096


def pause_s(attempts: int, chance: float, asked_s: float = 0.0) -> float:
    """The pause after the `attempts`-th attempt (from 1). `chance`, from 0 to 1, spreads what failed together over half
    of the pause; `asked_s` is what the receiver has asked for.
    """
    longest = min(_LONGEST_S, _FIRST_S * 2.0 ** min(attempts - 1, 16))
    return max(longest * (0.5 + chance / 2), min(asked_s, _LONGEST_S))


@dataclass(slots=True)
class _Host:
    under_way: int = 0
    failures: int = 0
    closed_until: float = 0.0
    mean_s: float = _FIRST_MEAN_S
    backlog: int = 0


@dataclass(slots=True)
class HostGates:
    """The calls under way to each host. `now` is any clock's seconds; a host with nothing to remember has no entry."""

    most: int
    hosts: dict[str, _Host] = field(default_factory=dict)

    def begin(self) -> None:
        """A new look at what is due begins."""
        for host in self.hosts.values():
            host.backlog = 0

    def wait_s(self, place: str, now: float) -> float:
        """Zero if another call may start; else the time until it is worth asking again."""
        host = self.hosts.get(place)
        if host is None:
            return 0.0
        if host.closed_until > now:
            return host.closed_until - now
        # After failures one call at a time finds out whether the host is back.
        most = 1 if host.failures else self.most
        if host.under_way < most:
            return 0.0
        # When its turn comes: asking all of a long backlog again and again would be most of the work.
        host.backlog += 1
        return host.backlog * host.mean_s / most

    def start(self, place: str) -> None:
        self.hosts.setdefault(place, _Host()).under_way += 1

    def end(self, place: str, now: float, took_s: float, *, answered: bool) -> None:
        """A call that was started has ended, after `took_s`."""
        host = self.hosts[place]
        host.under_way -= 1
        host.mean_s += _SMOOTHING * (took_s - host.mean_s)
        if answered:
            host.failures, host.closed_until = 0, 0.0
            if not host.under_way:
                del self.hosts[place]
        else:
            host.failures += 1
            if len(self.hosts) > _MOST_HOSTS:
                self.hosts = {name: each for name, each in self.hosts.items() if each.under_way or each is host}
            host.closed_until = now + min(_LONGEST_CLOSED_S, _FIRST_S * 2.0 ** min(host.failures - 1, 16))
