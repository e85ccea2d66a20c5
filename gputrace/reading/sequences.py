"""What the packets of a sequence go by, beyond what stands in them: interned names, defaults, and clocks.

It knows no track and no output. https://perfetto.dev/docs/design-docs/protozero and the comments of
trace_packet.proto have the rules.
"""

from __future__ import annotations

from typing import Any

BOOTTIME = 6


class Link:
    """How a clock of a sequence's own is tied to BOOTTIME: at ``boottime_ns`` it stood at ``value``, in its units.

    ``now`` is where an incremental one, which counts from packet to packet, has come to.
    """

    __slots__ = ("boottime_ns", "is_incremental", "now", "unit_ns", "value")

    def __init__(self, boottime_ns: int, value: int, is_incremental: bool, unit_ns: int) -> None:
        self.boottime_ns = boottime_ns
        self.value = self.now = value
        self.is_incremental = is_incremental
        self.unit_ns = unit_ns


class Interned:
    """Texts by id: of names, categories, args' keys and args' values."""

    __slots__ = ("categories", "keys", "names", "strings")

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.categories: dict[int, str] = {}
        self.keys: dict[int, str] = {}
        self.strings: dict[int, str] = {}

    def take(self, data: Any) -> None:
        """Keep what an InternedData message defines."""
        for item in data.event_names:
            self.names[item.iid] = as_text(item.name)
        for item in data.event_categories:
            self.categories[item.iid] = as_text(item.name)
        for item in data.debug_annotation_names:
            self.keys[item.iid] = as_text(item.name)
        for item in data.debug_annotation_string_values:
            self.strings[item.iid] = item.str.decode("utf-8", "replace")

    def args(self, event: Any) -> dict[str, Any]:
        """A track event's debug annotations by name."""
        return {as_text(item.name) or self.keys.get(item.name_iid, ""): self._value(item) for item in event}

    def _value(self, item: Any, depth: int = 0) -> Any:
        if item.dict_entries and depth < 32:
            return {
                as_text(entry.name) or self.keys.get(entry.name_iid, ""): self._value(entry, depth + 1)
                for entry in item.dict_entries
            }
        if item.array_values and depth < 32:
            return [self._value(entry, depth + 1) for entry in item.array_values]
        for field, value in item.ListFields():
            if field.name == "string_value_iid":
                return self.strings.get(value, "")
            if field.name.endswith("_value"):
                return as_text(value) if isinstance(value, (str, bytes)) else value
        kind = item.WhichOneof("value") if "value" in item.DESCRIPTOR.oneofs_by_name else None
        return getattr(item, kind) if kind else None


class Sequence:
    """A packet sequence's state. ``track`` is the uuid that its events fall on by default, ``clock`` that of its times.

    ``known``: nothing is missing of what its packets build on.
    """

    def __init__(self) -> None:
        self.interned = Interned()
        self.known = False
        self.track = 0
        self.clock = BOOTTIME
        self.links: dict[int, Link] = {}

    def begin(self, packet: Any) -> None:
        """What a packet says of those behind it, before its own event is looked at."""
        if packet.sequence_flags & 1 or packet.incremental_state_cleared:
            self.interned = Interned()  # a new one: who reads args later still needs the old
            self.known = True
        elif packet.previous_packet_dropped:
            self.known = False
        if packet.HasField("trace_packet_defaults"):
            defaults = packet.trace_packet_defaults
            if defaults.timestamp_clock_id:
                self.clock = defaults.timestamp_clock_id
            if defaults.track_event_defaults.track_uuid:
                self.track = defaults.track_event_defaults.track_uuid
        if packet.HasField("interned_data"):
            self.interned.take(packet.interned_data)


class Clocks:
    """The clocks of a trace: ``offsets`` are of builtin ones to BOOTTIME, in ns."""

    def __init__(self) -> None:
        self.offsets: dict[int, int] = {BOOTTIME: 0}

    def tie(self, snapshot: Any, sequence: Sequence) -> None:
        """Take a ClockSnapshot that came on a sequence."""
        values = {clock.clock_id: clock for clock in snapshot.clocks}
        boottime = values.get(BOOTTIME)
        if boottime is None:
            return
        for id, clock in values.items():
            if id >= 64:
                unit_ns = clock.unit_multiplier_ns or 1
                sequence.links[id] = Link(boottime.timestamp, clock.timestamp, clock.is_incremental, unit_ns)
            else:
                self.offsets.setdefault(id, boottime.timestamp - clock.timestamp)

    def ns(self, packet: Any, sequence: Sequence) -> int | None:
        """A packet's time, in ns of BOOTTIME; None if nothing ties its clock to that."""
        clock = packet.timestamp_clock_id or sequence.clock
        link = sequence.links.get(clock)
        if link is not None:
            link.now = link.now + packet.timestamp if link.is_incremental else packet.timestamp
            return link.boottime_ns + (link.now - link.value) * link.unit_ns
        offset = self.offsets.get(clock)
        return None if offset is None else packet.timestamp + offset


def as_text(value: str | bytes) -> str:
    """A string field's value: protobuf gives bytes where they are no UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
