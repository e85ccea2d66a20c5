/* Which lane a slice goes to, and what is open there: `Lane` and `LaneSet` of gputrace/timeline.py, said in C.
 *
 * Every function returns false, or NULL, with an exception set where memory ran out or a callback raised.
 */

#include "hot.h"

/* Maps. */

static size_t hash(uint64_t a, uint64_t b) {
    uint64_t h = (a ^ b * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    return (size_t)(h ^ h >> 31);
}

static struct map_slot *slot_of(const struct map *map, uint64_t a, uint64_t b) {
    size_t i = hash(a, b) & (map->capacity - 1);
    while (map->slots[i].used && (map->slots[i].a != a || map->slots[i].b != b)) i = (i + 1) & (map->capacity - 1);
    return &map->slots[i];
}

uint64_t *map_find(const struct map *map, uint64_t a, uint64_t b) {
    if (!map->count) return NULL;
    struct map_slot *slot = slot_of(map, a, b);
    return slot->used ? &slot->value : NULL;
}

bool map_put(struct map *map, uint64_t a, uint64_t b, uint64_t value) {
    if (2 * (map->count + 1) > map->capacity) {
        struct map wider = {.capacity = map->capacity ? 2 * map->capacity : 16};
        if (!(wider.slots = calloc(wider.capacity, sizeof *wider.slots))) return false;
        for (size_t i = 0; i < map->capacity; i++)
            if (map->slots[i].used) *slot_of(&wider, map->slots[i].a, map->slots[i].b) = map->slots[i];
        wider.count = map->count;
        free(map->slots);
        *map = wider;
    }
    struct map_slot *slot = slot_of(map, a, b);
    map->count += !slot->used;
    *slot = (struct map_slot){a, b, value, true};
    return true;
}

bool map_take(struct map *map, uint64_t a, uint64_t b, uint64_t *value) {
    uint64_t *found = map_find(map, a, b);
    if (!found) return false;
    if (value) *value = *found;
    size_t mask = map->capacity - 1, hole = (size_t)(slot_of(map, a, b) - map->slots), i = hole;
    for (;;) { /* whatever stands behind and would no longer be found moves up */
        i = (i + 1) & mask;
        if (!map->slots[i].used) break;
        size_t home = hash(map->slots[i].a, map->slots[i].b) & mask;
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        map->slots[hole] = map->slots[i];
        hole = i;
    }
    map->slots[hole].used = false;
    map->count--;
    return true;
}

void map_clear(struct map *map) {
    free(map->slots);
    *map = (struct map){0};
}

/* Lanes. */

/* `described` is (track id, track, what sequence_make takes, or a list for edges). Takes no reference. */
struct lane *lane_make(PyObject *described, size_t index) {
    unsigned int id;
    PyObject *track, *native;
    if (!PyArg_ParseTuple(described, "IOO", &id, &track, &native)) return NULL;
    struct lane *lane = calloc(1, sizeof *lane);
    if (!lane) return (void)PyErr_NoMemory(), NULL;
    if (PyList_Check(native)) lane->edges = Py_NewRef(native);
    else if (!(lane->sequence = sequence_make(native))) return free(lane), NULL;
    lane->track = Py_NewRef(track);
    lane->track_id = id;
    lane->index = index;
    return lane;
}

void lane_free(struct lane *lane) {
    if (!lane) return;
    sequence_free(lane->sequence);
    Py_XDECREF(lane->edges);
    Py_XDECREF(lane->track);
    free(lane->stack);
    free(lane);
}

static void heap_swap(size_t *heap, size_t i, size_t j) {
    size_t kept = heap[i];
    heap[i] = heap[j], heap[j] = kept;
}

static void sift_down(size_t *heap, size_t count, size_t i) {
    for (;;) {
        size_t least = i, left = 2 * i + 1, right = left + 1;
        if (left < count && heap[left] < heap[least]) least = left;
        if (right < count && heap[right] < heap[least]) least = right;
        if (least == i) return;
        heap_swap(heap, i, least);
        i = least;
    }
}

static bool push_empty(struct lanes *set, size_t index) {
    if (!room_for_one(&set->empty, &set->empty_room, set->empty_count, sizeof *set->empty)) return false;
    size_t i = set->empty_count++;
    set->empty[i] = index;
    for (; i && set->empty[(i - 1) / 2] > set->empty[i]; i = (i - 1) / 2) heap_swap(set->empty, i, (i - 1) / 2);
    return true;
}

static void take_empty(struct lanes *set, size_t index) {
    size_t i = 0;
    while (i < set->empty_count && set->empty[i] != index) i++;
    if (i == set->empty_count) return;
    set->empty[i] = set->empty[--set->empty_count];
    for (size_t j = set->empty_count / 2; j-- > 0;) sift_down(set->empty, set->empty_count, j);
}

struct lane *lanes_choose(struct collecting *c, struct lanes *set, bool keyed, uint64_t a, uint64_t b, int64_t ts) {
    if (keyed) {
        uint64_t *owned = map_find(&set->owned, a, b);
        struct lane *lane = owned ? (struct lane *)(uintptr_t)*owned : NULL;
        if (lane && lane->depth < DEEPEST) return lane;
    }
    if (set->empty_count) {
        struct lane *lane = set->lanes[set->empty[0]];
        if (lane->last_ns <= ts + CLOSE_NS) return lane;
    }
    gil_take(c);
    struct lane *lane = NULL;
    PyObject *index = PyLong_FromSize_t(set->count);
    PyObject *described = index ? PyObject_CallFunctionObjArgs(set->open_lane, index, NULL) : NULL;
    if (described) lane = lane_make(described, set->count);
    Py_XDECREF(index);
    Py_XDECREF(described);
    if (lane && room_for_one(&set->lanes, &set->room, set->count, sizeof *set->lanes) && push_empty(set, set->count)) {
        set->lanes[set->count++] = lane;
    } else if (lane) {
        lane_free(lane);
        lane = NULL;
        PyErr_NoMemory();
    }
    gil_drop(c);
    return lane;
}

/* Open an item on a lane. A host thread's is noted in its ring, as begun in the shard by the epoch being written. */
bool lane_push(struct collecting *c, struct lane *lane, uint64_t item, struct thread *thread) {
    if (!room_for_one(&lane->stack, &lane->room, lane->depth, sizeof *lane->stack))
        return gil_take(c), PyErr_NoMemory(), false;
    struct open_entry *entry = thread ? open_entry_take() : NULL;
    if (entry) {
        entry->thread = thread->number;
        entry->track = lane->track_id;
        entry->begin_epoch = ring_epoch();
        entry->end_epoch = 0;
        entry->scope = lane == thread->home ? 0 : lane->keyed ? lane->key_a : EXPLICIT_WINDOW;
        atomic_store_explicit(&entry->number, item, memory_order_release);
    }
    lane->stack[lane->depth++] = (struct open_item){item, entry};
    return true;
}

void lane_pop(struct lane *lane) {
    struct open_entry *entry = lane->stack[--lane->depth].entry;
    if (entry) open_entry_end(entry);
}

bool lanes_begin(struct collecting *c, struct lanes *set, struct lane *lane, uint64_t item, bool keyed, uint64_t a, uint64_t b) {
    if (!lane->depth) {
        take_empty(set, lane->index);
        lane->keyed = keyed;
        lane->key_a = a, lane->key_b = b;
        if (keyed && !map_put(&set->owned, a, b, (uintptr_t)lane)) return gil_take(c), PyErr_NoMemory(), false;
    }
    if (!lane_push(c, lane, item, set->thread)) return false;
    return map_put(&set->lane_of, item, 0, (uintptr_t)lane) || (gil_take(c), PyErr_NoMemory(), false);
}

static const char CUT[] = "a span around it was closed first";

bool lane_cut_down_to(struct collecting *c, struct lanes *set, struct lane *lane, uint64_t item, int64_t ts) {
    while (lane->stack[lane->depth - 1].item != item) {
        add_to(&counts.out_of_order, 1);
        map_take(&set->lane_of, lane->stack[lane->depth - 1].item, 0, NULL);
        lane_pop(lane);
        static const uint32_t key[] = {NAME_ENDED};
        struct text why = {CUT, sizeof CUT - 1};
        struct blob *args = blob_of_text_args(1, key, &why);
        if (!args) return gil_take(c), PyErr_NoMemory(), false;
        struct edge edge = {.ts = ts, .kind = EDGE_END, .views = {{args->bytes, args->bytes + args->length}}, .view_count = 1};
        bool ok = lane_emit(c, lane, &edge);
        blob_drop(args);
        if (!ok) return false;
    }
    return true;
}

/* The time used, or INT64_MIN with an exception set. */
int64_t lanes_end(struct collecting *c, struct lanes *set, uint64_t item, int64_t ts, const struct args *args, int count) {
    uint64_t found;
    if (!map_take(&set->lane_of, item, 0, &found)) return ts;
    struct lane *lane = (struct lane *)(uintptr_t)found;
    if (ts < lane->last_ns) {
        add_to(&counts.clamped, 1);
        ts = lane->last_ns;
    }
    lane->last_ns = ts;
    if (!lane_cut_down_to(c, set, lane, item, ts)) return INT64_MIN;
    lane_pop(lane);
    struct edge edge = {.ts = ts, .kind = EDGE_END, .view_count = count};
    for (int i = 0; i < count; i++) edge.views[i] = args[i];
    if (!lane_emit(c, lane, &edge)) return INT64_MIN;
    if (!lane->depth) {
        uint64_t *owned = lane->keyed ? map_find(&set->owned, lane->key_a, lane->key_b) : NULL;
        if (owned && *owned == (uintptr_t)lane) map_take(&set->owned, lane->key_a, lane->key_b, NULL);
        if (!push_empty(set, lane->index)) return gil_take(c), PyErr_NoMemory(), INT64_MIN;
    }
    return ts;
}

/* Encode the edge at once, or give it to the list of an exporter in Python. */
bool lane_emit(struct collecting *c, struct lane *lane, const struct edge *edge) {
    if (lane->sequence) {
        if (sequence_encode(lane->sequence, &out, edge)) return true;
        return gil_take(c), PyErr_NoMemory(), false;
    }
    gil_take(c);
    PyObject *name = edge->kind == EDGE_END ? Py_NewRef(Py_None) : label_object(edge->name);
    PyObject *args = edge->view_count ? args_object(edge->views, edge->view_count) : Py_NewRef(Py_None);
    PyObject *tuple = NULL;
    if (name && args) {
        tuple = Py_BuildValue("(LiOOKL)", (long long)edge->ts, (int)edge->kind, name, args,
                              (unsigned long long)edge->flow, (long long)edge->end_ns);
    }
    Py_XDECREF(name);
    Py_XDECREF(args);
    bool ok = tuple && !PyList_Append(lane->edges, tuple);
    Py_XDECREF(tuple);
    if (ok && !lane->touched) {
        lane->touched = true;
        lane->next_touched = touched;
        touched = lane;
    }
    gil_drop(c);
    return ok;
}

void lanes_free(struct lanes *set) {
    for (size_t i = 0; i < set->count; i++) lane_free(set->lanes[i]);
    free(set->lanes);
    free(set->empty);
    map_clear(&set->owned);
    map_clear(&set->lane_of);
    Py_XDECREF(set->open_lane);
    *set = (struct lanes){0};
}
