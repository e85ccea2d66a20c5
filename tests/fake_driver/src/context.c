/* Devices, contexts, and each thread's stack of them. */
#include "fake.h"

#include <stdio.h>
#include <string.h>

static __thread Handle stack[MAX_DEPTH];
static __thread int depth;
static Handle primaries[MAX_DEVICES];
static uint64_t next_context_id = 1;

static bool valid(CUdevice device) { return device >= 0 && device < (int)settings.devices; }

Context *context_current(void) { return depth ? object_find(CONTEXT, stack[depth - 1]) : NULL; }

CUresult context_check(void) {
    if (!depth || !stack[depth - 1]) return INVALID_CONTEXT;
    return object_find(CONTEXT, stack[depth - 1]) ? SUCCESS : CONTEXT_IS_DESTROYED;
}

/* Devices ------------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuDeviceGetCount(int *count) {
    ENTER(cuDeviceGetCount);
    *count = (int)settings.devices;
    return SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER(cuDeviceGet);
    if (!valid(ordinal)) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

/* The name says it is a fake: programs that check a kernel's result look for it. */
EXPORT CUresult cuDeviceGetName(char *name, int room, CUdevice device) {
    ENTER(cuDeviceGetName);
    if (!valid(device)) return INVALID_DEVICE;
    snprintf(name, (size_t)room, "Fake GPU %d", device);
    return SUCCESS;
}

static CUresult uuid(unsigned char *bytes, CUdevice device) {
    if (!valid(device)) return INVALID_DEVICE;
    memset(bytes, 0xfa, 16);
    bytes[15] = (unsigned char)device;
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(unsigned char *bytes, CUdevice device) {
    ENTER(cuDeviceGetUuid);
    return uuid(bytes, device);
}

EXPORT CUresult cuDeviceGetUuid_v2(unsigned char *bytes, CUdevice device) {
    ENTER(cuDeviceGetUuid_v2);
    return uuid(bytes, device);
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int room, CUdevice device) {
    ENTER(cuDeviceGetPCIBusId);
    if (!valid(device)) return INVALID_DEVICE;
    snprintf(id, (size_t)room, "0000:%02x:00.0", device + 1);
    return SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    ENTER(cuDeviceTotalMem_v2);
    if (!valid(device)) return INVALID_DEVICE;
    *bytes = (size_t)8 << 30;
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    ENTER(cuDeviceGetAttribute);
    if (!valid(device)) return INVALID_DEVICE;
    switch (attribute) {
    case 1: *value = 1024; break;       /* MAX_THREADS_PER_BLOCK */
    case 8: *value = 48 << 10; break;   /* MAX_SHARED_MEMORY_PER_BLOCK */
    case 10: *value = 32; break;        /* WARP_SIZE */
    case 13: *value = 1500000; break;   /* CLOCK_RATE, kHz */
    case 16: *value = 16; break;        /* MULTIPROCESSOR_COUNT */
    case 75: *value = 9; break;         /* COMPUTE_CAPABILITY_MAJOR */
    case 76: *value = 0; break;         /* COMPUTE_CAPABILITY_MINOR */
    default: *value = 1;
    }
    return SUCCESS;
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    ENTER(cuDeviceComputeCapability);
    if (!valid(device)) return INVALID_DEVICE;
    *major = 9;
    *minor = 0;
    return SUCCESS;
}

/* Contexts ------------------------------------------------------------------------------------------------------ */

static Context *context_new(CUdevice device, unsigned flags, bool primary) {
    Context *context = object_new(CONTEXT);
    if (!context) return NULL;
    context->device = device;
    context->flags = flags;
    context->primary = primary;
    context->id = next_context_id++;
    context->legacy = stream_new(context, true, false, false)->header.handle;
    return context;
}

static void free_stream_of(void *object, void *context) {
    Stream *stream = object;
    if (stream->context == *(Handle *)context) stream_free(stream);
}

static void free_event_of(void *object, void *context) {
    if (((Event *)object)->context == *(Handle *)context) object_free(EVENT, object);
}

static void context_free(Context *context) {
    Handle handle = context->header.handle;
    object_each(STREAM, free_stream_of, &handle);
    object_each(EVENT, free_event_of, &handle);
    object_free(CONTEXT, context);
}

static CUresult create(Handle *handle, unsigned flags, CUdevice device) {
    LOCKED;
    if (!valid(device)) return INVALID_DEVICE;
    if (depth == MAX_DEPTH) return OUT_OF_MEMORY;
    Context *context = context_new(device, flags, false);
    if (!context) return OUT_OF_MEMORY;
    *handle = stack[depth++] = context->header.handle;
    return SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(Handle *context, unsigned flags, CUdevice device) {
    ENTER(cuCtxCreate_v2);
    return create(context, flags, device);
}

EXPORT CUresult cuCtxCreate_v3(Handle *context, void *affinity, int count, unsigned flags, CUdevice device) {
    ENTER(cuCtxCreate_v3);
    (void)affinity, (void)count;
    return create(context, flags, device);
}

EXPORT CUresult cuCtxCreate_v4(Handle *context, void *params, unsigned flags, CUdevice device) {
    ENTER(cuCtxCreate_v4);
    (void)params;
    return create(context, flags, device);
}

/* Popped from the calling thread if it is current there; other threads keep a handle to nothing. */
EXPORT CUresult cuCtxDestroy_v2(Handle handle) {
    ENTER(cuCtxDestroy_v2);
    LOCKED;
    Context *context = object_find(CONTEXT, handle);
    if (!context || context->primary) return INVALID_CONTEXT;
    context_free(context);
    if (depth && stack[depth - 1] == handle) depth--;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(Handle *context) {
    ENTER(cuCtxGetCurrent);
    *context = depth ? stack[depth - 1] : 0;
    return SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(Handle context) {
    ENTER(cuCtxSetCurrent);
    LOCKED;
    if (context && !object_find(CONTEXT, context)) return INVALID_CONTEXT;
    if (!context) {
        if (depth) depth--;
    } else {
        if (!depth) depth = 1;
        stack[depth - 1] = context;
    }
    return SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(Handle context) {
    ENTER(cuCtxPushCurrent_v2);
    LOCKED;
    if (!object_find(CONTEXT, context) || depth == MAX_DEPTH) return INVALID_CONTEXT;
    stack[depth++] = context;
    return SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(Handle *context) {
    ENTER(cuCtxPopCurrent_v2);
    if (!depth) return INVALID_CONTEXT;
    depth--;
    if (context) *context = stack[depth];
    return SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    ENTER(cuCtxGetDevice);
    *device = context_current()->device;
    return SUCCESS;
}

static Context *given_or_current(Handle handle) {
    return handle ? object_find(CONTEXT, handle) : context_current();
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, Handle handle) {
    ENTER(cuCtxGetDevice_v2);
    Context *context = given_or_current(handle);
    if (!context) return INVALID_CONTEXT;
    *device = context->device;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags) {
    ENTER(cuCtxGetFlags);
    *flags = context_current()->flags;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetId(Handle handle, uint64_t *id) {
    ENTER(cuCtxGetId);
    Context *context = given_or_current(handle);
    if (!context) return INVALID_CONTEXT;
    *id = context->id;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetApiVersion(Handle handle, unsigned *version) {
    ENTER(cuCtxGetApiVersion);
    if (!given_or_current(handle)) return INVALID_CONTEXT;
    *version = 3020;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ENTER(cuCtxGetStreamPriorityRange);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return SUCCESS;
}

/* Primary contexts ---------------------------------------------------------------------------------------------- */

EXPORT CUresult cuDevicePrimaryCtxRetain(Handle *handle, CUdevice device) {
    ENTER(cuDevicePrimaryCtxRetain);
    LOCKED;
    if (!valid(device)) return INVALID_DEVICE;
    Context *context = object_find(CONTEXT, primaries[device]);
    if (!context) context = context_new(device, 0, true);
    if (!context) return OUT_OF_MEMORY;
    context->retained++;
    *handle = primaries[device] = context->header.handle;
    return SUCCESS;
}

static CUresult primary_release(CUdevice device, bool all) {
    LOCKED;
    if (!valid(device)) return INVALID_DEVICE;
    Context *context = object_find(CONTEXT, primaries[device]);
    if (!context) return all ? SUCCESS : INVALID_CONTEXT;
    if (all || --context->retained == 0) context_free(context);
    return SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER(cuDevicePrimaryCtxRelease_v2);
    return primary_release(device, false);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    ENTER(cuDevicePrimaryCtxReset_v2);
    return primary_release(device, true);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    ENTER(cuDevicePrimaryCtxGetState);
    if (!valid(device)) return INVALID_DEVICE;
    *flags = 0;
    *active = object_find(CONTEXT, primaries[device]) != NULL;
    return SUCCESS;
}

/* Waiting for everything: the legacy stream waits for blocking streams alone, this for all. ---------------------- */

typedef struct {
    Handle context;
    int64_t latest;
    Capture *capture;
} Everything;

static void gather(void *object, void *argument) {
    Stream *stream = object;
    Everything *all = argument;
    if (stream->context != all->context) return;
    if (stream->tail_ns > all->latest) all->latest = stream->tail_ns;
    if (stream->capture) all->capture = stream->capture;
}

static CUresult synchronize(Handle context) {
    Everything all = {.context = context};
    {
        LOCKED;
        object_each(STREAM, gather, &all);
        if (all.capture) {
            capture_break(all.capture);
            return CAPTURE_UNSUPPORTED;
        }
    }
    wait_until(all.latest + (int64_t)settings.visible_ns);
    return SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
    ENTER(cuCtxSynchronize);
    return synchronize(stack[depth - 1]);
}

EXPORT CUresult cuCtxSynchronize_v2(Handle handle) {
    ENTER(cuCtxSynchronize_v2);
    Context *context = given_or_current(handle);
    return context ? synchronize(context->header.handle) : INVALID_CONTEXT;
}
