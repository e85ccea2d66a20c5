/* Stream capture, with the rules that hold between threads.
 *
 * From the driver manual, cuThreadExchangeStreamCaptureMode: a thread in global mode may make no potentially unsafe
 * call while it has a capture of its own that was not begun relaxed, or while any thread has one begun global; in
 * thread-local mode only its own count; in relaxed mode none do. A refused call invalidates the capture in its way.
 */
#include "fake.h"
#include "fake_objects.h"

#include <stdlib.h>
#include <string.h>

static __thread int thread_mode = MODE_GLOBAL;
static Capture *_Atomic ongoing;
static uint64_t next_capture_id = 1;

Capture *captures_ongoing(void) { return atomic_load_explicit(&ongoing, memory_order_relaxed); }

void capture_break(Capture *capture) { capture->broken = true; }

CUresult capture_unsafe_call(void) {
    LOCKED;
    CUresult code = SUCCESS;
    if (thread_mode == MODE_RELAXED) return SUCCESS;
    for (Capture *capture = ongoing; capture; capture = capture->next) {
        bool own = capture->thread == thread_token() && capture->mode != MODE_RELAXED;
        bool everyones = thread_mode == MODE_GLOBAL && capture->mode == MODE_GLOBAL;
        if (!own && !everyones) continue;
        capture_break(capture);
        code = CAPTURE_UNSUPPORTED;
    }
    return code;
}

typedef struct {
    Handle context;
    bool invalidate, found;
} Implicit;

static void blocking_capture(void *object, void *argument) {
    Stream *stream = object;
    Implicit *implicit = argument;
    if (!stream->capture || stream->nonblocking || stream->context != implicit->context) return;
    implicit->found = true;
    if (implicit->invalidate) capture_break(stream->capture);
}

/* Does the legacy stream depend on a stream that is being captured? */
static bool implicit_capture(const Stream *stream, bool invalidate) {
    Implicit implicit = {.context = stream->context, .invalidate = invalidate};
    if (stream->legacy && ongoing) object_each(STREAM, blocking_capture, &implicit);
    return implicit.found;
}

CUresult capture_of(Stream *stream, Capture **capture) {
    *capture = stream->capture;
    if (implicit_capture(stream, true)) return CAPTURE_IMPLICIT;
    return stream->capture && stream->capture->broken ? CAPTURE_INVALIDATED : SUCCESS;
}

CUresult capture_conflict(Stream *stream) {
    if (implicit_capture(stream, true)) return CAPTURE_IMPLICIT;
    if (!stream->capture) return SUCCESS;
    bool broken = stream->capture->broken;
    capture_break(stream->capture);
    return broken ? CAPTURE_INVALIDATED : CAPTURE_UNSUPPORTED;
}

CUresult nodes_add(Nodes *nodes, Node node) {
    if (nodes->count == nodes->room) {
        size_t room = nodes->room ? 2 * nodes->room : 16;
        Node *items = realloc(nodes->items, room * sizeof *items);
        if (!items) return OUT_OF_MEMORY;
        nodes->items = items;
        nodes->room = room;
    }
    nodes->items[nodes->count++] = node;
    return SUCCESS;
}

bool nodes_copy(Nodes *to, const Nodes *from) {
    *to = *from;
    to->items = malloc((from->room + 1) * sizeof *to->items);
    if (!to->items) return false;
    if (from->count) memcpy(to->items, from->items, from->count * sizeof *to->items);
    return true;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER(cuThreadExchangeStreamCaptureMode);
    if (*mode < MODE_GLOBAL || *mode > MODE_RELAXED) return INVALID_VALUE;
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(Handle handle, int mode) {
    ENTER(cuStreamBeginCapture_v2);
    LOCKED;
    Stream *stream;
    CUresult code = stream_find(handle, &stream);
    if (code) return code;
    if (mode < MODE_GLOBAL || mode > MODE_RELAXED) return INVALID_VALUE;
    if (stream->legacy) return CAPTURE_UNSUPPORTED;
    if (stream->capture) return ILLEGAL_STATE;
    Capture *capture = calloc(1, sizeof *capture);
    Graph *graph = capture ? object_new(GRAPH) : NULL;
    if (!graph) {
        free(capture);
        return OUT_OF_MEMORY;
    }
    capture->id = next_capture_id++;
    capture->graph = graph->header.handle;
    capture->mode = mode;
    capture->thread = thread_token();
    capture->origin = stream->header.handle;
    capture->next = ongoing;
    ongoing = capture;
    stream->capture = capture;
    stream->capture_step = 0;
    stream->joined = false;
    return SUCCESS;
}

typedef struct {
    Capture *capture;
    bool unjoined;
} Leaving;

static void leave(void *object, void *argument) {
    Stream *stream = object;
    Leaving *leaving = argument;
    if (stream->capture != leaving->capture) return;
    if (stream->joined && stream->capture_step > stream->joined_step) leaving->unjoined = true;
    stream->capture = NULL;
    stream->joined = false;
}

EXPORT CUresult cuStreamEndCapture(Handle handle, Handle *graph_handle) {
    ENTER(cuStreamEndCapture);
    LOCKED;
    Stream *stream;
    *graph_handle = 0;
    CUresult code = stream_find(handle, &stream);
    if (code) return code;
    Capture *capture = stream->capture;
    if (!capture) return ILLEGAL_STATE;
    if (capture->mode != MODE_RELAXED && capture->thread != thread_token()) return CAPTURE_WRONG_THREAD;
    if (capture->origin != stream->header.handle) {
        capture_break(capture);
        return CAPTURE_UNMATCHED;
    }
    Leaving leaving = {.capture = capture};
    object_each(STREAM, leave, &leaving);
    if (ongoing == capture) ongoing = capture->next;
    else {
        Capture *before = ongoing;
        while (before->next != capture) before = before->next;
        before->next = capture->next;
    }
    code = capture->broken ? CAPTURE_INVALIDATED : leaving.unjoined ? CAPTURE_UNJOINED : SUCCESS;
    Graph *graph = object_find(GRAPH, capture->graph);
    if (graph && !code) {
        graph->nodes = capture->nodes;
        *graph_handle = capture->graph;
    } else {
        free(capture->nodes.items);
        if (graph) object_free(GRAPH, graph);
    }
    free(capture);
    return code || graph ? code : INVALID_VALUE;
}

static CUresult status_of(Handle handle, int *status, uint64_t *id, Handle *graph) {
    LOCKED;
    Stream *stream;
    CUresult code = stream_find(handle, &stream);
    if (code) return code;
    if (implicit_capture(stream, false)) return CAPTURE_IMPLICIT;
    *status = !stream->capture ? STATUS_NONE : stream->capture->broken ? STATUS_INVALIDATED : STATUS_ACTIVE;
    if (id) *id = stream->capture ? stream->capture->id : 0;
    if (graph) *graph = stream->capture ? stream->capture->graph : 0;
    return SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(Handle stream, int *status) {
    if (settings.null && !captures_ongoing()) {
        *status = STATUS_NONE;
        return SUCCESS;
    }
    ENTER(cuStreamIsCapturing);
    if (!captures_ongoing()) {
        *status = STATUS_NONE;
        return stream <= PER_THREAD || object_find(STREAM, stream) ? SUCCESS : INVALID_HANDLE;
    }
    return status_of(stream, status, NULL, NULL);
}

/* The graph under construction has no nodes to give out before it is whole. */
EXPORT CUresult cuStreamGetCaptureInfo_v2(
    Handle stream, int *status, uint64_t *id, Handle *graph, const Handle **dependencies, size_t *count) {
    ENTER(cuStreamGetCaptureInfo_v2);
    if (dependencies) *dependencies = NULL;
    if (count) *count = 0;
    return status_of(stream, status, id, graph);
}

EXPORT CUresult cuStreamGetCaptureInfo_v3(Handle stream, int *status, uint64_t *id, Handle *graph,
    const Handle **dependencies, const void **edges, size_t *count) {
    ENTER(cuStreamGetCaptureInfo_v3);
    if (dependencies) *dependencies = NULL;
    if (edges) *edges = NULL;
    if (count) *count = 0;
    return status_of(stream, status, id, graph);
}
