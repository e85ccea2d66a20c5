/* Streams: in-order queues, kept as the time their last work ends.
 *
 * The legacy default stream starts after the blocking streams of its context and they start after it, as in the
 * programming guide's "default stream" section.
 */
#include "fake.h"

static uint64_t next_stream_id = 1;
static __thread struct {
    Handle context, stream;
} own_streams[MAX_DEVICES]; /* this thread's per-thread default streams, by context */
static __thread char token;

void *thread_token(void) { return &token; }

Stream *stream_new(Context *context, bool legacy, bool nonblocking, bool counted) {
    Stream *stream = object_new(STREAM);
    if (!stream) return NULL;
    stream->context = context->header.handle;
    stream->legacy = legacy;
    stream->nonblocking = nonblocking;
    stream->id = next_stream_id++;
    stream->counted = counted;
    live_count[STREAM] -= !counted;
    made_count[STREAM] -= !counted;
    return stream;
}

void stream_free(Stream *stream) {
    if (stream->capture) capture_break(stream->capture);
    live_count[STREAM] += !stream->counted;
    object_free(STREAM, stream);
}

static Stream *per_thread_stream(Context *context) {
    for (int i = 0; i < MAX_DEVICES; i++) {
        if (own_streams[i].context == context->header.handle) return object_find(STREAM, own_streams[i].stream);
        if (object_find(CONTEXT, own_streams[i].context)) continue;
        Stream *stream = stream_new(context, false, false, false);
        if (stream) {
            own_streams[i].context = context->header.handle;
            own_streams[i].stream = stream->header.handle;
        }
        return stream;
    }
    return NULL;
}

/* Called with the lock. */
CUresult stream_find(Handle handle, Stream **found) {
    if (handle > PER_THREAD) {
        *found = object_find(STREAM, handle);
        return *found && !(*found)->legacy ? SUCCESS : INVALID_HANDLE;
    }
    CUresult code = context_check();
    if (code) return code;
    Context *context = context_current();
    bool own = handle == PER_THREAD || (handle == LEGACY_DEFAULT && null_is_per_thread);
    *found = own ? per_thread_stream(context) : object_find(STREAM, context->legacy);
    return *found ? SUCCESS : OUT_OF_MEMORY;
}

static bool is_own(const Stream *stream) {
    for (int i = 0; i < MAX_DEVICES; i++)
        if (own_streams[i].stream == stream->header.handle) return true;
    return false;
}

Handle stream_public_handle(const Stream *stream) {
    if (stream->legacy) return LEGACY;
    return is_own(stream) ? PER_THREAD : stream->header.handle;
}

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

int64_t stream_start(Stream *stream) {
    int64_t start = later(stream->tail_ns, host_now() + (int64_t)settings.submit_ns);
    if (stream->nonblocking) return start;
    Context *context = object_find(CONTEXT, stream->context);
    if (stream->legacy) return later(start, context->blocking_tail);
    Stream *legacy = object_find(STREAM, context->legacy);
    return later(start, legacy->tail_ns);
}

void stream_advance(Stream *stream, int64_t end) {
    stream->tail_ns = end;
    if (stream->legacy || stream->nonblocking) return;
    Context *context = object_find(CONTEXT, stream->context);
    context->blocking_tail = later(context->blocking_tail, end);
}

/* Enqueue work of a given duration: what every launch, copy and memset comes down to. Called without the lock. */
CUresult submit(Handle handle, int64_t duration_ns) {
    LOCKED;
    Stream *stream;
    Capture *capture;
    CUresult code = stream_find(handle, &stream);
    if (!code) code = capture_of(stream, &capture);
    if (code) return code;
    if (capture) {
        stream->capture_step++;
        return nodes_add(&capture->nodes, (Node){.kind = WORK, .duration_ns = duration_ns});
    }
    stream_advance(stream, stream_start(stream) + duration_ns);
    return SUCCESS;
}

static CUresult create(Handle *handle, unsigned flags, int priority) {
    enum { NON_BLOCKING = 1 };
    LOCKED;
    if (flags & ~NON_BLOCKING) return INVALID_VALUE;
    Stream *stream = stream_new(context_current(), false, flags & NON_BLOCKING, true);
    if (!stream) return OUT_OF_MEMORY;
    stream->priority = priority;
    *handle = stream->header.handle;
    return SUCCESS;
}

EXPORT CUresult cuStreamCreate(Handle *stream, unsigned flags) {
    ENTER(cuStreamCreate);
    return create(stream, flags, 0);
}

EXPORT CUresult cuStreamCreateWithPriority(Handle *stream, unsigned flags, int priority) {
    ENTER(cuStreamCreateWithPriority);
    return create(stream, flags, priority);
}

EXPORT CUresult cuStreamDestroy_v2(Handle handle) {
    ENTER(cuStreamDestroy_v2);
    LOCKED;
    Stream *stream = object_find(STREAM, handle);
    if (!stream || !stream->counted) return INVALID_HANDLE;
    stream_free(stream);
    return SUCCESS;
}

/* What a wait or query on a stream must know: where its work ends, and that it may be asked. */
static CUresult tail_of(Handle handle, bool wait, int64_t *tail) {
    LOCKED;
    Stream *stream;
    CUresult code = stream_find(handle, &stream);
    if (code) return code;
    stream->syncs += wait;
    code = capture_conflict(stream);
    if (code) return code;
    *tail = stream->tail_ns;
    if (stream->legacy) *tail = later(*tail, ((Context *)object_find(CONTEXT, stream->context))->blocking_tail);
    *tail += (int64_t)settings.visible_ns;
    return SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(Handle stream) {
    int64_t tail = 0;
    ENTER(cuStreamSynchronize);
    CUresult code = tail_of(stream, true, &tail);
    if (!code) wait_until(tail);
    return code;
}

EXPORT CUresult cuStreamQuery(Handle stream) {
    int64_t tail = 0;
    ENTER(cuStreamQuery);
    CUresult code = tail_of(stream, false, &tail);
    return code ? code : host_now() >= tail ? SUCCESS : NOT_READY;
}

static CUresult context_of(Handle handle, Handle *context) {
    LOCKED;
    Stream *stream;
    CUresult code = stream_find(handle, &stream);
    if (!code) *context = stream->context;
    return code;
}

EXPORT CUresult cuStreamGetCtx(Handle stream, Handle *context) {
    ENTER(cuStreamGetCtx);
    return context_of(stream, context);
}

EXPORT CUresult cuStreamGetCtx_v2(Handle stream, Handle *context, Handle *green) {
    ENTER(cuStreamGetCtx_v2);
    if (green) *green = 0;
    return context_of(stream, context);
}

EXPORT CUresult cuStreamGetDevice(Handle handle, CUdevice *device) {
    ENTER(cuStreamGetDevice);
    Handle context;
    CUresult code = context_of(handle, &context);
    if (!code) *device = ((Context *)object_find(CONTEXT, context))->device;
    return code;
}

EXPORT CUresult cuStreamGetId(Handle handle, uint64_t *id) {
    ENTER(cuStreamGetId);
    LOCKED;
    Stream *stream;
    CUresult code = stream_find(handle, &stream);
    if (!code) *id = stream->id;
    return code;
}

EXPORT CUresult cuStreamGetFlags(Handle handle, unsigned *flags) {
    ENTER(cuStreamGetFlags);
    LOCKED;
    Stream *stream;
    CUresult code = stream_find(handle, &stream);
    if (!code) *flags = stream->nonblocking;
    return code;
}

EXPORT CUresult cuStreamGetPriority(Handle handle, int *priority) {
    ENTER(cuStreamGetPriority);
    LOCKED;
    Stream *stream;
    CUresult code = stream_find(handle, &stream);
    if (!code) *priority = stream->priority;
    return code;
}

/* How often the program, or anything in it, synchronised this very stream. */
EXPORT int64_t fake_stream_syncs(Handle handle) {
    LOCKED;
    Stream *stream;
    return stream_find(handle, &stream) ? -1 : (int64_t)stream->syncs;
}

/* Work of a chosen duration, without a module and a launch. */
EXPORT CUresult fake_enqueue(Handle stream, int64_t duration_ns) { return submit(stream, duration_ns); }
