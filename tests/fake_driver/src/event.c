/* Events: the true host time at which their stream reaches them; device time is worked out when somebody asks. */
#include "fake.h"

enum { BLOCKING_SYNC = 1, DISABLE_TIMING = 2, INTERPROCESS = 4 }; /* CUevent_flags */

EXPORT CUresult cuEventCreate(Handle *handle, unsigned flags) {
    ENTER(cuEventCreate);
    LOCKED;
    if (flags & ~(unsigned)(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS)) return INVALID_VALUE;
    Event *event = object_new(EVENT);
    if (!event) return OUT_OF_MEMORY;
    event->context = context_current()->header.handle;
    event->flags = flags;
    *handle = event->header.handle;
    return SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(Handle handle) {
    ENTER(cuEventDestroy_v2);
    LOCKED;
    Event *event = object_find(EVENT, handle);
    if (!event) return INVALID_HANDLE;
    object_free(EVENT, event);
    return SUCCESS;
}

void event_stamped(Event *event, const Stream *stream, int64_t stamp_ns, int64_t call_ns) {
    event->capture_stream = 0;
    event->stream = stream_public_handle(stream);
    event->stamp_ns = stamp_ns;
    event->records++;
    if (UNLIKELY(settings.truth > 0)) {
        Context *context = object_find(CONTEXT, event->context);
        truth_add(event, context->device, call_ns);
    }
}

static CUresult record(Handle event_handle, Handle stream_handle, bool external) {
    int64_t called = settings.truth > 0 ? host_now() : 0;
    LOCKED;
    Stream *stream;
    Capture *capture;
    CUresult code = stream_find(stream_handle, &stream);
    Event *event = object_find(EVENT, event_handle);
    if (code) return code;
    if (!event || event->context != stream->context) return INVALID_HANDLE;
    code = capture_of(stream, &capture);
    if (code) return code;
    if (capture && external) {
        stream->capture_step++;
        return nodes_add(&capture->nodes, (Node){.kind = RECORD, .event = event_handle});
    }
    if (capture) {
        event->capture_id = capture->id;
        event->capture_stream = stream->header.handle;
        event->capture_step = stream->capture_step;
        return SUCCESS;
    }
    int64_t stamp = stream_start(stream);
    stream_advance(stream, stamp);
    event_stamped(event, stream, stamp, called);
    return SUCCESS;
}

/* With `null` set nothing is counted, checked or kept: what is left is the cost of the call. */
EXPORT CUresult cuEventRecord(Handle event, Handle stream) {
    if (settings.null) return SUCCESS;
    ENTER(cuEventRecord);
    return record(event, stream, false);
}

EXPORT CUresult cuEventRecordWithFlags(Handle event, Handle stream, unsigned flags) {
    enum { EXTERNAL = 1 };
    if (settings.null) return SUCCESS;
    ENTER(cuEventRecordWithFlags);
    return flags & ~EXTERNAL ? INVALID_VALUE : record(event, stream, flags & EXTERNAL);
}

/* With `null` set, only events that are queried have a time: when they were. A tracer's anchors are; its windows are not,
 * and are taken to be passed when somebody measures to them. */
enum { NULL_STAMPS = 4096 };
static struct {
    Handle event;
    int64_t ns;
} null_stamps[NULL_STAMPS];

static size_t null_slot(Handle event) {
    return (event ^ event >> 12) % NULL_STAMPS;
}

static int64_t *null_stamp(Handle event) {
    size_t slot = null_slot(event);
    return null_stamps[slot].event == event ? &null_stamps[slot].ns : NULL;
}

static CUresult null_elapsed(float *milliseconds, Handle start, Handle end) {
    int64_t *from = null_stamp(start), *to = null_stamp(end), now = host_now();
    *milliseconds = (float)((double)((to ? *to : now) - (from ? *from : now)) / 1e6);
    return SUCCESS;
}

/* When the event is, or may be waited for. An event never recorded counts as done, as in the driver. */
static CUresult stamp_of(Handle handle, int64_t *seen) {
    LOCKED;
    Event *event = object_find(EVENT, handle);
    if (!event) return INVALID_HANDLE;
    if (settings.null) {
        size_t slot = null_slot(handle);
        null_stamps[slot].event = handle;
        null_stamps[slot].ns = host_now();
        return SUCCESS; /* it was never stamped */
    }
    if (event->capture_stream) {
        for (Capture *capture = captures_ongoing(); capture; capture = capture->next)
            if (capture->id == event->capture_id) capture_break(capture);
        return CAPTURED_EVENT;
    }
    *seen = event->stamp_ns ? event->stamp_ns + (int64_t)settings.visible_ns : 0;
    return SUCCESS;
}

EXPORT CUresult cuEventQuery(Handle event) {
    int64_t seen = 0;
    ENTER(cuEventQuery);
    CUresult code = stamp_of(event, &seen);
    return code ? code : seen == 0 || host_now() >= seen ? SUCCESS : NOT_READY;
}

EXPORT CUresult cuEventSynchronize(Handle event) {
    int64_t seen = 0;
    ENTER(cuEventSynchronize);
    CUresult code = stamp_of(event, &seen);
    if (!code && seen) wait_until(seen);
    return code;
}

static CUresult elapsed(float *milliseconds, Handle start_handle, Handle end_handle) {
    LOCKED;
    Event *start = object_find(EVENT, start_handle), *end = object_find(EVENT, end_handle);
    if (!start || !end || start->context != end->context) return INVALID_HANDLE;
    if ((start->flags | end->flags) & DISABLE_TIMING) return INVALID_HANDLE;
    if (start->capture_stream || end->capture_stream) return CAPTURED_EVENT;
    int64_t now = host_now();
    if (!start->stamp_ns || !end->stamp_ns) return INVALID_HANDLE;
    int64_t visible = (int64_t)settings.visible_ns;
    if (now < start->stamp_ns + visible || now < end->stamp_ns + visible) return NOT_READY;
    Context *context = object_find(CONTEXT, start->context);
    int64_t ticks = device_stamp(context->device, end->stamp_ns) - device_stamp(context->device, start->stamp_ns);
    *milliseconds = (float)((double)ticks / 1e6);
    return SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, Handle start, Handle end) {
    if (settings.null) return null_elapsed(milliseconds, start, end);
    ENTER(cuEventElapsedTime);
    return elapsed(milliseconds, start, end);
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, Handle start, Handle end) {
    if (settings.null) return null_elapsed(milliseconds, start, end);
    ENTER(cuEventElapsedTime_v2);
    return elapsed(milliseconds, start, end);
}

/* Waiting for an event recorded in a capture takes the waiting stream into that capture; when it is the origin that
 * waits, the stream it waits for is joined. */
static CUresult wait_captured(Stream *stream, const Event *event) {
    Stream *source = object_find(STREAM, event->capture_stream);
    Capture *capture = source ? source->capture : NULL;
    if (!capture || capture->id != event->capture_id) return CAPTURED_EVENT;
    if (capture->broken) return CAPTURE_INVALIDATED;
    if (stream->capture && stream->capture != capture) {
        capture_break(stream->capture);
        capture_break(capture);
        return CAPTURE_MERGE;
    }
    if (stream->legacy) {
        capture_break(capture);
        return CAPTURE_IMPLICIT;
    }
    if (!stream->capture) {
        stream->capture = capture;
        stream->joined = true;
        stream->capture_step = 1; /* the wait itself must be joined too */
        stream->joined_step = 0;
    } else if (source != stream) {
        source->joined_step = event->capture_step;
        stream->capture_step++;
    }
    return SUCCESS;
}

EXPORT CUresult cuStreamWaitEvent(Handle stream_handle, Handle event_handle, unsigned flags) {
    ENTER(cuStreamWaitEvent);
    LOCKED;
    (void)flags;
    Stream *stream;
    Capture *capture;
    CUresult code = stream_find(stream_handle, &stream);
    Event *event = object_find(EVENT, event_handle);
    if (code) return code;
    if (!event) return INVALID_HANDLE;
    if (event->capture_stream) return wait_captured(stream, event);
    code = capture_of(stream, &capture);
    if (code) return code;
    if (capture) { /* an event from outside the capture */
        capture_break(capture);
        return 905; /* CUDA_ERROR_STREAM_CAPTURE_ISOLATION */
    }
    if (event->stamp_ns > stream->tail_ns) stream_advance(stream, event->stamp_ns);
    return SUCCESS;
}

EXPORT int fake_event(Handle handle, Stamp *stamp) {
    LOCKED;
    Event *event = object_find(EVENT, handle);
    if (!event) return INVALID_HANDLE;
    *stamp = event_stamp(event, ((Context *)object_find(CONTEXT, event->context))->device, 0);
    return SUCCESS;
}
