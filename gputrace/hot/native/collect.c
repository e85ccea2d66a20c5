/* The collector's side: host edges and reached windows to slices, without the GIL.
 *
 * `HostTimeline.add`, `drain` and `StreamTimeline.place` of the Python twin, said in C; what a step means is explained
 * there. Python calls one function a step, and gives it what is policy: the anchor to measure from, the clock map's
 * pieces, how much to do at once. An exporter in Python is given lists of edges, and the GIL is then held throughout.
 */

#include "hot.h"

struct counts counts;
struct buffer out;
struct lane *touched;

static PyObject *open_thread, *close_thread;
static bool python_sink; /* the exporter encodes, not we */

/* So much is encoded in one call, and more where the rings fill: the GIL, needed to have it written, is long in coming. */
enum { MOST_ENCODED = 1 << 20, MOST_IN_HASTE = 1 << 23 };

static bool is_enough(uint64_t steps, uint64_t most) {
    if (steps >= most || turn_enough(steps)) return true;
    return unlikely(out.length >= MOST_ENCODED) && (out.length >= MOST_IN_HASTE || !rings_filling());
}

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

static void add_view(struct edge *edge, struct args view) {
    if (view.at < view.end && *view.at != ARG_NONE) edge->views[edge->view_count++] = view;
}

static struct args blob_view(const struct blob *blob) {
    return blob ? (struct args){blob->bytes, blob->bytes + blob->length} : (struct args){NULL, NULL};
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
        thread->entry = thread_entry_take(thread->number, thread->tid, name);
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
        if ((*more = is_enough(taken, most))) break;
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

/* Windows: reading. */

static bool add_waiting(struct queue *queue, struct passed passed) {
    if (!room_for_one(&queue->waiting, &queue->waiting_room, queue->waiting_count, sizeof *queue->waiting)) return false;
    if (!queue->waiting_count) queue->earliest_ns = INT64_MAX, queue->latest_ns = INT64_MIN;
    if (passed.timed) {
        int64_t end_ns = passed.is_leaf ? passed.end_device_ns : passed.device_ns;
        if (passed.device_ns < queue->earliest_ns) queue->earliest_ns = passed.device_ns;
        if (end_ns > queue->latest_ns) queue->latest_ns = end_ns;
    }
    queue->waiting[queue->waiting_count++] = passed;
    return true;
}

/* Windows read whole, on their way back to the program's side in one chain. */
struct chain {
    struct window *first, *last;
    uint64_t count;
};

static void window_done(struct chain *chain, struct window *window) {
    window_clear(window);
    window->next = chain->first;
    chain->first = window;
    if (!chain->last) chain->last = window;
    chain->count++;
}

static void chain_give(struct chain *chain, struct device *device) {
    if (!chain->first) return;
    struct window *head = atomic_load_explicit(&device->returned, memory_order_relaxed);
    do chain->last->next = head;
    while (!atomic_compare_exchange_weak_explicit(&device->returned, &head, chain->first, memory_order_release, memory_order_relaxed));
    atomic_fetch_add(&device->given, chain->count);
}

/* One event read against the anchor. The code's words, if a device in Python raised, are in `*words`. */
static int read_event(struct device *device, void *anchor, void *event, int64_t base_ns, int64_t *ns, PyObject **words) {
    if (likely(device->is_native)) {
        float ms = 0;
        int code = device->elapsed(&ms, anchor, event);
        if (!code) *ns = base_ns + (int64_t)((double)ms * 1e6);
        return code;
    }
    PyObject *result = PyObject_CallFunctionObjArgs(device->elapsed_raw, (PyObject *)anchor, (PyObject *)event, NULL);
    if (!result) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyErr_NormalizeException(&type, &value, &trace);
        if (!PyErr_GivenExceptionMatches(type, PyExc_Exception)) { /* on the program's own thread, a signal's handler raised it */
            PyErr_Restore(type, value, trace);
            return CODE_LEFT;
        }
        replace(words, value ? PyObject_Str(value) : NULL);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        PyErr_Clear();
        return CODE_RAISED;
    }
    PyObject *first = PySequence_GetItem(result, 0), *second = NULL;
    int code = first ? (int)PyLong_AsLong(first) : CODE_RAISED;
    if (!code && (second = PySequence_GetItem(result, 1))) *ns = base_ns + (int64_t)(PyFloat_AsDouble(second) * 1e6);
    Py_XDECREF(first);
    Py_XDECREF(second);
    Py_DECREF(result);
    PyErr_Clear();
    return code;
}

static struct blob *error_blob(const char *text) {
    return blob_of_error((struct text){text, (uint32_t)strlen(text)});
}

static void set_read_error(struct window *window, int code, PyObject *words) {
    char text[160];
    if (window->read_error) return;
    const char *said = words ? PyUnicode_AsUTF8AndSize(words, NULL) : NULL;
    if (said && *said) snprintf(text, sizeof text, "its event could not be read back: error %s", said);
    else snprintf(text, sizeof text, "its event could not be read back: error %d", code);
    if (words) PyErr_Clear();
    window->read_error = error_blob(text);
}

static struct passed passed_begin(struct window *window) {
    struct passed passed = {.flow = window->number, .label = window->label, .is_begin = true, .enqueued_ns = window->enqueued_ns,
                            .key_thread = window->key_thread, .scope = window->scope, .args = blob_share(window->args),
                            .name_text = blob_share(window->name_text)};
    return passed;
}

static struct passed passed_end(struct window *window) {
    struct passed passed = {.flow = window->number, .end_args = blob_share(window->end_args), .enqueued_ns = 0};
    passed.given_up = window->abandoned || (window->never_closed && !window->has_error && !window->read_error);
    if (!window->abandoned && !window->has_error) passed.read_error = blob_share(window->read_error);
    return passed;
}

/* An edge without a device time. */
static bool add_untimed(struct queue *queue, struct window *window, struct chain *chain) {
    struct passed passed;
    bool begins = !window->is_open;
    if (begins) {
        passed = passed_begin(window);
        passed.read_error = window->read_error ? blob_share(window->read_error) : error_blob("its event could not be read back");
    } else {
        passed = passed_end(window);
    }
    window->is_open = begins;
    queue->device->open += begins ? 1 : -1;
    if (!begins) window_done(chain, window);
    return add_waiting(queue, passed);
}

/* What the device has reached, in order. `*code` is the last result that was neither success nor "not yet". It touches
 * nothing but the queue and its device, as the driver may keep it for longer than the recording lasts. */
static bool read_queue(struct queue *queue, void *anchor, int64_t base_ns, uint64_t most, int *code, PyObject **words, bool *more) {
    struct device *device = queue->device;
    struct chain chain = {0};
    uintptr_t entry, after;
    uint64_t taken = 0;
    bool ok = true;
    while (ok && queue_peek(queue, 0, &entry)) {
        if (taken >= most || turn_enough(taken)) {
            *more = true;
            break;
        }
        if (entry & 1) {
            struct passed passed = {.end_args = (struct blob *)(entry & ~(uintptr_t)1)};
            ok = add_waiting(queue, passed);
            queue_drop(queue, 1), taken++;
            continue;
        }
        struct window *window = (struct window *)entry;
        int64_t ns = 0, end_ns = 0;
        int result = 0;
        if (!window->is_open) {
            result = read_event(device, anchor, window->start, base_ns, &ns, words);
            int end_result = CUDA_NOT_READY;
            if (!result && queue_peek(queue, 1, &after) && after == entry && !window->has_reason)
                end_result = read_event(device, anchor, window->end, base_ns, &end_ns, words);
            if (end_result == CODE_LEFT) result = CODE_LEFT;
            if (!result && !end_result) {
                struct passed passed = passed_begin(window); /* nothing was recorded inside: both edges are one */
                passed.timed = passed.is_leaf = true;
                passed.device_ns = ns;
                passed.end_device_ns = end_ns;
                passed.end_args = blob_share(window->end_args);
                ok = add_waiting(queue, passed);
                window_done(&chain, window);
                queue_drop(queue, 2), taken += 2;
                continue;
            }
            if (!result) {
                window->is_open = true;
                device->open++;
                queue_drop(queue, 1), taken++;
                if (window->abandoned) continue; /* it need not be drawn at all */
                struct passed passed = passed_begin(window);
                passed.timed = true;
                passed.device_ns = ns;
                ok = add_waiting(queue, passed);
                continue;
            }
        } else if (!window->has_reason) {
            result = read_event(device, anchor, window->end, base_ns, &ns, words);
            if (!result) {
                struct passed passed = passed_end(window);
                passed.timed = true;
                passed.device_ns = ns;
                ok = add_waiting(queue, passed);
                window->is_open = false;
                device->open--;
                window_done(&chain, window);
                queue_drop(queue, 1), taken++;
                continue;
            }
        }
        if (result == CUDA_NOT_READY) break;
        if (result == CODE_LEFT) {
            ok = false;
            break;
        }
        if (result) {
            *code = result;
            set_read_error(window, result, *words);
        }
        ok = add_untimed(queue, window, &chain);
        queue_drop(queue, 1), taken++;
    }
    chain_give(&chain, device);
    return ok;
}

static struct queue *as_queue(PyObject *object) {
    if (Py_TYPE(object) == queue_type) return (struct queue *)object;
    PyErr_SetString(PyExc_TypeError, "a StreamQueue is needed");
    return NULL;
}

/* mark(queues): host edges collected after this hold the begin of everything recorded before it. */
static PyObject *hot_mark(PyObject *module, PyObject *queues) {
    (void)module;
    for (Py_ssize_t i = 0; i < PyList_Size(queues); i++) {
        struct queue *queue = as_queue(PyList_GetItem(queues, i));
        if (!queue) return NULL;
        queue->marked = atomic_load_explicit(&queue->pushed, memory_order_acquire);
    }
    RETURN_NONE;
}

static uint64_t half_step_ns(int64_t elapsed) {
    return ((uint64_t)(elapsed < 0 ? -elapsed : elapsed) >> 24) + 1;
}

/* read(queues, anchor, base_ns, most) -> (code, more, read_error_ns). `code`: 0, an int, or a binding's own words. */
static PyObject *hot_read(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *queues, *anchor, *words = NULL;
    long long base_ns;
    unsigned long long most, worst = 0;
    if (!PyArg_ParseTuple(args, "O!OLK", &PyList_Type, &queues, &anchor, &base_ns, &most)) return NULL;
    int code = 0;
    bool ok = true, more = false;
    for (Py_ssize_t i = 0; i < PyList_Size(queues) && ok; i++) {
        struct queue *queue = as_queue(PyList_GetItem(queues, i));
        void *event = NULL;
        if (!queue || (queue->device->is_native && !(event = PyLong_AsVoidPtr(anchor)) && PyErr_Occurred())) return NULL;
        if (!event) event = anchor;
        size_t before = queue->waiting_count;
        struct collecting c = {.stays = !queue->device->is_native};
        gil_drop(&c);
        ok = read_queue(queue, event, base_ns, most, &code, &words, &more);
        gil_take(&c);
        for (int end = 0; end < 2 && queue->waiting_count > before; end++) {
            struct passed *passed = &queue->waiting[end ? queue->waiting_count - 1 : before];
            uint64_t error = passed->timed ? 2 * half_step_ns(passed->device_ns - base_ns) : 0;
            if (error > worst) worst = error;
        }
    }
    if (!ok) return Py_XDECREF(words), PyErr_Occurred() ? NULL : PyErr_NoMemory();
    PyObject *said = words && code == CODE_RAISED ? words : PyLong_FromLong(code);
    if (said != words) Py_XDECREF(words);
    return Py_BuildValue("(NNK)", said, PyBool_FromLong(more), worst);
}

/* read_lost(queues, why): what a lost device never answered for. */
static PyObject *hot_read_lost(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *queues;
    const char *why;
    if (!PyArg_ParseTuple(args, "O!s", &PyList_Type, &queues, &why)) return NULL;
    for (Py_ssize_t i = 0; i < PyList_Size(queues); i++) {
        struct queue *queue = as_queue(PyList_GetItem(queues, i));
        if (!queue) return NULL;
        struct chain chain = {0};
        uintptr_t entry;
        while (queue_peek(queue, 0, &entry)) {
            bool ok;
            if (entry & 1) {
                struct passed passed = {.end_args = (struct blob *)(entry & ~(uintptr_t)1)};
                ok = add_waiting(queue, passed);
            } else {
                struct window *window = (struct window *)entry;
                if (!window->read_error) window->read_error = error_blob(why);
                ok = add_untimed(queue, window, &chain);
            }
            queue_drop(queue, 1);
            if (!ok) return PyErr_NoMemory();
        }
        chain_give(&chain, queue->device);
    }
    RETURN_NONE;
}

/* Windows: placing. */

/* A stretch of the clock map, as compiled.py packs it; `from` is INT64_MIN before the first. */
struct stretch {
    int64_t from, device0, host0, device1;
    double slope, worst_error, error0, bend;
    int64_t extended;
};

static const struct stretch *stretch_at(const struct stretch *pieces, size_t count, int64_t ns) {
    size_t i = 0;
    while (i + 1 < count && ns > pieces[i].device1) i++;
    return &pieces[i];
}

static double stretch_error(const struct stretch *piece, int64_t ns) {
    double distance = (double)(ns > piece->device0 ? ns - piece->device0 : piece->device0 - ns);
    double error = piece->extended ? piece->error0 + distance * piece->bend : 0;
    return error > piece->worst_error ? error : piece->worst_error;
}

static int64_t stretch_host(const struct stretch *piece, int64_t ns) {
    return piece->host0 + (int64_t)((double)(ns - piece->device0) * piece->slope);
}

static struct blob *approximate, *violation; /* {"placement": ...} and {"clock": ...} */

static bool start_marks(void) {
    static const uint32_t placement[] = {NAME_PLACEMENT}, clock[] = {NAME_CLOCK};
    static const char first[] = "approximate", second[] = "placed before its own enqueue: the device's clock cannot be trusted here";
    struct text texts[] = {{first, sizeof first - 1}, {second, sizeof second - 1}};
    if (!approximate) approximate = blob_of_text_args(1, placement, &texts[0]);
    if (!violation) violation = blob_of_text_args(1, clock, &texts[1]);
    return approximate && violation;
}

static int64_t latest(int64_t x, int64_t y) {
    return x > y ? x : y;
}

/* A window that could not be read is an instant that carries the error. `end`: what was known at its end. */
static bool draw_unread(struct collecting *c, struct queue *queue, uint64_t flow, const struct edge *end) {
    uint64_t found;
    if (!map_take(&queue->unread, flow, 0, &found)) return true;
    struct passed *begun = (struct passed *)(uintptr_t)found;
    add_to(&counts.unreadable, 1);
    struct lane *lane = lanes_choose(c, &queue->lanes, false, 0, 0, queue->last_ns);
    bool ok = lane != NULL;
    if (ok) {
        queue->last_ns = lane->last_ns = latest(latest(queue->last_ns, begun->enqueued_ns), lane->last_ns);
        struct edge edge = {.ts = queue->last_ns, .kind = EDGE_INSTANT, .name = begun->label};
        for (int i = 0; end && i < end->view_count; i++) add_view(&edge, end->views[i]);
        add_view(&edge, blob_view(begun->args));
        add_view(&edge, blob_view(begun->read_error));
        ok = lane_emit(c, lane, &edge);
    }
    passed_clear(begun);
    free(begun);
    return ok;
}

/* The error that `failure()` left on an open window; the caller drops it. */
static struct blob *take_failure(struct queue *queue, uint64_t flow) {
    uint64_t found;
    return map_take(&queue->failed, flow, 0, &found) ? (struct blob *)(uintptr_t)found : NULL;
}

static bool fail_open_windows(struct queue *queue, struct blob *error) {
    for (size_t i = 0; i < queue->lanes.lane_of.capacity; i++) {
        struct map_slot *slot = &queue->lanes.lane_of.slots[i];
        if (!slot->used || map_find(&queue->failed, slot->a, 0)) continue;
        add_to(&counts.failed, 1);
        if (!map_put(&queue->failed, slot->a, 0, (uintptr_t)blob_share(error))) return false;
    }
    return true;
}

static bool place_untimed(struct collecting *c, struct queue *queue, struct passed *passed) {
    if (!passed->flow) return fail_open_windows(queue, passed->end_args);
    if (passed->is_begin) {
        struct passed *kept = malloc(sizeof *kept);
        if (!kept) return false;
        *kept = *passed;
        passed->args = passed->end_args = passed->name_text = passed->read_error = NULL;
        return map_put(&queue->unread, kept->flow, 0, (uintptr_t)kept);
    }
    struct edge edge = {.kind = EDGE_END};
    add_view(&edge, blob_view(passed->end_args));
    add_view(&edge, blob_view(passed->read_error));
    if (map_find(&queue->unread, passed->flow, 0)) return draw_unread(c, queue, passed->flow, &edge);
    add_to(&counts.failed, !passed->given_up);
    struct blob *failure = take_failure(queue, passed->flow);
    add_view(&edge, blob_view(failure));
    queue->last_ns = lanes_end(c, &queue->lanes, passed->flow, queue->last_ns, edge.views, edge.view_count);
    blob_drop(failure);
    return queue->last_ns != INT64_MIN;
}

static bool place_end(struct collecting *c, struct queue *queue, struct passed *passed, int64_t ts, bool extended) {
    struct edge edge = {.kind = EDGE_END};
    struct blob *failure = take_failure(queue, passed->flow);
    add_view(&edge, blob_view(passed->end_args));
    add_view(&edge, blob_view(passed->read_error));
    if (extended) add_view(&edge, blob_view(approximate));
    add_view(&edge, blob_view(failure));
    bool ok;
    if (map_find(&queue->unread, passed->flow, 0)) {
        queue->last_ns = latest(queue->last_ns, ts);
        ok = draw_unread(c, queue, passed->flow, &edge);
    } else {
        ts = lanes_end(c, &queue->lanes, passed->flow, ts, edge.views, edge.view_count);
        ok = ts != INT64_MIN;
        queue->last_ns = latest(queue->last_ns, ts);
    }
    blob_drop(failure);
    return ok;
}

struct map_view {
    const struct stretch *pieces;
    size_t count;
    int64_t reach_ns, read_error_ns, tick_ns;
};

/* How far off a time on this stretch may be, which the recording's worst includes from now on. */
static int64_t note_error(const struct stretch *piece, int64_t device_ns, const struct map_view *map) {
    int64_t error_ns = (int64_t)stretch_error(piece, device_ns) + map->read_error_ns + map->tick_ns;
    if ((uint64_t)error_ns > counts.worst_error_ns) atomic_store(&counts.worst_error_ns, (uint64_t)error_ns);
    return error_ns;
}

enum { WAITING_KEPT = 1 << 15 };

static bool place_queue(struct collecting *c, struct queue *queue, const struct map_view *map, uint64_t most, bool *more) {
    const struct stretch *piece = NULL;
    struct lane *leaf_lane = NULL; /* where the last leaf went */
    uint64_t leaf_thread = 0, leaf_scope = 0;
    int64_t from = 0, error_ns = 0;
    size_t placed = 0;
    bool ok = true;
    bool enough = false;
    for (; ok && placed < queue->waiting_count && !(enough = is_enough(placed, most)); placed++) {
        struct passed *passed = &queue->waiting[placed];
        if (!passed->timed) {
            ok = place_untimed(c, queue, passed);
            passed_clear(passed);
            leaf_lane = NULL;
            continue;
        }
        if ((passed->is_leaf ? passed->end_device_ns : passed->device_ns) > map->reach_ns) break;
        if (!piece || passed->device_ns < from || passed->device_ns > piece->device1) {
            piece = stretch_at(map->pieces, map->count, passed->device_ns);
            from = passed->device_ns < piece->device0 ? passed->device_ns : piece->device0;
            error_ns = note_error(piece, passed->device_ns, map);
        }
        int64_t ts = stretch_host(piece, passed->device_ns);
        if (!passed->is_begin) {
            leaf_lane = NULL;
            ok = place_end(c, queue, passed, ts, piece->extended);
            passed_clear(passed);
            continue;
        }
        struct edge edge = {.kind = passed->is_leaf ? EDGE_SLICE : EDGE_BEGIN, .name = passed->label, .flow = passed->flow};
        add_view(&edge, blob_view(passed->args));
        add_view(&edge, blob_view(passed->end_args));
        if (piece->extended) add_view(&edge, blob_view(approximate));
        if (ts + error_ns < passed->enqueued_ns) {
            add_to(&counts.clock_violations, 1);
            add_view(&edge, blob_view(violation));
        }
        add_to(&counts.windows, 1);
        add_to(&counts.slices, 1);
        /* Plain code nests in its thread's, tasks and generators in their own, explicit windows in nothing. */
        bool keyed = passed->scope != EXPLICIT_WINDOW;
        struct lane *lane = leaf_lane;
        bool same = lane && keyed && passed->key_thread == leaf_thread && passed->scope == leaf_scope && lane->last_ns <= ts;
        if (!same) {
            lane = lanes_choose(c, &queue->lanes, keyed, passed->key_thread, passed->scope, ts);
            if (!(ok = lane != NULL)) break;
            if (ts < lane->last_ns) {
                add_to(&counts.clamped, 1);
                ts = lane->last_ns;
            }
        }
        edge.ts = ts;
        if (passed->is_leaf) {
            leaf_lane = keyed ? lane : NULL;
            leaf_thread = passed->key_thread, leaf_scope = passed->scope;
            int64_t end_ns = stretch_host(piece, passed->end_device_ns);
            if (passed->end_device_ns > piece->device1) {
                const struct stretch *last = stretch_at(map->pieces, map->count, passed->end_device_ns);
                end_ns = stretch_host(last, passed->end_device_ns);
                note_error(last, passed->end_device_ns, map);
            }
            edge.end_ns = ts = latest(end_ns, ts);
            ok = lane_emit(c, lane, &edge);
        } else {
            leaf_lane = NULL;
            ok = lane_emit(c, lane, &edge) &&
                 lanes_begin(c, &queue->lanes, lane, passed->flow, keyed, passed->key_thread, passed->scope);
        }
        lane->last_ns = ts;
        queue->last_ns = latest(queue->last_ns, ts);
        passed_clear(passed);
    }
    *more |= enough;
    queue->waiting_count -= placed;
    if (queue->waiting_count) memmove(queue->waiting, queue->waiting + placed, queue->waiting_count * sizeof *queue->waiting);
    else if (queue->waiting_room > WAITING_KEPT) free(queue->waiting), queue->waiting = NULL, queue->waiting_room = 0; /* after a burst */
    return ok;
}

/* place(generation, queues, pieces, reach_ns, read_error_ns, tick_ns, most) -> more. `pieces`: bytes, as `struct stretch`. */
static PyObject *hot_place(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long generation;
    PyObject *queues, *packed;
    char *bytes;
    Py_ssize_t length;
    long long reach_ns, read_error_ns, tick_ns;
    unsigned long long most;
    if (!PyArg_ParseTuple(args, "KO!SLLLK", &generation, &PyList_Type, &queues, &packed, &reach_ns, &read_error_ns, &tick_ns, &most) ||
        PyBytes_AsStringAndSize(packed, &bytes, &length))
        return NULL;
    if ((size_t)length < sizeof(struct stretch) || (size_t)length % sizeof(struct stretch))
        return PyErr_SetString(PyExc_ValueError, "no pieces to place by"), NULL;
    size_t count = (size_t)length / sizeof(struct stretch);
    struct stretch *pieces = start_marks() ? malloc((size_t)length) : NULL; /* aligned */
    if (!pieces) return PyErr_NoMemory();
    if (!turn_take(generation)) return free(pieces), NULL;
    memcpy(pieces, bytes, (size_t)length);
    struct map_view map = {pieces, count, reach_ns, read_error_ns, tick_ns};
    struct collecting c = {.stays = python_sink};
    bool ok = true, more = false;
    Py_ssize_t queue_count = PyList_Size(queues);
    for (Py_ssize_t i = 0; i < queue_count && ok; i++) {
        struct queue *queue = as_queue(PyList_GetItem(queues, i));
        if (!(ok = queue != NULL)) break;
        gil_drop(&c);
        ok = place_queue(&c, queue, &map, most, &more);
        gil_take(&c);
        ok = ok && !PyErr_Occurred();
    }
    turn_end();
    free(pieces);
    if (!ok && !PyErr_Occurred()) PyErr_NoMemory();
    return ok ? PyBool_FromLong(more) : NULL;
}

static bool give_up(struct queue *queue, const char *why) {
    struct collecting c = {.stays = true};
    bool ok = true;
    for (size_t j = 0; j < queue->waiting_count && ok; j++) {
        struct passed *passed = &queue->waiting[j], end = {.flow = passed->flow};
        bool leaf = passed->is_leaf;
        if (passed->is_begin) {
            blob_drop(passed->read_error);
            passed->read_error = error_blob(why);
        }
        ok = place_untimed(&c, queue, passed) && (!leaf || place_untimed(&c, queue, &end));
        passed_clear(passed);
    }
    queue->waiting_count = 0;
    return ok;
}

/* give_up(generation, queues, why): nothing that waits can be placed: each window becomes an instant that says why. */
static PyObject *hot_give_up(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long generation;
    PyObject *queues;
    const char *why;
    if (!PyArg_ParseTuple(args, "KO!s", &generation, &PyList_Type, &queues, &why) || !turn_take(generation)) return NULL;
    bool ok = true;
    for (Py_ssize_t i = 0; i < PyList_Size(queues) && ok; i++) {
        struct queue *queue = as_queue(PyList_GetItem(queues, i));
        ok = queue && give_up(queue, why);
    }
    turn_end();
    if (!ok) return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    RETURN_NONE;
}

/* waiting_range(queue) -> (earliest, latest) device time of what has waited since nothing did; None where nothing timed
 * waits. */
static PyObject *hot_waiting_range(PyObject *module, PyObject *object) {
    (void)module;
    struct queue *queue = as_queue(object);
    if (!queue) return NULL;
    if (!queue->waiting_count || queue->earliest_ns > queue->latest_ns) return Py_BuildValue("(OO)", Py_None, Py_None);
    return Py_BuildValue("(LL)", (long long)queue->earliest_ns, (long long)queue->latest_ns);
}

/* clip_waiting(queue, most_ns): nothing that waits lies behind this device time any more. */
static PyObject *hot_clip_waiting(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *object;
    long long most_ns;
    if (!PyArg_ParseTuple(args, "OL", &object, &most_ns)) return NULL;
    struct queue *queue = as_queue(object);
    if (!queue) return NULL;
    if (queue->earliest_ns > most_ns) queue->earliest_ns = most_ns;
    if (queue->latest_ns > most_ns) queue->latest_ns = most_ns;
    for (size_t i = 0; i < queue->waiting_count; i++) {
        struct passed *passed = &queue->waiting[i];
        if (passed->device_ns > most_ns) passed->device_ns = most_ns;
        if (passed->end_device_ns > most_ns) passed->end_device_ns = most_ns;
    }
    RETURN_NONE;
}

/* first_event(queue): of the window at the queue's front, or None. */
static PyObject *hot_first_event(PyObject *module, PyObject *object) {
    (void)module;
    struct queue *queue = as_queue(object);
    uintptr_t entry;
    if (!queue) return NULL;
    if (!queue_peek(queue, 0, &entry) || entry & 1) RETURN_NONE;
    void *event = ((struct window *)entry)->start;
    return queue->device->is_native ? PyLong_FromVoidPtr(event) : Py_NewRef((PyObject *)event);
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

/* Life. */

/* begin(path, most_bytes, process_name, in_python, resolve, wake, open_thread, close_thread, current_stream) -> generation */
static PyObject *hot_begin(PyObject *module, PyObject *args) {
    (void)module;
    const char *path = NULL; /* as the file system has it, which may be no UTF-8 */
    struct text name;
    unsigned long long most_bytes;
    int in_python;
    PyObject *file, *said, *keep, *resolve, *wake, *opens, *closes, *stream;
    if (!PyArg_ParseTuple(args, "OKUpOOOOO", &file, &most_bytes, &said, &in_python, &resolve, &wake, &opens, &closes, &stream) ||
        (file != Py_None && !(path = PyBytes_AsString(file))) || !text_of(said, &name, &keep))
        return NULL;
    bool started = rings_start(path, most_bytes, name);
    Py_DECREF(keep);
    if (!started) return NULL;
    python_sink = in_python;
    memset(&counts, 0, sizeof counts);
    memset(&core.stats, 0, sizeof core.stats);
    replace(&core.resolve, Py_NewRef(resolve));
    replace(&core.wake, Py_NewRef(wake));
    replace(&open_thread, Py_NewRef(opens));
    replace(&close_thread, Py_NewRef(closes));
    replace(&core.current_stream, Py_NewRef(stream));
    core.wake_needed = true;
    core.on = core.armed = true;
    return PyLong_FromUnsignedLong(core.generation);
}

static PyObject *hot_switch_off(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    core.on = core.armed = false;
    RETURN_NONE;
}

static PyObject *hot_pause(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    core.on = false;
    RETURN_NONE;
}

static PyObject *hot_resume(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    core.on = core.armed;
    RETURN_NONE;
}

/* forget(): buffers, queues and counts go; spans still open are nobody's. In a forked child too: touches no driver, no
 * file and no lock of the parent's. */
static PyObject *hot_forget(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    if (!turns_over()) return NULL;
    core.next_number = 0;
    core.next_thread = 0;
    core.stream_used = false;
    touched = NULL;
    struct thread *thread = atomic_exchange(&core.threads, NULL);
    sample_count = 0;
    memset(&counts, 0, sizeof counts);
    out.length = 0;
    rings_forget();
    UNGUARD();
    for (struct thread *next; thread; thread = next) {
        next = atomic_load(&thread->next);
#ifdef Py_GIL_DISABLED
        thread_empty(thread); /* its own thread may be looking at the rest */
#else
        thread_forget(thread);
#endif
    }
    PyObject *queues = PyDict_New(), *all = PyList_New(0);
    if (!queues || !all) return Py_XDECREF(queues), Py_XDECREF(all), NULL;
    replace(&core.queues, queues);
    replace(&core.all_queues, all);
    RETURN_NONE;
}

/* remove_ring(generation): everything is in the shard. */
static PyObject *hot_remove_ring(PyObject *module, PyObject *generation) {
    (void)module;
    if (!turn_take_for(generation)) return NULL;
    rings_stop();
    turn_end();
    RETURN_NONE;
}

static PyObject *hot_queues(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return Py_NewRef(core.queues);
}

static PyObject *hot_all_queues(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return Py_NewRef(core.all_queues);
}

static PyObject *hot_wake_next(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    core.wake_needed = true;
    RETURN_NONE;
}

static PyObject *hot_stream_used(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    core.stream_used = true;
    RETURN_NONE;
}

static PyObject *hot_is_on(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyBool_FromLong(core.on);
}

static PyObject *hot_is_armed(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyBool_FromLong(core.armed);
}

/* state() -> dict: counts, what was given up, and how the rings are. */
static PyObject *hot_state(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsKsKsKsKsKsz}", "slices", counts.slices, "windows", counts.windows, "clamped",
                         counts.clamped, "out_of_order", counts.out_of_order, "failed", counts.failed, "unreadable", counts.unreadable,
                         "clock_violations", counts.clock_violations, "worst_error_ns", counts.worst_error_ns, "dropped_spans",
                         core.stats.dropped_spans, "dropped_windows", core.stats.dropped_windows, "lost", core.stats.failed,
                         "uncaptured", core.stats.uncaptured, "short_calls", core.stats.short_calls, "ring_bytes",
                         (unsigned long long)rings_bytes(), "ring_trouble", rings_trouble());
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

/* set_hurried(bool): calls of the collector are to be short while it is so. */
static PyObject *hot_set_hurried(PyObject *module, PyObject *hurry) {
    (void)module;
    atomic_store(&hurried, PyObject_IsTrue(hurry) == 1);
    RETURN_NONE;
}

/* set_clock(now_ns, step_ns): a clock for tests, which moves by a step at each read; 0 for the real one. */
static PyObject *hot_set_clock(PyObject *module, PyObject *args) {
    (void)module;
    long long now, step;
    if (!PyArg_ParseTuple(args, "LL", &now, &step)) return NULL;
    core.clock_ns = now;
    core.clock_step = step;
    RETURN_NONE;
}

PyMethodDef collect_functions[] = {
    {"begin", hot_begin, METH_VARARGS, "Start recording."},
    {"switch_off", hot_switch_off, METH_NOARGS, "Stop recording: spans open now still close."},
    {"pause", hot_pause, METH_NOARGS, "Record no new span until resume()."},
    {"resume", hot_resume, METH_NOARGS, "Go on after pause(); nothing where nothing records."},
    {"forget", hot_forget, METH_NOARGS, "A state of its own for this process or this recording."},
    {"remove_ring", hot_remove_ring, METH_O, "Everything is in the shard."},
    {"is_on", hot_is_on, METH_NOARGS, "Are spans recorded now?"},
    {"is_armed", hot_is_armed, METH_NOARGS, "Is there a recording, be it paused?"},
    {"queues", hot_queues, METH_NOARGS, "Stream queues by what programs pass for them; the tracer keeps it."},
    {"all_queues", hot_all_queues, METH_NOARGS, "Every queue of this recording."},
    {"wake_next", hot_wake_next, METH_NOARGS, "Have the next span wake the collector."},
    {"stream_used", hot_stream_used, METH_NOARGS, "Somebody made a stream current."},
    {"collect_host", hot_collect_host, METH_VARARGS, "Host edges to slices."},
    {"mark", hot_mark, METH_O, "Note how far each queue has come."},
    {"read", hot_read, METH_VARARGS, "Read what the device has reached."},
    {"read_lost", hot_read_lost, METH_VARARGS, "Take what a lost device never answered for."},
    {"place", hot_place, METH_VARARGS, "Draw what the clock map reaches."},
    {"give_up", hot_give_up, METH_VARARGS, "Draw what can never be placed."},
    {"waiting_range", hot_waiting_range, METH_O, "The first and the latest device time of what waits."},
    {"clip_waiting", hot_clip_waiting, METH_VARARGS, "Take back what lies behind a device time."},
    {"first_event", hot_first_event, METH_O, "The event of the window at a queue's front."},
    {"take_encoded", hot_take_encoded, METH_O, "What was encoded since the last time."},
    {"take_edges", hot_take_edges, METH_O, "What an exporter in Python is to encode."},
    {"epoch_pending", hot_epoch_pending, METH_VARARGS, "The shard is about to be so long."},
    {"epoch_commit", hot_epoch_commit, METH_O, "The shard is as long as was said."},
    {"state", hot_state, METH_NOARGS, "Counts, what was given up, and how the rings are."},
    {"threads", hot_threads, METH_NOARGS, "How many there are, and of how many not all was collected."},
    {"open_spans", hot_open_spans, METH_O, "Host slices begun and not ended."},
    {"set_hurried", hot_set_hurried, METH_O, "Calls of the collector are to be short."},
    {"set_clock", hot_set_clock, METH_VARARGS, "A clock for tests."},
    {0},
};
