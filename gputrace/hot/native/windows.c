/* The collector's side of a device: windows that it has reached to slices, without the GIL.
 *
 * `drain` and `StreamTimeline.place` of the Python twin, said in C; what a step means is explained there. Python calls one
 * function a step, and gives it what is policy: the anchor to measure from, the clock map's pieces, how much to do at once.
 */

#include "hot.h"

/* Reading. */

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
                            .key_thread = window->key_thread, .scope = window->scope, .args = blob_of_window(window->args),
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

/* Placing. */

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
    for (; ok && placed < queue->waiting_count && !(enough = collected_enough(placed, most)); placed++) {
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

PyMethodDef window_functions[] = {
    {"mark", hot_mark, METH_O, "Note how far each queue has come."},
    {"read", hot_read, METH_VARARGS, "Read what the device has reached."},
    {"read_lost", hot_read_lost, METH_VARARGS, "Take what a lost device never answered for."},
    {"place", hot_place, METH_VARARGS, "Draw what the clock map reaches."},
    {"give_up", hot_give_up, METH_VARARGS, "Draw what can never be placed."},
    {"waiting_range", hot_waiting_range, METH_O, "The first and the latest device time of what waits."},
    {"clip_waiting", hot_clip_waiting, METH_VARARGS, "Take back what lies behind a device time."},
    {"first_event", hot_first_event, METH_O, "The event of the window at a queue's front."},
    {0},
};
