/* Tables of objects by handle. Slots never move and are never given back, so a lookup needs no lock. */
#include "fake.h"

#include "fake_objects.h"
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1024, CHUNKS = 4096 };

typedef struct {
    size_t size;
    _Atomic(char *) chunks[CHUNKS];
    _Atomic uint32_t used;
    int32_t first_free; /* slot + 1; 0 is none */
} Table;

static Table tables[KINDS] = {
    [CONTEXT] = {.size = sizeof(Context)},   [STREAM] = {.size = sizeof(Stream)},
    [EVENT] = {.size = sizeof(Event)},       [MODULE] = {.size = sizeof(Module)},
    [FUNCTION] = {.size = sizeof(Kernel)},   [GRAPH] = {.size = sizeof(Graph)},
    [EXEC] = {.size = sizeof(Graph)},
};

_Atomic int64_t live_count[KINDS], made_count[KINDS];

/* 4 bits of kind, 20 of generation, 24 of slot: fits the 48 bits of a user address, and is never 0, 1 or 2. */
static Handle make_handle(Kind kind, uint32_t generation, uint32_t slot) {
    return (Handle)kind << 44 | (Handle)(generation & 0xfffff) << 24 | slot;
}

static Header *at(Table *table, uint32_t slot) {
    char *chunk = atomic_load_explicit(&table->chunks[slot / CHUNK], memory_order_acquire);
    return (Header *)(chunk + (slot % CHUNK) * table->size);
}

void *object_new(Kind kind) {
    Table *table = &tables[kind];
    uint32_t slot;
    Header *header;
    if (table->first_free) {
        slot = (uint32_t)table->first_free - 1;
        header = at(table, slot);
        table->first_free = header->next_free;
    } else {
        slot = table->used;
        if (slot >= (uint32_t)CHUNK * CHUNKS) return NULL;
        if (slot % CHUNK == 0) {
            char *chunk = calloc(CHUNK, table->size);
            if (!chunk) return NULL;
            atomic_store_explicit(&table->chunks[slot / CHUNK], chunk, memory_order_release);
        }
        header = at(table, slot);
        atomic_store_explicit(&table->used, slot + 1, memory_order_release);
    }
    uint32_t generation = header->generation + (settings.reuse_handles ? 0 : 1);
    memset(header, 0, table->size);
    header->generation = generation;
    header->handle = make_handle(kind, generation, slot);
    header->live = true;
    live_count[kind]++;
    made_count[kind]++;
    return header;
}

void *object_find(Kind kind, Handle handle) {
    Table *table = &tables[kind];
    uint32_t slot = handle & 0xffffff;
    if (handle >> 44 != (Handle)kind || slot >= atomic_load_explicit(&table->used, memory_order_acquire)) return NULL;
    Header *header = at(table, slot);
    return header->live && header->handle == handle ? header : NULL;
}

void object_free(Kind kind, void *object) {
    Table *table = &tables[kind];
    Header *header = object;
    header->live = false;
    header->next_free = table->first_free;
    table->first_free = (int32_t)(header->handle & 0xffffff) + 1;
    live_count[kind]--;
}

void object_each(Kind kind, void (*visit)(void *object, void *argument), void *argument) {
    Table *table = &tables[kind];
    for (uint32_t slot = 0; slot < table->used; slot++) {
        Header *header = at(table, slot);
        if (header->live) visit(header, argument);
    }
}
