"""Programs made of a few requests, and what their schedules spend, for the tests of the simulator."""

from flashlib.models.sm import simulator as sim


def role(name, *requests, **more):
    return sim.Role(name, lambda: iter(requests), registers=24, **more)


def program(*roles, barriers=None, units=None, tiles=1, **more):
    units = units or {"copy": "fifo", "tensor": "shared"}
    return sim.Program("by hand", roles, barriers or {}, units, tiles, **more)


def waits(s):
    """Cycles by role and reason: an operation's name, a barrier's, or "done" after the end."""
    spent = {role.name: {} for role in s.program.roles}
    for stop in s.stops:
        by_reason = spent[stop.role]
        by_reason[stop.reason] = by_reason.get(stop.reason, 0.0) + stop.end - stop.start
    return spent


def critical_path(s):
    """The longest chain of operations of which each needs the data of the one before."""
    made, longest = {}, 0.0
    for event in sorted(s.events, key=lambda e: e.start):
        before = max((made[item] for item in event.op.reads.items() if item in made), default=0.0)
        after = before + max(event.op.work.values()) + event.op.latency
        made |= dict.fromkeys(event.op.writes.items(), after)
        longest = max(longest, after)
    return longest
