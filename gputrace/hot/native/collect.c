/* The collector's side of the host: edges from the rings to slices, without the GIL.
 *
 * `HostTimeline.add` of the Python twin, said in C; what a step means is explained there. Python says how much to do at
 * once. An exporter in Python is given lists of edges, and the GIL is then held throughout.
 */

#include "hot.h"

struct counts counts;
struct buffer out;
struct lane *touched;

PyObject *open_thread, *close_thread;
bool python_sink;

void gil_take(struct collecting *c) {
    if (c->stays || !c->state) return;
    PyEval_RestoreThread(c->state);
    c->state = NULL;
}

void gil_drop(struct collecting *c) {
    if (!c->stays && !PyErr_Occurred()) c->state = PyEval_SaveThread();
}

static void consumed(struct piece *piece, const uint8_t *at) {
    struct piece_head *head = (struct piece_head *)piece->base;
    uint64_t now = ring_epoch();
    if (head->epoch_new < now) head->consumed_old = head->consumed_new;
    atomic_thread_fence(memory_order_release);
    head->epoch_new = now;
    atomic_thread_fence(memory_order_release);
    head->consumed_new = (uint64_t)(at - piece->base);
}

/* epoch_pending(generation, length, tracks): the shard is about to be this long, with everything collected until now. */
static PyObject *hot_epoch_pending(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long generation, length, tracks;
    if (!PyArg_ParseTuple(args, "KKK", &generation, &length, &tracks) || !turn_take(generation)) return NULL;
    struct ring_header *header = ring_header();
    uint64_t next = ring_epoch();
    header->tracks = tracks;
    header->length[next & 1] = length;
    atomic_store_explicit(&header->pending, next, memory_order_release);
    turn_end();
    RETURN_NONE;
}

/* epoch_commit(generation): the shard is as long as was said. */
static PyObject *hot_epoch_commit(PyObject *module, PyObject *generation) {
    (void)module;
    if (!turn_take_for(generation)) return NULL;
    struct collecting c = {.stays = !ring_commit_is_long()};
    gil_drop(&c);
    ring_commit();
    gil_take(&c);
    turn_end();
    RETURN_NONE;
}

/* Host edges. */

struct cursor {
    struct piece *piece;
    uint8_t *at;
};

/* The next record, if there is one; the cursor stands behind it then. */
static struct record *next_record(struct cursor *cursor, uint64_t *tag) {
    for (;;) {
        struct record *record = (struct record *)cursor->at;
        uint64_t found = RECORD_FILL;
        if (cursor->at < cursor->piece->base + (size_t)cursor->piece->units * PIECE_BYTES)
            found = atomic_load_explicit(&record->tag, memory_order_acquire);
        if (!found) return NULL;
        if ((found & 0xff) != RECORD_FILL) {
            *tag = found;
            cursor->at += (1 + (found >> 16 & 0xffff)) * SLOT;
            return record;
        }
        struct piece *next = atomic_load_explicit(&cursor->piece->next, memory_order_acquire);
        if (!next) return NULL;
        *cursor = (struct cursor){next, next->base + PIECE_HEAD};
    }
}

static struct args record_args(struct record *record, uint64_t tag, struct label *label) {
    uint8_t *at = (uint8_t *)(record + 1), *end = at + (tag >> 16 & 0xffff) * SLOT;
    if (label) {
        *label = (struct label){.id = (uint32_t)(tag >> 32)};
        if (!label->id) {
            memcpy(&label->text.length, at, 4);
            label->text.bytes = (char *)at + 4;
            at += 4 + label->text.length;
        }
    }
    return (struct args){at, end};
}

/* Samples of counters, drawn by Python. */
static struct sample {
    struct label label;
    int64_t ns;
    uint64_t bits, unit;
    bool is_double;
} *samples;
static size_t sample_count, sample_room;

static bool add_sample(struct record *record, uint64_t tag) {
    if (!room_for_one(&samples, &sample_room, sample_count, sizeof *samples)) return false;
    struct sample *sample = &samples[sample_count++];
    record_args(record, tag, &sample->label);
    sample->ns = record->ns;
    sample->bits = record->number;
    sample->unit = record->scope;
    sample->is_double = tag >> 8 & IS_DOUBLE;
    return true;
}

static PyObject *take_samples(void) {
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < sample_count; i++) {
        struct sample *s = &samples[i];
        double real;
        memcpy(&real, &s->bits, 8);
        PyObject *name = label_object(s->label), *unit = s->unit ? Py_NewRef(names[s->unit]->object) : PyUnicode_FromString("");
        PyObject *value = s->is_double ? PyFloat_FromDouble(real) : PyLong_FromLongLong((long long)s->bits);
        PyObject *row = name && unit && value ? Py_BuildValue("(OLOO)", name, (long long)s->ns, value, unit) : NULL;
        Py_XDECREF(name);
        Py_XDECREF(unit);
        Py_XDECREF(value);
        if (!row || PyList_Append(list, row)) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    sample_count = 0;
    return list;
}

void samples_forget(void) {
    sample_count = 0;
}

/* Announce a thread's track. */
static bool open_host(struct collecting *c, struct thread *thread) {
    gil_take(c);
    GUARD(); /* it may be given another meanwhile */
    PyObject *named = Py_NewRef(thread->name), *home, *open_lane, *keep = NULL;
    UNGUARD();
    PyObject *made = PyObject_CallFunction(open_thread, "IIO", thread->number, thread->tid, named);
    struct text name;
    if (made && PyArg_ParseTuple(made, "OO", &home, &open_lane) && (thread->home = lane_make(home, 0)) &&
        text_of(named, &name, &keep)) {
        thread->lanes.open_lane = Py_NewRef(open_lane);
        thread->lanes.thread = thread;
        GUARD();
        if (!thread->entry) thread->entry = thread_entry_take(thread->number, thread->tid, name);
        UNGUARD();
        if (thread->entry) {
            thread->entry->announced = ring_epoch();
            atomic_thread_fence(memory_order_release);
            thread->entry->track = thread->home->track_id;
        }
    }
    Py_XDECREF(keep);
    Py_XDECREF(made);
    Py_DECREF(named);
    gil_drop(c);
    return thread->lanes.open_lane != NULL;
}

static bool begin_on_lane(struct collecting *c, struct thread *thread, struct record *record, struct edge *edge) {
    bool keyed = record->scope != EXPLICIT_WINDOW;
    struct lane *lane = lanes_choose(c, &thread->lanes, keyed, record->scope, 0, edge->ts);
    if (!lane) return false;
    if (edge->ts < lane->last_ns) {
        add_to(&counts.clamped, 1);
        edge->ts = lane->last_ns;
    }
    lane->last_ns = edge->ts;
    return lane_emit(c, lane, edge) && lanes_begin(c, &thread->lanes, lane, record->number, keyed, record->scope, 0);
}

static bool is_in(const struct lane *lane, uint64_t item) {
    for (size_t i = lane->depth; i-- > 0;)
        if (lane->stack[i].item == item) return true;
    return false;
}

static bool begin_host(struct collecting *c, struct thread *thread, struct record *record, uint64_t tag, struct cursor *cursor, uint64_t *taken) {
    struct lane *home = thread->home;
    struct edge edge = {.ts = record->ns, .kind = EDGE_BEGIN};
    add_view(&edge, record_args(record, tag, &edge.name));
    edge.flow = tag >> 8 & HAS_STREAM ? record->number : 0;
    add_to(&counts.slices, 1);
    if (record->scope != 0 || home->depth >= DEEPEST) return begin_on_lane(c, thread, record, &edge);
    if (edge.ts < home->last_ns) {
        add_to(&counts.clamped, 1);
        edge.ts = home->last_ns;
    }
    struct cursor ahead = *cursor;
    uint64_t end_tag;
    struct record *end = next_record(&ahead, &end_tag);
    if (end && (end_tag & 0xff) == RECORD_END && end->number == record->number) { /* nothing happened inside */
        *cursor = ahead;
        ++*taken;
        home->last_ns = end->ns > edge.ts ? end->ns : edge.ts;
        edge.kind = EDGE_SLICE;
        edge.end_ns = home->last_ns;
        add_view(&edge, record_args(end, end_tag, NULL));
        return lane_emit(c, home, &edge);
    }
    home->last_ns = edge.ts;
    return lane_emit(c, home, &edge) && lane_push(c, home, record->number, thread);
}

static bool end_host(struct collecting *c, struct thread *thread, struct record *record, uint64_t tag) {
    struct lane *home = thread->home;
    struct edge edge = {.ts = record->ns, .kind = EDGE_END};
    add_view(&edge, record_args(record, tag, NULL));
    bool innermost = home->depth && home->stack[home->depth - 1].item == record->number;
    if (!innermost && !is_in(home, record->number))
        return lanes_end(c, &thread->lanes, record->number, edge.ts, edge.views, edge.view_count) != INT64_MIN;
    if (edge.ts < home->last_ns) {
        add_to(&counts.clamped, innermost);
        edge.ts = home->last_ns;
    }
    home->last_ns = edge.ts;
    if (!innermost && !lane_cut_down_to(c, &thread->lanes, home, record->number, edge.ts)) return false;
    lane_pop(home);
    return lane_emit(c, home, &edge);
}

static int64_t pass_ns; /* when the collector began to go through the threads: what came later is for the next time */

/* At most `most` of a thread's records. False with an exception set. */
static bool collect_thread(struct collecting *c, struct thread *thread, uint64_t most, bool *more) {
    struct piece *oldest = atomic_load_explicit(&thread->oldest, memory_order_acquire);
    if (!oldest) return true;
    struct cursor cursor = {oldest, atomic_load_explicit(&thread->read, memory_order_relaxed)}, ahead = cursor;
    struct record *record;
    uint64_t tag, taken = 0;
    bool ok = true;
    while (ok && (record = next_record(&ahead, &tag)) && record->ns <= pass_ns) {
        if ((*more = collected_enough(taken, most))) break;
        cursor = ahead;
        taken++;
        if (!thread->home && !(ok = open_host(c, thread))) break;
        switch (tag & 0xff) {
        case RECORD_BEGIN: ok = begin_host(c, thread, record, tag, &cursor, &taken); break;
        case RECORD_END: ok = end_host(c, thread, record, tag); break;
        case RECORD_SAMPLE: ok = add_sample(record, tag); break;
        default: {
            struct edge edge = {.ts = record->ns > thread->home->last_ns ? record->ns : thread->home->last_ns, .kind = EDGE_INSTANT};
            add_view(&edge, record_args(record, tag, &edge.name));
            thread->home->last_ns = edge.ts;
            ok = lane_emit(c, thread->home, &edge);
        }
        }
        ahead = cursor;
    }
    while (oldest != cursor.piece) { /* read whole */
        struct piece *next = atomic_load_explicit(&oldest->next, memory_order_acquire);
        consumed(oldest, oldest->base + (size_t)oldest->units * PIECE_BYTES);
        piece_give(oldest);
        oldest = next;
    }
    if (taken) consumed(cursor.piece, cursor.at);
    atomic_store(&thread->oldest, oldest);
    atomic_store_explicit(&thread->read, cursor.at, memory_order_release);
    return ok;
}

/* Asked by others than the collector, too, while it reads: a place in another piece than the oldest is on its way. */
static bool is_drained(struct thread *thread) {
    struct piece *oldest = atomic_load(&thread->oldest);
    if (!oldest) return true;
    struct cursor cursor = {oldest, atomic_load(&thread->read)};
    uint64_t tag;
    if (cursor.at < oldest->base || cursor.at > oldest->base + (size_t)oldest->units * PIECE_BYTES) return false;
    return !next_record(&cursor, &tag);
}

/* Let go of threads that are gone and closed all they opened. With the GIL. */
static bool drop_ended(void) {
    struct thread *_Atomic *at = &core.threads;
    for (struct thread *thread; (thread = atomic_load(at));) {
        bool open = thread->open || (thread->home && (thread->home->depth || thread->lanes.lane_of.count));
        if (atomic_load(&thread->life) != THREAD_ENDED || open || !is_drained(thread)) {
            at = &thread->next;
            continue;
        }
        atomic_store(at, atomic_load(&thread->next));
        PyObject *tracks = PyList_New(0);
        for (size_t i = 0; tracks && i < thread->lanes.count; i++)
            if (PyList_Append(tracks, thread->lanes.lanes[i]->track)) Py_CLEAR(tracks);
        if (tracks && thread->home && PyList_Append(tracks, thread->home->track)) Py_CLEAR(tracks);
        PyObject *done = tracks ? PyObject_CallFunction(close_thread, "IO", thread->number, tracks) : NULL;
        Py_XDECREF(tracks);
        for (struct piece *piece = atomic_exchange(&thread->oldest, NULL), *next; piece; piece = next) {
            next = atomic_load(&piece->next);
            piece_give(piece);
        }
        if (thread->entry) thread_entry_give(thread->entry);
        thread_forget(thread);
        Py_XDECREF(done);
        if (!done) return false;
    }
    return true;
}

static PyObject *collect_host(uint64_t most, bool anew) {
    size_t count = 0;
    int64_t now = core.clock_step ? core.clock_ns : now_ns(); /* a clock for tests moves when it is read */
    if (anew) pass_ns = core.clock_step ? INT64_MAX : now;
    for (struct thread *thread = atomic_load(&core.threads); thread; thread = atomic_load(&thread->next)) {
        if (thread->calls_waiting) calls_settle(thread, now - thread->least_call_ns);
        count++;
    }
    struct thread **threads = calloc(count + 1, sizeof *threads);
    if (!threads) return PyErr_NoMemory();
    size_t i = count; /* the list has the newest first */
    for (struct thread *thread = atomic_load(&core.threads); thread && i; thread = atomic_load(&thread->next)) threads[--i] = thread;
    struct collecting c = {.stays = python_sink};
    bool ok = true, more = false;
    gil_drop(&c);
    for (i = 0; i < count && ok; i++) {
        bool some = false;
        ok = collect_thread(&c, threads[i], most, &some);
        more |= some;
    }
    gil_take(&c);
    free(threads);
    if (!ok || PyErr_Occurred()) {
        if (!PyErr_Occurred()) PyErr_NoMemory();
        return NULL;
    }
    if (!drop_ended()) return NULL;
    PyObject *values = take_samples();
    return values ? Py_BuildValue("(NN)", PyBool_FromLong(more), values) : NULL;
}

/* collect_host(generation, most, anew) -> (more, samples): at most so many records of each thread, of those that were
 * there when it was last called `anew`. */
static PyObject *hot_collect_host(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long generation, most;
    int anew;
    if (!PyArg_ParseTuple(args, "KKp", &generation, &most, &anew) || !turn_take(generation)) return NULL;
    PyObject *done = collect_host(most, anew);
    turn_end();
    return done;
}

/* Output. */

/* take_encoded(generation) -> bytes */
static PyObject *hot_take_encoded(PyObject *module, PyObject *generation) {
    (void)module;
    if (!turn_take_for(generation)) return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)out.data, (Py_ssize_t)out.length);
    if (bytes && out.room > 2 * MOST_ENCODED) free(out.data), out = (struct buffer){0}; /* after something long */
    out.length = 0;
    turn_end();
    return bytes;
}

/* take_edges(generation) -> [(track, edges)] */
static PyObject *hot_take_edges(PyObject *module, PyObject *generation) {
    (void)module;
    if (!turn_take_for(generation)) return NULL;
    PyObject *list = PyList_New(0);
    for (struct lane *lane = touched; lane && list; lane = lane->next_touched) {
        PyObject *edges = PyList_GetSlice(lane->edges, 0, PyList_Size(lane->edges));
        PyObject *row = edges ? Py_BuildValue("(ON)", lane->track, edges) : NULL;
        if (!row || PyList_Append(list, row) || PyList_SetSlice(lane->edges, 0, PyList_Size(lane->edges), NULL)) Py_CLEAR(list);
        Py_XDECREF(row);
        lane->touched = false;
    }
    touched = NULL;
    turn_end();
    if (list) PyList_Reverse(list);
    return list;
}

/* threads() -> (how many there are, of how many not all was collected) */
static PyObject *hot_threads(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    unsigned long long threads = 0, undrained = 0;
    for (struct thread *thread = atomic_load(&core.threads); thread; thread = atomic_load(&thread->next)) {
        threads++;
        undrained += !is_drained(thread);
    }
    return Py_BuildValue("(KK)", threads, undrained);
}

/* open_spans(generation) -> host slices drawn as begun and not ended. The collector's to ask. */
static PyObject *hot_open_spans(PyObject *module, PyObject *generation) {
    (void)module;
    unsigned long long open = 0;
    if (!turn_take_for(generation)) return NULL;
    for (struct thread *thread = atomic_load(&core.threads); thread; thread = atomic_load(&thread->next))
        if (thread->home) open += thread->home->depth + thread->lanes.lane_of.count;
    turn_end();
    return PyLong_FromUnsignedLongLong(open);
}

PyMethodDef collect_functions[] = {
    {"collect_host", hot_collect_host, METH_VARARGS, "Host edges to slices."},
    {"take_encoded", hot_take_encoded, METH_O, "What was encoded since the last time."},
    {"take_edges", hot_take_edges, METH_O, "What an exporter in Python is to encode."},
    {"epoch_pending", hot_epoch_pending, METH_VARARGS, "The shard is about to be so long."},
    {"epoch_commit", hot_epoch_commit, METH_O, "The shard is as long as was said."},
    {"threads", hot_threads, METH_NOARGS, "How many there are, and of how many not all was collected."},
    {"open_spans", hot_open_spans, METH_O, "Host slices begun and not ended."},
    {0},
};
