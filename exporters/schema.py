"""Perfetto's field numbers, as many as are written here, under the names its ``.proto`` files give them.

https://github.com/google/perfetto/tree/main/protos/perfetto/trace. A class is a message, an attribute a field, and a
capitalised attribute a value of an enum or a bit. A test holds them against the perfetto package's descriptors.
"""

from __future__ import annotations


class Trace:
    packet = 1


class TracePacket:
    chrome_events = 5
    clock_snapshot = 6
    timestamp = 8
    trusted_packet_sequence_id = 10
    track_event = 11
    interned_data = 12
    sequence_flags = 13
    trace_packet_defaults = 59
    track_descriptor = 60
    first_packet_on_sequence = 87
    trace_uuid = 89

    SEQ_INCREMENTAL_STATE_CLEARED = 1  # what was interned before is forgotten
    SEQ_NEEDS_INCREMENTAL_STATE = 2  # not to be read without what was interned since


class TracePacketDefaults:
    track_event_defaults = 11
    timestamp_clock_id = 58


class TrackEventDefaults:
    track_uuid = 11


class TrackEvent:
    debug_annotations = 4
    type = 9
    name_iid = 10
    counter_value = 30
    double_counter_value = 44
    flow_ids = 47

    TYPE_SLICE_BEGIN = 1
    TYPE_SLICE_END = 2
    TYPE_INSTANT = 3
    TYPE_COUNTER = 4


class InternedData:
    event_names = 2
    debug_annotation_names = 3


class EventName:  # and DebugAnnotationName, which is made alike
    iid = 1
    name = 2


class DebugAnnotation:
    name_iid = 1
    bool_value = 2
    uint_value = 3
    int_value = 4
    double_value = 5
    string_value = 6


class ClockSnapshot:
    clocks = 1
    primary_trace_clock = 2


class Clock:  # ClockSnapshot.Clock
    clock_id = 1
    timestamp = 2
    is_incremental = 3


class BuiltinClock:
    BUILTIN_CLOCK_REALTIME = 1
    BUILTIN_CLOCK_MONOTONIC = 3
    BUILTIN_CLOCK_BOOTTIME = 6


class TraceUuid:
    msb = 1
    lsb = 2


class ChromeEventBundle:
    metadata = 2


class ChromeMetadata:
    name = 1
    string_value = 2
    bool_value = 3
    int_value = 4
    json_value = 5


class TrackDescriptor:
    uuid = 1
    name = 2
    process = 3
    thread = 4
    parent_uuid = 5
    counter = 8
    child_ordering = 11
    sibling_order_rank = 12
    description = 14
    sibling_merge_behavior = 15
    sibling_merge_key = 16

    EXPLICIT = 3
    SIBLING_MERGE_BEHAVIOR_NONE = 2
    SIBLING_MERGE_BEHAVIOR_BY_SIBLING_MERGE_KEY = 3


class ProcessDescriptor:
    pid = 1
    cmdline = 2
    legacy_sort_index = 3
    process_name = 6
    start_timestamp_ns = 7


class ThreadDescriptor:
    pid = 1
    tid = 2
    thread_name = 5


class CounterDescriptor:
    unit = 3
    unit_name = 6

    UNIT_TIME_NS = 1
    UNIT_SIZE_BYTES = 3
