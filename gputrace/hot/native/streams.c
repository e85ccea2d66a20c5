/* Devices, their events, and the queues of windows on streams: `Pool` and `StreamQueue` of gputrace/hot/pure.py.
 *
 * It calls no driver; spans.c and windows.c do. What a device can do is given as addresses of driver functions, or, for a
 * device in Python, as callables.
 */

#include "hot.h"

PyTypeObject *queue_type, *device_type;

struct slab {
    struct slab *next;
    size_t count;
    struct window windows[];
};

/* Windows. */

struct window *window_take(struct device *device) {
    struct window *window = device->free;
    if (!window) window = atomic_exchange_explicit(&device->returned, NULL, memory_order_acquire);
    if (!window) return NULL;
    struct window *next = device->free = window->next;
    device->taken++;
    /* Where many are in flight, those to come were used long ago. Their memory comes while this one's span goes on: the
     * events of the next one, and what is behind that. */
    if (next) {
        __builtin_prefetch((void *)next->start, 1);
        __builtin_prefetch((void *)next->end, 1);
        const char *behind = (const char *)next->next;
        for (size_t line = 0; behind && line < sizeof *window; line += 64) __builtin_prefetch(behind + line, 1);
    }
    return window;
}

void window_clear(struct window *window) {
    blob_drop(window->args);
    blob_drop(window->end_args);
    blob_drop(window->name_text);
    blob_drop(window->read_error);
    window->args = window->end_args = window->name_text = window->read_error = NULL;
}

/* From the program's side, of a window that was not recorded. */
void window_give(struct window *window, struct device *device) {
    window_clear(window);
    window->next = device->free;
    device->free = window;
    device->taken--;
}

void passed_clear(struct passed *passed) {
    blob_drop(passed->args);
    blob_drop(passed->end_args);
    blob_drop(passed->name_text);
    blob_drop(passed->read_error);
    passed->args = passed->end_args = passed->name_text = passed->read_error = NULL;
}

/* Queues: chunks of entries, filled with the GIL and emptied without. */

bool queue_push(struct queue *queue, uintptr_t entry) {
    struct chunk *chunk = queue->newest;
    uint32_t count = chunk ? atomic_load_explicit(&chunk->count, memory_order_relaxed) : QUEUE_CHUNK;
    if (count == QUEUE_CHUNK) {
        struct chunk *more = calloc(1, sizeof *more);
        if (!more) return false;
        if (chunk) atomic_store_explicit(&chunk->next, more, memory_order_release);
        else queue->oldest = more;
        queue->newest = chunk = more;
        count = 0;
    }
    chunk->entries[count] = entry;
    atomic_store_explicit(&chunk->count, count + 1, memory_order_release);
    atomic_fetch_add_explicit(&queue->pushed, 1, memory_order_release);
    return true;
}

/* The entry `ahead` of the front, 0 or 1, of those before the mark. */
bool queue_peek(struct queue *queue, uint64_t ahead, uintptr_t *entry) {
    if (queue->popped + ahead >= queue->marked) return false;
    struct chunk *chunk = queue->oldest;
    uint32_t at = chunk->taken + (uint32_t)ahead;
    if (at >= QUEUE_CHUNK) {
        chunk = atomic_load_explicit(&chunk->next, memory_order_acquire);
        at -= QUEUE_CHUNK;
    }
    *entry = chunk->entries[at];
    return true;
}

void queue_drop(struct queue *queue, uint64_t count) {
    add_to(&queue->popped, count);
    struct chunk *chunk = queue->oldest;
    chunk->taken += (uint32_t)count;
    /* The newest stays: it is being filled. */
    for (struct chunk *next; chunk->taken >= QUEUE_CHUNK; chunk = next) {
        if (!(next = atomic_load_explicit(&chunk->next, memory_order_acquire))) return;
        next->taken = chunk->taken - QUEUE_CHUNK;
        queue->oldest = next;
        free(chunk);
    }
}

uint64_t queue_length(struct queue *queue) {
    return atomic_load_explicit(&queue->pushed, memory_order_acquire) - queue->popped;
}

/* A device's callables are its tracer's, which has the device: a cycle, for the collector of garbage. */
static int queue_traverse(PyObject *object, visitproc visit, void *arg) {
    struct queue *queue = (struct queue *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)queue->device);
    Py_VISIT(queue->native);
    Py_VISIT(queue->lanes.open_lane);
    return 0;
}

static int queue_clear(PyObject *object) {
    Py_CLEAR(((struct queue *)object)->lanes.open_lane);
    return 0;
}

static void queue_dealloc(PyObject *object) {
    struct queue *queue = (struct queue *)object;
    PyObject_GC_UnTrack(object);
    for (struct chunk *chunk = queue->oldest, *next; chunk; chunk = next) {
        next = chunk->next;
        for (uint32_t i = chunk->taken; i < chunk->count; i++)
            if (chunk->entries[i] & 1) blob_drop((struct blob *)(chunk->entries[i] & ~(uintptr_t)1));
        free(chunk);
    }
    for (size_t i = 0; i < queue->waiting_count; i++) passed_clear(&queue->waiting[i]);
    free(queue->waiting);
    for (size_t i = 0; i < queue->failed.capacity; i++)
        if (queue->failed.slots[i].used) blob_drop((struct blob *)(uintptr_t)queue->failed.slots[i].value);
    for (size_t i = 0; i < queue->unread.capacity; i++)
        if (queue->unread.slots[i].used) {
            struct passed *passed = (struct passed *)(uintptr_t)queue->unread.slots[i].value;
            passed_clear(passed);
            free(passed);
        }
    map_clear(&queue->failed);
    map_clear(&queue->unread);
    lanes_free(&queue->lanes);
    Py_XDECREF(queue->native);
    Py_XDECREF(queue->handle);
    Py_XDECREF(queue->refused);
    Py_XDECREF((PyObject *)queue->device);
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyObject *queue_refuse(PyObject *object, PyObject *why) {
    struct queue *queue = (struct queue *)object;
    PyObject *before = queue->refused;
    queue->refused = Py_NewRef(why);
    Py_XDECREF(before);
    RETURN_NONE;
}

static PyObject *queue_forget(PyObject *object, PyObject *unused) {
    (void)unused;
    struct queue *queue = (struct queue *)object;
    PyObject *keys[] = {queue->handle, queue->native};
    queue->forgotten = true;
    for (int i = 0; i < 2; i++) {
        if (PyDict_GetItemWithError(core.queues, keys[i]) == object) PyDict_DelItem(core.queues, keys[i]);
        PyErr_Clear(); /* not hashable: it is no key */
    }
    RETURN_NONE;
}

static PyObject *queue_get_handle(PyObject *object, void *unused) {
    (void)unused;
    return Py_NewRef(((struct queue *)object)->handle);
}

static PyObject *queue_get_unread(PyObject *object, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(queue_length((struct queue *)object));
}

static PyObject *queue_get_waiting(PyObject *object, void *unused) {
    (void)unused;
    return PyLong_FromSize_t(((struct queue *)object)->waiting_count);
}

static PyObject *queue_get_open(PyObject *object, void *unused) {
    (void)unused;
    return PyLong_FromSize_t(((struct queue *)object)->lanes.lane_of.count);
}

static PyObject *queue_get_tracks(PyObject *object, void *unused) {
    (void)unused;
    struct lanes *set = &((struct queue *)object)->lanes;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < set->count; i++)
        if (PyList_Append(list, set->lanes[i]->track)) Py_CLEAR(list);
    return list;
}

static PyMethodDef queue_methods[] = {
    {"refuse", queue_refuse, METH_O, "Record nothing more here, and say why."},
    {"forget", queue_forget, METH_NOARGS, "Ask anew about this handle when it is passed next."},
    {0},
};
static PyGetSetDef queue_getset[] = {
    {"handle", queue_get_handle, NULL, "The int the program knows the stream by.", NULL},
    {"unread", queue_get_unread, NULL, "Edges recorded and not yet read.", NULL},
    {"waiting", queue_get_waiting, NULL, "Edges read and not yet placed.", NULL},
    {"open_spans", queue_get_open, NULL, "Windows drawn as begun and not ended.", NULL},
    {"tracks", queue_get_tracks, NULL, "The tracks of its lanes.", NULL},
    {0},
};
static PyType_Slot queue_slots[] = {{Py_tp_dealloc, queue_dealloc},
                                    {Py_tp_traverse, queue_traverse},
                                    {Py_tp_clear, queue_clear},
                                    {Py_tp_methods, queue_methods},
                                    {Py_tp_getset, queue_getset},
                                    {0, NULL}};
static PyType_Spec queue_spec = {"gputrace.hot._hot.StreamQueue", sizeof(struct queue), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, queue_slots};

/* Devices. */

/* Device(functions, record, capturing, elapsed, make): `functions` is a tuple of five addresses (record, capturing,
 * elapsed, context, context_id) or None, then the callables do. */
static PyObject *device_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)kwargs;
    PyObject *functions, *record, *capturing, *elapsed, *make;
    if (!PyArg_ParseTuple(args, "OOOOO", &functions, &record, &capturing, &elapsed, &make)) return NULL;
    unsigned long long address[5] = {0};
    if (functions != Py_None &&
        !PyArg_ParseTuple(functions, "KKKKK", &address[0], &address[1], &address[2], &address[3], &address[4]))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct device *device = (struct device *)alloc(type, 0);
    if (!device) return NULL;
    device->is_native = functions != Py_None;
    device->record = (int (*)(void *, void *))(uintptr_t)address[0];
    device->capturing = (int (*)(void *, int *))(uintptr_t)address[1];
    device->elapsed = (int (*)(float *, void *, void *))(uintptr_t)address[2];
    device->context = (int (*)(void **))(uintptr_t)address[3];
    device->context_id = (int (*)(void *, unsigned long long *))(uintptr_t)address[4];
    device->record_raw = Py_NewRef(record);
    device->capturing_raw = Py_NewRef(capturing);
    device->elapsed_raw = Py_NewRef(elapsed);
    device->make = Py_NewRef(make);
    return (PyObject *)device;
}

static int device_traverse(PyObject *object, visitproc visit, void *arg) {
    struct device *device = (struct device *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(device->record_raw);
    Py_VISIT(device->capturing_raw);
    Py_VISIT(device->elapsed_raw);
    Py_VISIT(device->make);
    return 0;
}

static int device_clear(PyObject *object) {
    struct device *device = (struct device *)object;
    Py_CLEAR(device->record_raw);
    Py_CLEAR(device->capturing_raw);
    Py_CLEAR(device->elapsed_raw);
    Py_CLEAR(device->make);
    return 0;
}

static void device_dealloc(PyObject *object) {
    struct device *device = (struct device *)object;
    PyObject_GC_UnTrack(object);
    for (struct slab *slab = device->slabs, *next; slab; slab = next) {
        next = slab->next;
        for (size_t i = 0; i < slab->count; i++) window_clear(&slab->windows[i]);
        free(slab);
    }
    device_clear(object);
    PyTypeObject *type = Py_TYPE(object);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(object);
    Py_DECREF(type);
}

static bool event_address(struct device *device, PyObject *item, void **event) {
    *event = device->is_native ? PyLong_AsVoidPtr(item) : (void *)item;
    return *event || !PyErr_Occurred();
}

/* add(events): windows, each of two events in turn: ints, or, for a device in Python, objects that its caller keeps. */
static PyObject *device_add(PyObject *object, PyObject *events) {
    struct device *device = (struct device *)object;
    Py_ssize_t count = PyList_Check(events) ? PyList_Size(events) / 2 : 0;
    struct slab *slab = calloc(1, sizeof *slab + (size_t)count * sizeof(struct window));
    if (!slab) return PyErr_NoMemory();
    slab->count = (size_t)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        struct window *window = &slab->windows[i];
        if (!event_address(device, PyList_GetItem(events, 2 * i), &window->start) ||
            !event_address(device, PyList_GetItem(events, 2 * i + 1), &window->end)) {
            free(slab);
            return NULL;
        }
    }
    GUARD();
    for (Py_ssize_t i = count; i-- > 0;) {
        slab->windows[i].next = device->free;
        device->free = &slab->windows[i];
    }
    slab->next = device->slabs;
    device->slabs = slab;
    device->made += (uint64_t)count;
    UNGUARD();
    RETURN_NONE;
}

/* queue(native, handle, address, open_lane) */
static PyObject *device_queue(PyObject *object, PyObject *args) {
    PyObject *native, *handle, *open_lane;
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "OOKO", &native, &handle, &address, &open_lane)) return NULL;
    struct queue *queue = PyObject_GC_New(struct queue, queue_type);
    if (!queue) return NULL;
    memset((char *)queue + sizeof(PyObject), 0, sizeof *queue - sizeof(PyObject));
    queue->device = (struct device *)Py_NewRef(object);
    queue->native = Py_NewRef(native);
    queue->handle = Py_NewRef(handle);
    queue->stream = (void *)(uintptr_t)address;
    queue->lanes.open_lane = Py_NewRef(open_lane);
    if (queue->device->is_native && !core.stream_type && !PyLong_CheckExact(native))
        core.stream_type = (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(native));
    PyObject_GC_Track((PyObject *)queue);
    if (PyList_Append(core.all_queues, (PyObject *)queue)) Py_CLEAR(queue);
    return (PyObject *)queue;
}

static PyObject *device_get_in_flight(PyObject *object, void *unused) {
    (void)unused;
    struct device *device = (struct device *)object;
    return PyLong_FromLongLong((long long)device->taken - (long long)atomic_load(&device->given));
}

static PyObject *device_get_made(PyObject *object, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(((struct device *)object)->made);
}

static PyObject *device_get_open(PyObject *object, void *unused) {
    (void)unused;
    return PyLong_FromLongLong(((struct device *)object)->open);
}

static PyMethodDef device_methods[] = {
    {"add", device_add, METH_O, "Make windows of events, two each."},
    {"queue", device_queue, METH_VARARGS, "A queue for one more stream."},
    {0},
};
static PyGetSetDef device_getset[] = {
    {"in_flight", device_get_in_flight, NULL, "Windows opened and not yet read whole.", NULL},
    {"made", device_get_made, NULL, "Windows that exist.", NULL},
    {"open", device_get_open, NULL, "Windows whose begin was read and whose end was not.", NULL},
    {0},
};
static PyType_Slot device_slots[] = {{Py_tp_new, device_new},
                                     {Py_tp_dealloc, device_dealloc},
                                     {Py_tp_traverse, device_traverse},
                                     {Py_tp_clear, device_clear},
                                     {Py_tp_methods, device_methods},
                                     {Py_tp_getset, device_getset},
                                     {0, NULL}};
static PyType_Spec device_spec = {"gputrace.hot._hot.Device", sizeof(struct device), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, device_slots};

bool streams_start(void) {
    queue_type = (PyTypeObject *)PyType_FromSpec(&queue_spec);
    device_type = (PyTypeObject *)PyType_FromSpec(&device_spec);
    return queue_type && device_type;
}
