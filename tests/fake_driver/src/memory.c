/* Memory: device memory is host memory, so copies are real. They happen at once, and take their time on the stream. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

typedef struct Block {
    struct Block *next;
    Handle address;
    size_t bytes;
} Block;

static Block *blocks;
static size_t bytes_in_use;

static CUresult take(Handle *address, size_t bytes) {
    LOCKED;
    Block *block = malloc(sizeof *block);
    void *memory = NULL;
    if (!bytes) return INVALID_VALUE;
    if (!block || posix_memalign(&memory, 256, bytes)) return OUT_OF_MEMORY;
    *block = (Block){.next = blocks, .address = (Handle)memory, .bytes = bytes};
    blocks = block;
    bytes_in_use += bytes;
    *address = block->address;
    return SUCCESS;
}

static CUresult give_back(Handle address) {
    LOCKED;
    if (!address) return SUCCESS;
    for (Block **at = &blocks; *at; at = &(*at)->next) {
        Block *block = *at;
        if (block->address != address) continue;
        *at = block->next;
        bytes_in_use -= block->bytes;
        free((void *)block->address);
        free(block);
        return SUCCESS;
    }
    return INVALID_VALUE;
}

EXPORT CUresult cuMemAlloc_v2(Handle *address, size_t bytes) {
    ENTER(cuMemAlloc_v2);
    return take(address, bytes);
}

EXPORT CUresult cuMemAllocManaged(Handle *address, size_t bytes, unsigned flags) {
    ENTER(cuMemAllocManaged);
    (void)flags;
    return take(address, bytes);
}

EXPORT CUresult cuMemAllocHost_v2(Handle *address, size_t bytes) {
    ENTER(cuMemAllocHost_v2);
    return take(address, bytes);
}

EXPORT CUresult cuMemHostAlloc(Handle *address, size_t bytes, unsigned flags) {
    ENTER(cuMemHostAlloc);
    (void)flags;
    return take(address, bytes);
}

EXPORT CUresult cuMemAllocAsync(Handle *address, size_t bytes, Handle stream) {
    ENTER(cuMemAllocAsync);
    CUresult code = submit(stream, 0);
    return code ? code : take(address, bytes);
}

EXPORT CUresult cuMemFree_v2(Handle address) {
    ENTER(cuMemFree_v2);
    return give_back(address);
}

EXPORT CUresult cuMemFreeHost(Handle address) {
    ENTER(cuMemFreeHost);
    return give_back(address);
}

EXPORT CUresult cuMemFreeAsync(Handle address, Handle stream) {
    ENTER(cuMemFreeAsync);
    CUresult code = submit(stream, 0);
    return code ? code : give_back(address);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) {
    ENTER(cuMemGetInfo_v2);
    *total = (size_t)8 << 30;
    *unused = *total - bytes_in_use;
    return SUCCESS;
}

static CUresult transfer(size_t bytes, Handle stream) {
    double per_byte = settings.copy_gbps > 0 ? 1 / settings.copy_gbps : 0;
    return submit(stream, (int64_t)(settings.copy_ns + per_byte * (double)bytes));
}

static CUresult copy_async(Handle to, Handle from, size_t bytes, Handle stream) {
    CUresult code = transfer(bytes, stream);
    if (!code) memmove((void *)to, (const void *)from, bytes);
    return code;
}

extern CUresult cuStreamSynchronize(Handle stream);

/* A copy without a stream runs on the legacy one and is waited for. */
static CUresult copy(Handle to, Handle from, size_t bytes) {
    CUresult code = copy_async(to, from, bytes, LEGACY);
    atomic_fetch_sub(&call_count[F_cuStreamSynchronize], 1); /* not a call of the program's */
    return code ? code : cuStreamSynchronize(LEGACY);
}

#define COPY(symbol)                                                                       \
    EXPORT CUresult symbol(Handle to, Handle from, size_t bytes) {                         \
        ENTER(symbol);                                                                     \
        return copy(to, from, bytes);                                                      \
    }
#define COPY_ASYNC(symbol)                                                                 \
    EXPORT CUresult symbol(Handle to, Handle from, size_t bytes, Handle stream) {          \
        ENTER(symbol);                                                                     \
        return copy_async(to, from, bytes, stream);                                        \
    }

COPY(cuMemcpy)
COPY(cuMemcpyHtoD_v2)
COPY(cuMemcpyDtoH_v2)
COPY(cuMemcpyDtoD_v2)
COPY_ASYNC(cuMemcpyAsync)
COPY_ASYNC(cuMemcpyHtoDAsync_v2)
COPY_ASYNC(cuMemcpyDtoHAsync_v2)
COPY_ASYNC(cuMemcpyDtoDAsync_v2)

EXPORT CUresult cuMemcpyBatchAsync_v2(const Handle *to, const Handle *from, const size_t *bytes, size_t count,
    const void *attributes, const size_t *attribute_starts, size_t attribute_count, Handle stream) {
    ENTER(cuMemcpyBatchAsync_v2);
    (void)attributes, (void)attribute_starts, (void)attribute_count;
    CUresult code = SUCCESS;
    for (size_t i = 0; i < count && !code; i++) code = copy_async(to[i], from[i], bytes[i], stream);
    return code;
}

static CUresult fill8(Handle to, unsigned char value, size_t count, Handle stream) {
    CUresult code = transfer(count, stream);
    if (!code) memset((void *)to, value, count);
    return code;
}

static CUresult fill32(Handle to, unsigned value, size_t count, Handle stream) {
    CUresult code = transfer(4 * count, stream);
    for (size_t i = 0; !code && i < count; i++) ((unsigned *)to)[i] = value;
    return code;
}

EXPORT CUresult cuMemsetD8_v2(Handle to, unsigned char value, size_t count) {
    ENTER(cuMemsetD8_v2);
    return fill8(to, value, count, LEGACY);
}

EXPORT CUresult cuMemsetD8Async(Handle to, unsigned char value, size_t count, Handle stream) {
    ENTER(cuMemsetD8Async);
    return fill8(to, value, count, stream);
}

EXPORT CUresult cuMemsetD32_v2(Handle to, unsigned value, size_t count) {
    ENTER(cuMemsetD32_v2);
    return fill32(to, value, count, LEGACY);
}

EXPORT CUresult cuMemsetD32Async(Handle to, unsigned value, size_t count, Handle stream) {
    ENTER(cuMemsetD32Async);
    return fill32(to, value, count, stream);
}
