/* The program's side: what a span costs is here. `Span`, `Window`, `span`, `window` and `instant` of
 * gputrace/hot/pure.py; what is rare is done by the same Python functions as there.
 *
 * A span's edge is in its thread's ring before it is in its stream's queue. Python runs no signal handler between these
 * lines, so nothing here can be left half done, but for the calls into Python, which come first.
 */

#include "hot.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef Py_GIL_DISABLED
PyMutex core_lock;
#endif

struct core core;
struct helpers helpers;
PyTypeObject *span_type, *window_type, *off_type, *dropped_type;

static PyObject *stream_name, *binding_errors;

PyObject *hand_over(PyObject *function) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (!PyErr_GivenExceptionMatches(type, PyExc_Exception)) return PyErr_Restore(type, value, trace), NULL;
    if (trace) PyException_SetTraceback(value, trace);
    PyObject *done = PyObject_CallFunctionObjArgs(function, value, NULL);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return done;
}

bool exhausted(void) {
    return PyErr_Occurred() && (PyErr_ExceptionMatches(PyExc_RecursionError) || PyErr_ExceptionMatches(PyExc_MemoryError));
}

bool let_through(void) {
    PyObject *done = PyErr_Occurred() ? hand_over(helpers.let_through) : NULL;
    Py_XDECREF(done);
    if (unlikely(exhausted())) PyErr_Clear(); /* there is no depth or no memory left for anything of ours */
    return !PyErr_Occurred();
}

/* Threads. */

static _Thread_local struct thread *mine;
static _Thread_local uint32_t mine_generation; /* of `mine`, which is forgotten where it is another recording's */
static pthread_key_t at_thread_end;

static void thread_free(struct thread *thread) {
    for (size_t i = 0; i < thread->calls_open; i++) {
        blob_drop(thread->calls[i].name_text);
        blob_drop(thread->calls[i].args);
    }
    free(thread->calls);
    free(thread);
}

static void thread_ended(void *thread) {
    mine = NULL; /* what its other libraries do now is nobody's */
    if (atomic_exchange(&((struct thread *)thread)->life, THREAD_ENDED) == THREAD_FORGOTTEN) thread_free(thread);
}

struct thread *thread_known(void) {
    return likely(mine && mine_generation == core.generation) ? mine : NULL;
}

/* Let go of what is the collector's. */
void thread_empty(struct thread *thread) {
    pieces_free(atomic_exchange(&thread->oldest, NULL));
    lane_free(thread->home);
    thread->home = NULL;
    lanes_free(&thread->lanes);
}

/* Let go of all it has. Its thread may come to its end meanwhile, and asks for no GIL then. */
void thread_forget(struct thread *thread) {
    thread_empty(thread);
    for (int i = 0; i < AMBIENT_HANDLES; i++) Py_XDECREF(thread->ambient[i].queue);
    Py_XDECREF(thread->last_stream);
    Py_XDECREF((PyObject *)thread->last_queue);
    Py_XDECREF(thread->name);
    if (atomic_exchange(&thread->life, THREAD_FORGOTTEN) == THREAD_ENDED) thread_free(thread);
}

/* Rings. */

/* A record's place with `payload` bytes behind it; NULL where memory's bound is reached. An end may go beyond it. */
static struct record *place(struct thread *thread, size_t payload, uint32_t *slots, bool beyond) {
    size_t extra = (payload + SLOT - 1) / SLOT, bytes = (1 + extra) * SLOT;
    if (unlikely(extra > MOST_SLOTS)) return NULL;
    *slots = (uint32_t)extra;
    if (unlikely((size_t)(thread->end - thread->at) < bytes) && (size_t)(thread->limit - thread->at) >= bytes) {
        /* In a piece that an end took beyond the bound: it is for ends alone, as long as that is so. */
        bool over = rings_over();
        if (over && !beyond) {
            core.wake_needed = core.filling = true;
            return NULL;
        }
        thread->end = over ? thread->at + bytes : thread->limit;
    } else if (unlikely((size_t)(thread->end - thread->at) < bytes)) {
        uint32_t units = (uint32_t)((bytes + PIECE_HEAD + PIECE_BYTES - 1) / PIECE_BYTES);
        struct piece *piece = piece_take(PIECE_EDGES, units, thread->number, ++thread->pieces, beyond);
        if (rings_filling()) core.wake_needed = core.filling = true;
        if (!piece) return NULL;
        struct piece *before = thread->newest;
        if (!before) {
            atomic_store_explicit(&thread->read, piece->base + PIECE_HEAD, memory_order_relaxed);
            atomic_store_explicit(&thread->oldest, piece, memory_order_release);
        } else {
            atomic_store_explicit(&before->next, piece, memory_order_release);
            if (thread->at < thread->limit)
                atomic_store_explicit(&((struct record *)thread->at)->tag, RECORD_FILL, memory_order_release);
        }
        thread->newest = piece;
        thread->at = piece->base + PIECE_HEAD;
        thread->limit = piece->base + (size_t)piece->units * PIECE_BYTES;
        thread->end = rings_over() ? thread->at + bytes : thread->limit;
    }
    return (struct record *)thread->at;
}

/* Into the ring with its name, in case nobody comes to collect what it does, and with a place for its first record: what
 * that takes is no part of its first span. */
static void introduce(struct thread *thread) {
    PyObject *named = Py_NewRef(thread->name), *keep = NULL;
    struct text name;
    uint32_t slots;
    bool ok = text_of(named, &name, &keep);
    GUARD();
    if (ok && thread->generation == core.generation) {
        if (thread->entry) thread_entry_name(thread->entry, name);
        else thread->entry = thread_entry_take(thread->number, thread->tid, name);
        place(thread, 0, &slots, false);
        if (rings_trouble()) core.wake_needed = true; /* a kill would lose it, which the tracer has to say in time */
    }
    UNGUARD();
    if (!ok) PyErr_Clear();
    Py_XDECREF(keep);
    Py_DECREF(named);
}

/* Takes the name's reference. */
static struct thread *add_thread(PyObject *name) {
    struct thread *thread = calloc(1, sizeof *thread);
    if (!thread) return Py_DECREF(name), PyErr_NoMemory(), NULL;
    thread->name = name;
    thread->tid = (uint32_t)syscall(SYS_gettid);
    thread->generation = mine_generation = core.generation;
    GUARD();
    thread->number = ++core.next_thread;
    atomic_store(&thread->next, atomic_load(&core.threads));
    atomic_store_explicit(&core.threads, thread, memory_order_release);
    UNGUARD();
    if (mine && atomic_load(&mine->life) == THREAD_FORGOTTEN) thread_free(mine);
    pthread_setspecific(at_thread_end, thread);
    mine = thread;
    introduce(thread);
    return thread;
}

/* What gives the name is the program's, and may itself record: that finds a thread without a name, which it is given then. */
static struct thread *new_thread(void) {
    static _Thread_local bool naming;
    bool within = naming;
    naming = true;
    PyObject *name = within ? PyUnicode_FromString("") : PyObject_CallNoArgs(helpers.thread_name);
    naming = within;
    if (!name) return NULL;
    struct thread *thread = thread_known();
    if (likely(!thread)) return add_thread(name);
    GUARD();
    PyObject *before = thread->name;
    thread->name = name;
    UNGUARD();
    Py_DECREF(before);
    introduce(thread);
    return thread;
}

struct thread *thread_here(void) {
    struct thread *thread = thread_known();
    return likely(thread != NULL) ? thread : new_thread();
}

/* A name must be in the ring before what is called so. */
bool define_name(uint32_t id) {
    GUARD();
    bool defined = names[id]->generation == core.generation || ring_define_name(id);
    UNGUARD();
    return defined;
}

/* Who has it does not wait for the GIL. False where it is not to be had: the thread that has it stayed behind in the process
 * that this one was forked from. */
static bool ring_take(struct thread *thread) {
    enum { TURNS = 1000, PAUSES = 1000, PAUSE_NS = 1000000 };
    for (int i = 0; unlikely(atomic_exchange(&thread->taken, true)); i++) {
        if (i < TURNS) sched_yield();
        else if (i < TURNS + PAUSES) nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        else return false;
    }
    return true;
}

static void ring_give(struct thread *thread) {
    atomic_store_explicit(&thread->taken, false, memory_order_release);
}

bool put_freely(struct thread *thread, unsigned kind, uint32_t name, uint64_t number, uint32_t generation) {
    uint32_t slots;
    struct record *record = NULL;
    if (unlikely(!ring_take(thread))) return false;
    if (likely(generation == core.generation) && likely((record = place(thread, 0, &slots, kind == RECORD_END)) != NULL)) {
        record->ns = now_ns();
        record->number = number;
        record->scope = 0;
        thread->at += SLOT;
        atomic_store_explicit(&record->tag, kind | (uint64_t)name << 32, memory_order_release);
    }
    ring_give(thread);
    return record != NULL;
}

void rings_quiet(void) {
    enum { PAUSE_NS = 10000 };
    for (struct thread *thread = atomic_load(&core.threads); thread; thread = atomic_load(&thread->next))
        while (atomic_load(&thread->taken)) nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

static bool put_alone(struct thread *thread, unsigned kind, unsigned flags, struct label label, int64_t ns, uint64_t number,
                      uint64_t scope, const struct blob *args, bool beyond) {
    size_t text = !label.id && kind != RECORD_END ? 4 + (size_t)label.text.length : 0;
    size_t payload = text + (args ? args->length : 0);
    uint32_t slots = 0;
    if (label.id && unlikely(names[label.id]->generation != core.generation) && !define_name(label.id)) return false;
    GUARD();
#ifdef Py_GIL_DISABLED
    if (unlikely(thread->generation != core.generation)) { /* its ring may be gone since its caller asked */
        UNGUARD();
        return false;
    }
#endif
    bool shared = thread->is_shared;
    struct record *record = likely(!shared) || ring_take(thread) ? place(thread, payload, &slots, beyond) : (shared = false, NULL);
    if (likely(record != NULL)) {
        record->ns = ns;
        record->number = number;
        record->scope = scope;
        uint8_t *at = (uint8_t *)(record + 1);
        if (text) {
            memcpy(at, &label.text.length, 4);
            memcpy(at + 4, label.text.bytes, label.text.length);
            at += text;
        }
        if (args) memcpy(at, args->bytes, args->length);
        thread->at += (size_t)(1 + slots) * SLOT;
        uint64_t tag = kind | flags << 8 | (uint64_t)slots << 16 | (uint64_t)label.id << 32;
        atomic_store_explicit(&record->tag, tag, memory_order_release);
    }
    if (unlikely(shared)) ring_give(thread);
    UNGUARD();
    return record != NULL;
}

/* Put a record with a label and arguments. False where there is no room. What happens in a call is behind its begin, so
 * those that wait go before it; but for a counter's value, which is in a row of its own. */
static bool put_record(struct thread *thread, unsigned kind, unsigned flags, struct label label, int64_t ns, uint64_t number,
                       uint64_t scope, const struct blob *args, bool beyond) {
    if (unlikely(thread->calls_waiting) && kind != RECORD_SAMPLE) calls_settle(thread, INT64_MAX);
    return put_alone(thread, kind, flags, label, ns, number, scope, args, beyond);
}

/* The keys in a blob must be in the ring's names, too. */
static void define_keys(const struct blob *args) {
    struct args view = {args->bytes, args->bytes + args->length};
    struct arg arg;
    while (arg_next(&view, &arg))
        if (arg.key.id && names[arg.key.id]->generation != core.generation) define_name(arg.key.id);
}

/* Told in the ring, too, as nothing else outlives a kill. */
void count_dropped_span(void) {
    ring_header()->dropped_spans = ++core.stats.dropped_spans;
}

/* Slices without an object: for calls.c. */

uint64_t slice_begin(struct thread *thread, struct label label, int64_t ns, const struct blob *args) {
    if (unlikely(args != NULL)) define_keys(args);
    GUARD();
    uint64_t number = ++core.next_number;
    UNGUARD();
    bool there = put_alone(thread, RECORD_BEGIN, 0, label, ns, number, 0, args, false);
    if (unlikely(!there)) return count_dropped_span(), 0;
    GUARD();
    thread->open++;
    UNGUARD();
    return number;
}

void slice_end(struct thread *thread, uint64_t number, int64_t ns, const struct blob *args) {
    if (unlikely(args != NULL)) define_keys(args);
    put_record(thread, RECORD_END, 0, (struct label){0}, ns, number, 0, args, true);
    GUARD();
    thread->open--;
    UNGUARD();
}

void calls_settle(struct thread *thread, int64_t until_ns) {
#ifdef Py_GIL_DISABLED
    if (thread != mine) return; /* nothing keeps its own thread from going on meanwhile */
#endif
    size_t at = thread->calls_open;
    for (size_t left = thread->calls_waiting; left && at; left -= thread->calls[--at].waits) continue;
    for (; at < thread->calls_open; at++) {
        struct open_call *call = &thread->calls[at];
        if (!call->waits) continue;
        if (call->begin_ns > until_ns) return;
        call->waits = false;
        call->number = slice_begin(thread, call->label, call->begin_ns, call->args);
        thread->calls_waiting--; /* last: an operator of that thread's is put once none waits */
        blob_drop(call->name_text);
        blob_drop(call->args);
        call->name_text = call->args = NULL;
    }
}

/* Scope: see gputrace/hot/scope.py. */

#ifndef Py_GIL_DISABLED
enum { CODES = 512 };
static struct {
    PyObject *code;
    bool special;
} codes[CODES];
#endif
static PyObject *enters; /* the names of functions that enter a span for whoever wrote the `with` */

static bool code_is_special(PyObject *code) {
#ifndef Py_GIL_DISABLED
    size_t slot = ((uintptr_t)code >> 5) & (CODES - 1);
    if (likely(codes[slot].code == code)) return codes[slot].special;
#endif
    PyObject *flags = PyObject_GetAttrString(code, "co_flags"), *name = PyObject_GetAttrString(code, "co_name");
    bool special = flags && name && (PyLong_AsLong(flags) & (0x20 | 0x80 | 0x200) || PySequence_Contains(enters, name) > 0);
    Py_XDECREF(flags);
    Py_XDECREF(name);
    if (unlikely(PyErr_Occurred())) return PyErr_Clear(), false; /* no memory: ask again the next time */
#ifndef Py_GIL_DISABLED
    codes[slot].special = special; /* first: what the one before takes with it may run code, which comes here */
    replace(&codes[slot].code, Py_NewRef(code)); /* held, so that its address means it */
#endif
    return special;
}

/* Does some scheduler that can suspend code run here? -1 with an exception set. */
static int scheduled(void) {
    /* Asked each time: how many modules there are says nothing, as one may go when another comes. */
    if (PyDict_Contains(helpers.modules, helpers.greenlet) > 0) return 1;
    if (PyDict_Contains(helpers.modules, helpers.asyncio) <= 0) return 0;
    PyObject *loop = PyObject_CallNoArgs(PyList_GetItem(helpers.running_loop, 0));
    Py_XDECREF(loop);
    return loop ? loop != Py_None : -1;
}

/* Whose suspension can leave a span open that is opened here. False with an exception set, the program's own. */
static bool scope_here(uint64_t *scope) {
    *scope = 0;
    PyFrameObject *frame = PyEval_GetFrame();
    PyObject *found = NULL;
    if (!frame) return true;
    PyObject *code = (PyObject *)PyFrame_GetCode(frame);
    bool special = code_is_special(code);
    Py_DECREF(code);
    int runs = special ? 1 : scheduled();
    if (likely(!runs)) return true;
    if (special) found = PyObject_CallFunctionObjArgs(helpers.find_scope, (PyObject *)frame, NULL);
    else if (runs > 0) found = PyObject_CallNoArgs(helpers.task_scope);
    if (!found) return let_through();
    *scope = PyLong_AsUnsignedLongLongMask(found);
    Py_DECREF(found);
    return true;
}

/* Making spans. */

/* Memory of spans that are gone: to get it from Python and give it back takes a tenth of a host slice's time. */
#if !defined Py_GIL_DISABLED && !defined __SANITIZE_ADDRESS__ /* which is to see what is used after its end */
enum { SPARES = 64 };
static void *spares[SPARES];
static size_t spare_count;
static void *memory_take(void) {
    return likely(spare_count) ? spares[--spare_count] : PyObject_Malloc(sizeof(Span));
}
static void memory_give(void *memory) {
    if (likely(spare_count < SPARES)) spares[spare_count++] = memory;
    else PyObject_Free(memory);
}
#else
static void *memory_take(void) {
    return PyObject_Malloc(sizeof(Span));
}
static void memory_give(void *memory) {
    PyObject_Free(memory);
}
#endif

static Span *blank(PyTypeObject *type) {
    Span *span;
    if (unlikely(type == off_type)) {
        if (!(span = PyObject_GC_New(Span, type))) return NULL;
    } else {
        void *memory = memory_take();
        if (!memory) return (Span *)PyErr_NoMemory();
        span = (Span *)PyObject_Init(memory, type);
    }
    memset((char *)span + sizeof(PyObject), 0, sizeof *span - sizeof(PyObject));
    span->generation = core.generation;
    return span;
}

static Span *new_span(PyTypeObject *type, PyObject *name, PyObject *const *values, PyObject *kwnames) {
    Span *span = blank(type);
    if (!span) return NULL;
    if (likely(PyUnicode_CheckExact(name))) span->name = Py_NewRef(name);
    else if (!(span->name = PyObject_CallFunctionObjArgs(helpers.as_name, name, NULL))) goto failed;
    int64_t id = name_id(span->name);
    if (id < 0) goto failed;
    span->label.id = (uint32_t)id;
    if (unlikely(!id) && PyUnicode_GetLength(span->name) > LONGEST_NAME) {
        PyObject *cut = PyObject_CallFunctionObjArgs(helpers.as_name, span->name, NULL);
        if (!cut) goto failed;
        replace(&span->name, cut);
    }
    if (kwnames) {
        bool ok;
        span->args = blob_of_args(values, kwnames, &ok);
        if (!ok) goto failed;
    }
    return span;
failed:
    Py_DECREF((PyObject *)span);
    return NULL;
}

static struct queue *resolve(PyObject *stream) {
    PyObject *function = Py_NewRef(core.resolve), *queue = PyObject_CallFunctionObjArgs(function, stream, NULL);
    bool same = function == core.resolve; /* else another recording began meanwhile */
    Py_DECREF(function);
    if (!queue) return NULL;
    struct queue *found = same && Py_TYPE(queue) == queue_type ? (struct queue *)queue : NULL;
    Py_DECREF(queue); /* the tracer keeps it */
    return found;
}

/* The id of the context that is current here; 0 if there is none, or the driver is not to be asked. */
static unsigned long long current_context(struct device *device) {
    unsigned long long id = 0;
    void *context = NULL;
    if (!device->is_native) return 0;
    PyThreadState *state = PyEval_SaveThread();
    if (device->context(&context) || !context || device->context_id(context, &id)) id = 0;
    PyEval_RestoreThread(state);
    return id;
}

/* The same of a queue's device. Another thread may end the recording meanwhile, which lets go of both. */
static unsigned long long held_context(struct queue *queue) {
    Py_INCREF((PyObject *)queue);
    unsigned long long id = current_context(queue->device);
    Py_DECREF((PyObject *)queue);
    return id;
}

/* A default stream's: another on each context, so the context is asked for each time. An id is never used again. */
static struct queue *ambient_queue(PyObject *stream, size_t handle) {
    struct thread *thread = thread_here();
    if (!thread) return NULL;
    struct queue *queue = (struct queue *)thread->ambient[handle].queue;
    uint32_t generation = core.generation;
    unsigned long long id = queue ? held_context(queue) : 0;
    if (generation != core.generation) return NULL; /* the recording ended meanwhile, and with it the thread's memory */
    if (id && thread->ambient[handle].context_id == id) return queue;
    queue = resolve(stream);
    id = queue ? held_context(queue) : 0;
    if (generation != core.generation) return NULL;
    if (id) {
        replace(&thread->ambient[handle].queue, Py_NewRef((PyObject *)queue));
        thread->ambient[handle].context_id = id;
    }
    return queue;
}

/* The binding's object that is passed again and again costs no call of its own: it stands for one handle all its life. */
static struct queue *queue_of_last(PyObject *stream) {
    struct thread *thread = thread_known();
    bool same = thread && thread->last_stream == stream && !thread->last_queue->forgotten;
    return same ? thread->last_queue : NULL;
}

static void keep_last(PyObject *stream, struct queue *queue) {
    struct thread *thread = thread_known();
    if (!thread) return;
    replace((PyObject **)&thread->last_queue, Py_NewRef((PyObject *)queue));
    replace(&thread->last_stream, Py_NewRef(stream));
}

/* Of the binding's type, by its handle: its own hash and comparisons take longer. */
static struct queue *queue_of_native(PyObject *stream) {
    struct queue *queue = queue_of_last(stream);
    if (likely(queue != NULL)) return queue;
    PyObject *number = PyNumber_Long(stream);
    if (!number) return NULL;
    queue = queue_of(number);
    if (queue && PyLong_AsSize_t(number) >= AMBIENT_HANDLES) keep_last(stream, queue);
    Py_DECREF(number);
    return queue;
}

/* The queue of whatever a program passes for a stream: borrowed; NULL for none, or with an exception set. */
struct queue *queue_of(PyObject *stream) {
    if (Py_TYPE(stream) == core.stream_type) return queue_of_native(stream);
    PyObject *queues = Py_NewRef(core.queues), *queue = PyDict_GetItemWithError(queues, stream);
    if (unlikely(queues != core.queues)) queue = NULL; /* what hashed or compared it began another recording */
    Py_DECREF(queues);
    if (likely(queue != NULL)) return (struct queue *)queue;
    if (!let_through()) return NULL; /* else it is what the program's object raises when it is hashed */
    size_t handle = PyLong_CheckExact(stream) ? PyLong_AsSize_t(stream) : SIZE_MAX;
    PyErr_Clear(); /* no handle is so large, or negative */
    return handle < AMBIENT_HANDLES ? ambient_queue(stream, handle) : resolve(stream);
}

/* What `span(name, stream=None, **args)` was called with. In `values` the stream's place is NULL. */
struct call {
    PyObject *name, *stream;
    PyObject *kwnames; /* NULL where there is nothing but a stream */
    PyObject **values, *few[16];
};

static bool parse(struct call *call, const char *function, PyObject *const *args, Py_ssize_t count, PyObject *kwnames) {
    Py_ssize_t named = kwnames ? PyTuple_Size(kwnames) : 0;
    if (count < 1 || count > 2) {
        PyErr_Format(PyExc_TypeError, "%s() takes a name and at most a stream by position (%zd given)", function, count);
        return false;
    }
    call->name = args[0];
    call->stream = count > 1 ? args[1] : Py_None;
    call->kwnames = NULL;
    call->values = call->few;
    if (!named) return true;
    if (named > 16 && !(call->values = malloc((size_t)named * sizeof *call->values))) return PyErr_NoMemory(), false;
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *key = PyTuple_GetItem(kwnames, i);
        call->values[i] = args[count + i];
        if (key != stream_name && PyUnicode_Compare(key, stream_name)) {
            call->kwnames = kwnames;
        } else if (count > 1) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument 'stream'", function);
            if (call->values != call->few) free(call->values);
            return false;
        } else {
            call->stream = call->values[i];
            call->values[i] = NULL;
        }
    }
    return true;
}

static void parsed(struct call *call) {
    if (call->values != call->few) free(call->values);
}

static PyObject *off_by_name; /* with tracing off: one object a name */

static PyObject *off_span(const struct call *call) {
    bool bare = call->stream == Py_None && !call->kwnames && PyUnicode_CheckExact(call->name);
    if (likely(bare)) {
        PyObject *known = PyDict_GetItemWithError(off_by_name, call->name);
        if (known) return Py_NewRef(known);
    }
    Span *off = blank(off_type);
    if (!off) return NULL;
    off->name = Py_NewRef(call->name);
    off->stream = Py_NewRef(call->stream);
    if (bare && PyDict_Size(off_by_name) < 4096 && PyDict_SetItem(off_by_name, call->name, (PyObject *)off)) PyErr_Clear();
    if (call->kwnames && (off->kwargs = PyDict_New())) /* as they are: made plain if it is entered with tracing on */
        for (Py_ssize_t i = 0; i < PyTuple_Size(call->kwnames); i++)
            if (call->values[i] && PyDict_SetItem(off->kwargs, PyTuple_GetItem(call->kwnames, i), call->values[i])) PyErr_Clear();
    if (!bare) PyObject_GC_Track((PyObject *)off);
    return (PyObject *)off;
}

static bool wake(void) {
    PyObject *filling = core.filling ? Py_True : Py_False;
    core.wake_needed = core.filling = false;
    PyObject *done = PyObject_CallFunctionObjArgs(core.wake, filling, NULL);
    Py_XDECREF(done);
    if (unlikely(!done)) core.wake_needed = true; /* it did not come: the next one tries again */
    return done || let_through();
}

bool spans_awake(void) {
    return likely(!core.wake_needed) || wake();
}

/* The stream's queue for a call, borrowed: the one passed, else the one that `use_stream` made current. */
static bool find_queue(PyObject *stream, struct queue **queue) {
    *queue = NULL;
    if (stream != Py_None) {
        *queue = queue_of(stream);
        return *queue || let_through();
    }
    if (likely(!core.stream_used)) return true;
    PyObject *current = PyObject_CallNoArgs(core.current_stream);
    if (!current) return let_through();
    if (Py_TYPE(current) == queue_type) *queue = (struct queue *)current; /* the variable keeps it */
    Py_DECREF(current);
    return true;
}

static Span *make_span(PyTypeObject *type, const struct call *call) {
    struct queue *queue;
    if (!spans_awake()) return NULL;
    if (!find_queue(call->stream, &queue)) return NULL;
    Py_XINCREF((PyObject *)queue);
    Span *made = new_span(type, call->name, call->values, call->kwnames);
    if (likely(made != NULL)) made->queue = queue;
    else Py_XDECREF((PyObject *)queue);
    if (likely(made != NULL) || !let_through()) return made;
    count_dropped_span();
    return blank(dropped_type);
}

/* What stands for a span that there was no depth or no memory to make. */
static PyObject *nothing;

static PyObject *made_or_nothing(PyObject *made) {
    if (likely(made != NULL) || !exhausted()) return made;
    PyErr_Clear();
    return Py_NewRef(nothing);
}

static PyObject *decorated_or_as_it_is(PyObject *decorated, PyObject *function) {
    if (likely(decorated != NULL) || !exhausted()) return decorated;
    PyErr_Clear();
    return Py_NewRef(function);
}

static PyObject *hot_span(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *kwnames) {
    (void)module;
    struct call call;
    if (!parse(&call, "span", args, count, kwnames)) return NULL;
    if (unlikely(!PyUnicode_CheckExact(call.name)) && call.stream == Py_None && !call.kwnames &&
        PySequence_Contains(helpers.functions, (PyObject *)Py_TYPE(call.name)) > 0) { /* @gputrace.span */
        parsed(&call);
        return decorated_or_as_it_is(PyObject_CallFunctionObjArgs(helpers.decorate_bare, call.name, NULL), call.name);
    }
    PyErr_Clear();
    PyObject *made = likely(core.on) ? (PyObject *)make_span(span_type, &call) : off_span(&call);
    parsed(&call);
    return made_or_nothing(made);
}

/* Opening and closing. */

static void give_up_window(Span *span) {
    if (span->window) window_give(span->window, span->queue->device);
    span->window = NULL;
}

static void set_reason(Span *span, const char *text) {
    PyObject *reason = PyUnicode_FromString(text);
    if (!reason) PyErr_Clear();
    replace(&span->reason, reason);
}

/* What a stream answered: to whether it captures, and to an event if it does not. */
struct answer {
    int capture_code, capturing, code;
};

static bool is_capturing(const struct answer *answer) {
    return answer->capture_code || answer->capturing;
}

static bool call_raw(PyObject *function, PyObject *first, PyObject *second, int *code, int *value) {
    PyObject *result = PyObject_CallFunctionObjArgs(function, first, second, NULL);
    if (!result) {
        *code = CODE_RAISED;
        return (exhausted() || PyErr_ExceptionMatches(binding_errors)) && let_through();
    }
    PyObject *item = PySequence_GetItem(result, 0);
    *code = item ? (int)PyLong_AsLong(item) : CODE_RAISED;
    Py_XDECREF(item);
    if (value && !*code && (item = PySequence_GetItem(result, 1))) {
        *value = PyObject_IsTrue(item) == 1;
        Py_DECREF(item);
    }
    Py_DECREF(result);
    PyErr_Clear();
    return true;
}

/* Ask and record. False with an exception set: a signal's handler raised inside a device in Python. */
static bool record_event(struct queue *queue, void *event, struct answer *answer) {
    struct device *device = queue->device;
    *answer = (struct answer){0, 0, 0};
    if (likely(device->is_native)) {
        void *stream = queue->stream;
        PyThreadState *state = PyEval_SaveThread();
        answer->capture_code = device->capturing(stream, &answer->capturing);
        if (likely(!is_capturing(answer))) answer->code = device->record(event, stream);
        PyEval_RestoreThread(state);
        return true;
    }
    if (!call_raw(device->capturing_raw, queue->native, NULL, &answer->capture_code, &answer->capturing)) return false;
    if (answer->capture_code == CODE_RAISED) return answer->capture_code = 0, answer->code = CODE_RAISED, true;
    if (is_capturing(answer)) return true;
    return call_raw(device->record_raw, (PyObject *)event, queue->native, &answer->code, NULL);
}

/* Why a stream takes no event now; counted. */
static void set_why_not(Span *span, const struct answer *answer, const char *in_capture, const char *refused) {
    if (!answer->capture_code || answer->capture_code == CUDA_CAPTURE_IMPLICIT) {
        core.stats.uncaptured++;
        set_reason(span, in_capture);
        return;
    }
    core.stats.failed++;
    PyObject *reason = PyUnicode_FromFormat("%s (error %d)", refused, answer->capture_code);
    if (!reason) PyErr_Clear();
    replace(&span->reason, reason);
}

/* A window of the stream's device; NULL at the bound, or where the device refuses, or with an exception set. */
static struct window *window_for(struct queue *queue) {
    for (;;) {
        GUARD();
        struct window *window = window_take(queue->device);
        UNGUARD();
        if (likely(window != NULL)) return window;
        PyObject *made = PyObject_CallNoArgs(queue->device->make);
        bool more = made && PyObject_IsTrue(made) == 1; /* though other threads may be quicker to take them */
        Py_XDECREF(made);
        if ((!made && !let_through()) || !more) return NULL;
    }
}

/* The driver did not take the opening event. If the handle is another context's stream by now, try that one. */
static bool try_another_stream(Span *span) {
    struct queue *queue = span->queue;
    PyObject *done = PyObject_CallMethod((PyObject *)queue, "forget", NULL);
    Py_XDECREF(done);
    PyObject *found = PyObject_CallFunctionObjArgs(core.resolve, queue->handle, NULL);
    struct window *window = NULL;
    struct answer answer;
    if (found && Py_TYPE(found) == queue_type && found != (PyObject *)queue) window = window_for((struct queue *)found);
    if (!window) return Py_XDECREF(found), false;
    give_up_window(span);
    span->queue = (struct queue *)found; /* with the reference */
    Py_DECREF((PyObject *)queue);
    span->window = window;
    return record_event(span->queue, window->start, &answer) && !is_capturing(&answer) && !answer.code;
}

static void fill_window(Span *span, int64_t ns, uint64_t scope) {
    struct window *window = span->window;
    window->number = span->number;
    window->key_thread = span->thread->number;
    window->scope = scope;
    window->enqueued_ns = ns;
    window->label = span->label;
    window->args = blob_share(span->args);
    window->is_open = window->has_reason = window->abandoned = window->never_closed = window->has_error = false;
    if (unlikely(!span->label.id)) {
        window->name_text = blob_make(span->label.text.bytes, span->label.text.length);
        window->label.text.bytes = window->name_text ? (const char *)window->name_text->bytes : "";
        window->label.text.length = window->name_text ? window->name_text->length : 0;
    }
}

/* Record the opening event. False with an exception set. */
static bool is_stale(Span *span);

static bool open_window(Span *span, int64_t ns, uint64_t scope) {
    struct answer answer;
    fill_window(span, ns, scope);
    bool ok = record_event(span->queue, span->window->start, &answer), taken = ok && !is_capturing(&answer) && !answer.code;
    if (is_stale(span)) return ok;
    if (unlikely(!taken) && ok) {
        if (is_capturing(&answer)) {
            set_why_not(span, &answer, "the stream is being captured", "the driver refused its stream");
        } else if (answer.code == CUDA_INVALID_HANDLE && try_another_stream(span)) {
            if (is_stale(span)) return true;
            fill_window(span, ns, scope);
            taken = true;
        } else {
            ok = !PyErr_Occurred();
            set_reason(span, "the driver refused its opening event");
            core.stats.failed++;
        }
    }
    if (likely(taken)) {
        GUARD();
        taken = queue_push(span->queue, (uintptr_t)span->window);
        UNGUARD();
    }
    if (unlikely(!taken)) give_up_window(span);
    return ok;
}

/* In a scope. False with an exception set, which is ours to fence or the program's. */
static bool open_span(Span *span, uint64_t scope) {
    PyObject *keep = NULL;
    if (span->queue && !span->queue->refused && !(span->window = window_for(span->queue))) {
        if (PyErr_Occurred()) return false;
        ring_header()->dropped_windows = ++core.stats.dropped_windows; /* a GPU window that may not be is a host slice */
        Py_DECREF((PyObject *)span->queue);
        span->queue = NULL;
    }
    struct thread *thread = thread_here();
    if (!thread || is_stale(span)) return give_up_window(span), thread != NULL;
    if (unlikely(!span->label.id) && !text_of(span->name, &span->label.text, &keep)) return give_up_window(span), false;
    if (span->args) define_keys(span->args);
    GUARD();
    span->number = ++core.next_number;
    UNGUARD();
    int64_t ns = now_ns();
    unsigned flags = span->queue ? HAS_STREAM : 0;
    bool ok = true;
    if (likely(put_record(thread, RECORD_BEGIN, flags, span->label, ns, span->number, scope, span->args, false))) {
        span->thread = thread;
        span->state = OPEN;
        span->is_scoped = scope && scope != EXPLICIT_WINDOW;
        GUARD();
        thread->open++;
        UNGUARD();
        if (unlikely(span->is_scoped)) thread->scoped++;
        if (span->queue && unlikely(span->queue->refused != NULL)) {
            give_up_window(span);
            replace(&span->reason, Py_NewRef(span->queue->refused));
        } else if (span->window) {
            ok = open_window(span, ns, scope);
        }
    } else {
        count_dropped_span();
        give_up_window(span);
        span->state = CLOSED;
    }
    Py_XDECREF(keep);
    return ok;
}

/* In the scope of the code that runs here. */
static bool open_here(Span *span) {
    uint64_t scope;
    return scope_here(&scope) && open_span(span, scope);
}

/* What a slice says at its end of what went wrong; NULL if nothing did. The host's names first what was raised, the
 * window's why it ended; one that was given up says only that. */
static struct blob *end_args(Span *span, bool of_window) {
    PyObject *error = span->error, *reason = span->reason, *said[2] = {NULL, NULL};
    uint32_t keys[2];
    int count = 0;
    if (of_window) {
        if (reason) keys[count] = NAME_ENDED, said[count++] = Py_NewRef(reason);
        if (span->window->abandoned) error = NULL;
        if (error) keys[count] = NAME_ERROR, said[count++] = Py_NewRef(error);
    } else {
        if (error) keys[count] = NAME_ERROR, said[count++] = Py_NewRef(error);
        bool recorded = !span->queue || span->window;
        if (reason) {
            keys[count] = recorded ? NAME_ENDED : NAME_GPU;
            said[count] = recorded ? Py_NewRef(reason) : PyUnicode_FromFormat("not recorded: %U", reason);
            count += said[count] != NULL;
        }
    }
    struct text values[2];
    PyObject *keeps[2] = {NULL, NULL};
    bool ok = true;
    for (int i = 0; i < count && ok; i++) ok = text_of(said[i], &values[i], &keeps[i]);
    struct blob *blob = ok ? blob_of_text_args(count, keys, values) : NULL;
    for (int i = 0; i < 2; i++) Py_XDECREF(keeps[i]), Py_XDECREF(said[i]);
    PyErr_Clear();
    return blob;
}

static void write_end(Span *span, int64_t ns) {
    struct blob *args = unlikely(span->error || span->reason) ? end_args(span, false) : NULL;
    slice_end(span->thread, span->number, ns, args);
    blob_drop(args);
}

/* The window's second entry: its end is recorded, or will not be. The window is the collector's from here. */
static void push_end(Span *span) {
    struct window *window = span->window;
    if (unlikely(span->error || span->reason)) {
        window->has_reason = span->reason != NULL;
        window->has_error = span->error != NULL;
        window->end_args = end_args(span, true);
    }
    GUARD();
    queue_push(span->queue, (uintptr_t)window);
    UNGUARD();
    span->window = NULL;
}

/* Is this span of another recording, or of the process that this one was forked from? Then it is nobody's. Asked after
 * each call that may have let another thread run. */
static bool is_stale(Span *span) {
    if (likely(span->generation == core.generation)) return false;
    span->state = CLOSED;
    span->window = NULL;
    return true;
}

static void finish(Span *span, int64_t ns) {
    if (is_stale(span)) return;
    span->state = CLOSED;
    if (unlikely(span->is_scoped)) span->thread->scoped--;
    write_end(span, ns);
    if (span->window) push_end(span);
}

/* End it where it stands, recording nothing. */
static void end_without_event(Span *span, const char *why) {
    if (span->state != OPEN || is_stale(span)) return;
    int64_t ns = now_ns();
    set_reason(span, why);
    if (span->window) {
        span->window->abandoned = !span->never_closed;
        span->window->never_closed = span->never_closed;
    }
    finish(span, ns);
}

static bool close_span(Span *span, PyObject *kind) {
    if (unlikely(span->state != OPEN) || is_stale(span)) return true;
    if (unlikely(kind && kind != Py_None && kind != PyExc_GeneratorExit)) {
        PyObject *error = PyObject_CallFunctionObjArgs(helpers.kind_name, kind, NULL);
        if (unlikely(!error)) {
            if (!let_through()) return false;
            if (!(error = PyType_Check(kind) ? PyType_GetName((PyTypeObject *)kind) : NULL)) PyErr_Clear();
        }
        if (error) replace(&span->error, error);
        if (span->state != OPEN || is_stale(span)) return true; /* closed meanwhile */
    }
    int64_t ns = now_ns();
    struct answer answer = {0, 0, 0};
    if (span->window) {
        span->state = ENDED;
        if (unlikely(span->queue->refused != NULL)) {
            replace(&span->reason, Py_NewRef(span->queue->refused));
        } else if (unlikely(!record_event(span->queue, span->window->end, &answer))) {
            PyObject *type, *value, *trace;
            PyErr_Fetch(&type, &value, &trace);
            span->window->never_closed = true;
            set_reason(span, "never closed");
            finish(span, ns);
            PyErr_Restore(type, value, trace);
            return false;
        }
        if (unlikely(is_capturing(&answer)))
            set_why_not(span, &answer, "a stream capture began inside", "the driver refused its stream");
        else if (unlikely(answer.code)) set_reason(span, "the driver refused its closing event");
    }
    finish(span, ns);
    return true;
}

/* One object entered again, or by two at once: fresh spans do the work behind it. The list of uses, and whose each is, are
 * shared.py's. */

static PyObject *frame_here(void) {
    PyObject *frame = (PyObject *)PyEval_GetFrame();
    return frame ? frame : Py_None;
}

static bool note_use(Span *shared, Span *made) {
    if (!shared->again && !(shared->again = PyList_New(0))) return false;
    PyObject *done = PyObject_CallFunctionObjArgs(helpers.note_use, shared->again, (PyObject *)made, frame_here(), NULL);
    Py_XDECREF(done);
    return done != NULL;
}

/* The last use by this thread and task, a new reference; NULL if there is none, or with an exception set. */
static Span *last_use(Span *shared) {
    if (!shared->again || !PyList_Size(shared->again)) return NULL;
    PyObject *made = PyObject_CallFunctionObjArgs(helpers.last_use, shared->again, frame_here(), NULL);
    if (made == Py_None) Py_CLEAR(made);
    return (Span *)made;
}

static bool enter_another(Span *span) {
    struct queue *queue = span->queue;
    if (!core.on) queue = NULL;
    else if (queue && span->generation != core.generation && !(queue = queue_of(queue->handle)) && PyErr_Occurred()) return false;
    Span *made = new_span(core.on ? span_type : dropped_type, span->name, NULL, NULL);
    if (!made) return false;
    made->args = blob_share(span->args);
    Py_XINCREF((PyObject *)queue);
    made->queue = queue;
    bool ok = note_use(span, made) && (!core.on || open_here(made));
    Py_DECREF((PyObject *)made);
    return ok;
}

static PyObject *span_enter(PyObject *object, PyObject *unused) {
    (void)unused;
    Span *span = (Span *)object;
    bool fresh = span->state == FRESH && span->generation == core.generation && core.on;
    if (likely(fresh)) span->state = OPENING; /* what opens it may let another thread in, which would find it fresh, too */
    if (unlikely(!(likely(fresh) ? open_here(span) : enter_another(span))) && !let_through()) return NULL;
    return Py_NewRef(object);
}

/* Close what was opened behind a shared object, if anything was. -1 with an exception set. */
static int exit_another(Span *span, PyObject *kind) {
    Span *made = last_use(span);
    if (!made && !PyErr_Occurred()) return 0;
    if (!made) return let_through() ? 1 : -1; /* what was opened here was not noted for want of the same */
    bool ok = close_span(made, kind);
    Py_DECREF((PyObject *)made);
    return ok ? 1 : -1;
}

static PyObject *span_exit(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    Span *span = (Span *)object;
    PyObject *kind = count > 0 ? args[0] : NULL;
    int another = unlikely(span->again != NULL) ? exit_another(span, kind) : 0;
    if (another < 0 || (!another && !close_span(span, kind))) return NULL;
    RETURN_NONE;
}

/* What it was made with, as new references: a name, a stream or None, and a dict. False with an exception set. */
struct made_with {
    PyObject *name, *stream, *kept;
};

static bool made_with(Span *span, struct made_with *with) {
    PyObject *stream = span->stream ? span->stream : Py_None;
    struct queue *current = NULL;
    if (span->queue && find_queue(Py_None, &current) && current != span->queue) stream = span->queue->handle;
    if (PyErr_Occurred()) return false;
    struct args view = {NULL, NULL};
    if (span->args) view = (struct args){span->args->bytes, span->args->bytes + span->args->length};
    with->kept = span->kwargs ? PyDict_Copy(span->kwargs) : args_object(&view, span->args != NULL);
    if (!with->kept) return false;
    with->name = Py_NewRef(span->name ? span->name : Py_None);
    with->stream = Py_NewRef(stream);
    return true;
}

static void made_with_end(struct made_with *with) {
    Py_DECREF(with->name);
    Py_DECREF(with->stream);
    Py_DECREF(with->kept);
}

/* Decorate: one span a call. decorate.py is given what `span` takes. */
static PyObject *span_call(PyObject *object, PyObject *args, PyObject *kwargs) {
    PyObject *function;
    struct made_with with;
    if (kwargs && PyDict_Size(kwargs)) return PyErr_SetString(PyExc_TypeError, "a span decorates one function"), NULL;
    if (!PyArg_ParseTuple(args, "O", &function) || !made_with((Span *)object, &with)) return NULL;
    PyObject *made = PyObject_CallFunctionObjArgs(helpers.decorate, function, with.name, with.stream, with.kept, NULL);
    made_with_end(&with);
    return decorated_or_as_it_is(made, function);
}

/* A copy, as of an object of the program's that holds this one, is used by itself; an open window's does nothing. */
static PyObject *span_copy(PyObject *object, PyObject *unused) {
    (void)unused;
    struct made_with with;
    if (!made_with((Span *)object, &with)) return NULL;
    Span *off = blank(off_type);
    if (!off) return made_with_end(&with), NULL;
    off->name = with.name;
    off->stream = with.stream;
    off->kwargs = with.kept;
    PyObject_GC_Track((PyObject *)off);
    return (PyObject *)off;
}

static PyObject *span_reduce(PyObject *object, PyObject *unused) {
    (void)unused;
    struct made_with with;
    if (!made_with((Span *)object, &with)) return NULL;
    PyObject *reduced = PyObject_CallFunctionObjArgs(helpers.reduced, with.name, with.kept, NULL);
    made_with_end(&with);
    return reduced;
}

#define COPIED \
    {"__copy__", span_copy, METH_NOARGS, NULL}, {"__deepcopy__", span_copy, METH_O, NULL}, {"__reduce__", span_reduce, METH_NOARGS, NULL}

static void span_release(Span *span) {
    blob_drop(span->args);
    Py_XDECREF((PyObject *)span->queue);
    Py_XDECREF(span->name);
    Py_XDECREF(span->error);
    Py_XDECREF(span->reason);
    Py_XDECREF(span->again);
    Py_XDECREF(span->stream);
    Py_XDECREF(span->kwargs);
}

static void span_dealloc(PyObject *object) {
    Span *span = (Span *)object;
    if (unlikely(span->state == OPEN)) { /* its block was left by what a signal's handler raised, or it was forgotten */
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        span->never_closed = true;
        end_without_event(span, "never closed");
        PyErr_Restore(type, value, trace);
    }
    span_release(span);
    PyTypeObject *type = Py_TYPE(object);
    memory_give(object);
    Py_DECREF(type);
}

enum { NOT_MADE_BY_CALLING = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION };

static PyMethodDef span_methods[] = {
    COPIED,
    {"__enter__", span_enter, METH_NOARGS, NULL},
    {"__exit__", FASTCALL(span_exit), METH_FASTCALL, NULL},
    {0},
};
static PyType_Slot span_slots[] = {{Py_tp_dealloc, span_dealloc},
                                   {Py_tp_methods, span_methods},
                                   {Py_tp_call, span_call},
                                   {Py_tp_doc, "One use of `span()`: a context manager and a decorator."},
                                   {0, NULL}};
static PyType_Spec span_spec = {"gputrace.hot._hot.Span", sizeof(Span), 0, NOT_MADE_BY_CALLING | Py_TPFLAGS_BASETYPE, span_slots};

/* Explicit windows. */

static PyObject *hot_window(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *kwnames) {
    (void)module;
    struct call call;
    if (!parse(&call, "window", args, count, kwnames)) return NULL;
    PyObject *made;
    if (!core.on) {
        made = off_span(&call);
    } else {
        made = (PyObject *)make_span(window_type, &call);
        if (made && Py_TYPE(made) == window_type && !open_span((Span *)made, EXPLICIT_WINDOW) && !let_through()) Py_CLEAR(made);
    }
    parsed(&call);
    return made_or_nothing(made);
}

static PyObject *itself(PyObject *object, PyObject *unused) {
    (void)unused;
    return Py_NewRef(object);
}

static PyObject *window_close(PyObject *object, PyObject *unused) {
    (void)unused;
    if (!close_span((Span *)object, NULL)) return NULL;
    RETURN_NONE;
}

static bool fail_window(Span *span, PyObject *error) {
    if (span->state != OPEN) return true;
    PyObject *said = PyObject_CallFunctionObjArgs(helpers.describe, error, NULL);
    if (!said) return let_through();
    core.stats.failed += !span->error;
    replace(&span->error, said);
    return true;
}

static PyObject *window_failure(PyObject *object, PyObject *error) {
    if (!fail_window((Span *)object, error)) return NULL;
    RETURN_NONE;
}

static PyObject *window_abandon(PyObject *object, PyObject *unused) {
    (void)unused;
    end_without_event((Span *)object, "abandoned");
    RETURN_NONE;
}

static PyObject *window_exit(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    if (count > 1 && args[1] != Py_None && !fail_window((Span *)object, args[1])) return NULL;
    return window_close(object, NULL);
}

static PyMethodDef window_methods[] = {
    {"__enter__", itself, METH_NOARGS, NULL},
    {"__exit__", FASTCALL(window_exit), METH_FASTCALL, NULL},
    {"close", window_close, METH_NOARGS, "Close the window at its stream's current position."},
    {"failure", window_failure, METH_O, "Something failed inside: the window still closes, and carries the error."},
    {"abandon", window_abandon, METH_NOARGS, "Drop the window: no closing event is recorded."},
    {0},
};
static PyType_Slot window_slots[] = {{Py_tp_methods, window_methods},
                                     {Py_tp_doc, "An explicit window, closed or abandoned anywhere. From `gputrace.window`."},
                                     {0, NULL}};
static PyType_Spec window_spec = {"gputrace.hot._hot.Window", sizeof(Span), 0, NOT_MADE_BY_CALLING, window_slots};

/* With tracing off. */

static bool enter_off(Span *off) {
    struct queue *queue;
    PyObject *key, *value, *kwnames = NULL, **values = NULL;
    if (!find_queue(off->stream ? off->stream : Py_None, &queue)) return false;
    Py_XINCREF((PyObject *)queue);
    if (off->kwargs) {
        Py_ssize_t count = PyDict_Size(off->kwargs), at = 0, i = 0;
        kwnames = PyTuple_New(count);
        values = calloc((size_t)count + 1, sizeof *values);
        while (kwnames && values && i < count && PyDict_Next(off->kwargs, &at, &key, &value)) {
            PyTuple_SetItem(kwnames, i, Py_NewRef(key));
            values[i++] = value;
        }
    }
    Span *made = new_span(span_type, off->name, values, kwnames);
    free(values);
    Py_XDECREF(kwnames);
    if (made) made->queue = queue;
    else Py_XDECREF((PyObject *)queue);
    bool ok = made && note_use(off, made) && open_here(made);
    Py_XDECREF((PyObject *)made);
    return ok;
}

/* Entered again while recording is paused: its exit must not close what this object opened before. */
static bool enter_paused(Span *off) {
    if (!PyList_Size(off->again)) return true;
    Span *made = new_span(dropped_type, off->name, NULL, NULL);
    bool ok = made && note_use(off, made);
    Py_XDECREF((PyObject *)made);
    return ok;
}

static PyObject *off_enter(PyObject *object, PyObject *unused) {
    (void)unused;
    Span *off = (Span *)object;
    if (unlikely(core.on)) { /* it was kept until now */
        if (!enter_off(off) && !let_through()) return NULL;
    } else if (unlikely(off->again != NULL) && !enter_paused(off) && !let_through()) {
        return NULL;
    }
    return Py_NewRef(object);
}

static PyObject *off_exit(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    Span *off = (Span *)object;
    if (unlikely(off->again != NULL) && exit_another(off, count > 0 ? args[0] : NULL) < 0) return NULL;
    RETURN_NONE;
}

static PyObject *do_nothing(PyObject *object, PyObject *unused) {
    (void)object, (void)unused;
    RETURN_NONE;
}

static PyObject *exit_nothing(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    (void)object, (void)args, (void)count;
    RETURN_NONE;
}

/* What it was made with is the program's own, which may lead back to it. */
static int off_traverse(PyObject *object, visitproc visit, void *arg) {
    Span *off = (Span *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(off->stream);
    Py_VISIT(off->kwargs);
    return 0;
}

static int off_clear(PyObject *object) {
    Py_CLEAR(((Span *)object)->stream);
    Py_CLEAR(((Span *)object)->kwargs);
    return 0;
}

static void off_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    span_release((Span *)object);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyMethodDef off_methods[] = {
    COPIED,
    {"__enter__", off_enter, METH_NOARGS, NULL},
    {"__exit__", FASTCALL(off_exit), METH_FASTCALL, NULL},
    {"close", do_nothing, METH_NOARGS, NULL},
    {"abandon", do_nothing, METH_NOARGS, NULL},
    {"failure", do_nothing, METH_O, NULL},
    {0},
};
static PyType_Slot off_slots[] = {{Py_tp_traverse, off_traverse},
                                  {Py_tp_clear, off_clear},
                                  {Py_tp_dealloc, off_dealloc},
                                  {Py_tp_methods, off_methods},
                                  {Py_tp_call, span_call},
                                  {0, NULL}};
static PyType_Spec off_spec = {"gputrace.hot._hot.Off", sizeof(Span), 0, NOT_MADE_BY_CALLING | Py_TPFLAGS_HAVE_GC, off_slots};

/* What an exception of ours cost. */
static PyMethodDef dropped_methods[] = {
    COPIED,
    {"__enter__", itself, METH_NOARGS, NULL},
    {"__exit__", FASTCALL(exit_nothing), METH_FASTCALL, NULL},
    {"close", do_nothing, METH_NOARGS, NULL},
    {"abandon", do_nothing, METH_NOARGS, NULL},
    {"failure", do_nothing, METH_O, NULL},
    {0},
};
static PyType_Slot dropped_slots[] = {
    {Py_tp_dealloc, span_dealloc}, {Py_tp_methods, dropped_methods}, {Py_tp_call, span_call}, {0, NULL}};
static PyType_Spec dropped_spec = {"gputrace.hot._hot.Dropped", sizeof(Span), 0, NOT_MADE_BY_CALLING, dropped_slots};

/* Moments and values. */

static bool put_moment(PyObject *name, PyObject *const *values, PyObject *kwnames) {
    PyObject *keep = NULL;
    Span *span = new_span(dropped_type, name, values, kwnames); /* for its label and arguments */
    struct thread *thread = span ? thread_here() : NULL; /* last: what the arguments say may begin another recording */
    bool ok = thread && (span->label.id || text_of(span->name, &span->label.text, &keep));
    if (ok && !is_stale(span)) {
        if (span->args) define_keys(span->args);
        if (!put_record(thread, RECORD_INSTANT, 0, span->label, now_ns(), 0, 0, span->args, false)) count_dropped_span();
    }
    Py_XDECREF(keep);
    Py_XDECREF((PyObject *)span);
    return ok;
}

static PyObject *hot_instant(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *kwnames) {
    (void)module;
    if (count != 1) return PyErr_SetString(PyExc_TypeError, "instant() takes a name by position"), NULL;
    if (core.on) {
        if (!spans_awake()) return NULL;
        if (!put_moment(args[0], args + 1, kwnames)) {
            if (!let_through()) return NULL;
            count_dropped_span();
        }
    }
    RETURN_NONE;
}

/* sample(name, value, unit): str, int or float, str. `gputrace.hot.compiled.counter` has made them so. */
static PyObject *hot_sample(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *name, *value, *unit_name, *keep = NULL;
    if (!PyArg_ParseTuple(args, "UOU", &name, &value, &unit_name)) return NULL;
    if (!spans_awake()) return NULL;
    uint64_t bits = 0;
    int overflow = 0;
    if (PyLong_Check(value)) bits = (uint64_t)PyLong_AsLongLongAndOverflow(value, &overflow);
    bool is_double = overflow || !PyLong_Check(value);
    if (is_double) {
        double real = PyFloat_AsDouble(value);
        if (PyErr_Occurred()) PyErr_Clear(), real = overflow > 0 ? Py_HUGE_VAL : -Py_HUGE_VAL; /* beyond the largest */
        memcpy(&bits, &real, 8);
    }
    struct thread *thread = thread_here();
    int64_t id = name_id(name), unit = PyUnicode_GetLength(unit_name) ? name_id(unit_name) : 0;
    struct label label = {.id = id > 0 ? (uint32_t)id : 0};
    if (!thread || id < 0 || unit < 0 || (!id && !text_of(name, &label.text, &keep))) {
        if (!let_through()) return NULL;
        count_dropped_span();
        RETURN_NONE;
    }
    if (unit && names[unit]->generation != core.generation) define_name((uint32_t)unit);
    if (!put_record(thread, RECORD_SAMPLE, is_double ? IS_DOUBLE : 0, label, now_ns(), bits, (uint64_t)unit, NULL, false))
        count_dropped_span();
    Py_XDECREF(keep);
    RETURN_NONE;
}

/* mark_failure(text, queues): every window open now on these failed. */
static PyObject *hot_mark_failure(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *error, *queues, *keep;
    struct text text;
    if (!PyArg_ParseTuple(args, "UO!", &error, &PyList_Type, &queues) || !text_of(error, &text, &keep)) return NULL;
    for (Py_ssize_t i = 0; i < PyList_Size(queues); i++) {
        PyObject *queue = PyList_GetItem(queues, i);
        struct blob *blob = Py_TYPE(queue) == queue_type ? blob_of_error(text) : NULL;
        if (!blob) continue;
        GUARD();
        if (!queue_push((struct queue *)queue, (uintptr_t)blob | 1)) blob_drop(blob);
        UNGUARD();
    }
    Py_DECREF(keep);
    RETURN_NONE;
}

static PyObject *hot_queue_of(PyObject *module, PyObject *stream) {
    (void)module;
    struct queue *queue = queue_of(stream);
    if (!queue && !let_through()) return NULL;
    return Py_NewRef(queue ? (PyObject *)queue : Py_None);
}

static PyObject *hot_current_number(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    struct thread *thread = thread_here();
    return thread ? PyLong_FromUnsignedLong(thread->number) : NULL;
}

PyMethodDef span_functions[] = {
    {"span", FASTCALL(hot_span), METH_FASTCALL | METH_KEYWORDS,
     "span($module, name, /, stream=None, **args)\n--\n\n"
     "A slice on this thread while the block or the decorated call runs and, where a stream is known, a window on it.\n\n"
     "``with gputrace.span(\"forward\", stream=s, batch=32): ...``, ``@gputrace.span(\"step\")`` or ``@gputrace.span``.\n"
     "Raises nothing. See `gputrace.hot.pure.span`, whose compiled twin this is."},
    {"window", FASTCALL(hot_window), METH_FASTCALL | METH_KEYWORDS,
     "window($module, name, /, stream=None, **args)\n--\n\n"
     "An explicit window, open from here until its ``close()``, which any thread may call, in any order. Raises nothing."},
    {"instant", FASTCALL(hot_instant), METH_FASTCALL | METH_KEYWORDS,
     "instant($module, name, /, **args)\n--\n\nMark a moment on this thread. Raises nothing."},
    {"sample", hot_sample, METH_VARARGS, "A counter's value, already made plain."},
    {"mark_failure", hot_mark_failure, METH_VARARGS, "Every window open now on these queues failed."},
    {"queue_of", hot_queue_of, METH_O, "The queue of whatever a program passes for a stream, or None."},
    {"current_number", hot_current_number, METH_NOARGS, "This thread's number."},
    {0},
};

bool spans_start(void) {
    static const struct {
        PyObject **to;
        const char *module, *name;
    } wanted[] = {
        {&helpers.plain, "arguments", "plain"},          {&helpers.as_name, "arguments", "as_name"},
        {&helpers.flow, "arguments", "Flow"},
        {&helpers.kind_name, "arguments", "kind_name"},  {&helpers.describe, "arguments", "describe"},
        {&helpers.find_scope, "scope", "find_scope"},    {&helpers.task_scope, "scope", "task_scope"},
        {&helpers.running_loop, "scope", "running_loop"}, {&enters, "scope", "ENTERS"},
        {&helpers.note_use, "shared", "note_use"},       {&helpers.last_use, "shared", "last_use"},
        {&helpers.thread_name, "shared", "thread_name"}, {&helpers.decorate, "shared", "decorate_with"},
        {&helpers.decorate_bare, "shared", "decorate_bare"}, {&helpers.functions, "shared", "FUNCTIONS"}, {&helpers.reduced, "shared", "reduced"},
        {&binding_errors, "shared", "BINDING_ERRORS"},   {&helpers.let_through, "shared", "let_through"},
    };
    if (pthread_key_create(&at_thread_end, thread_ended)) return PyErr_SetString(PyExc_OSError, "no thread-specific data"), false;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        PyObject *package = PyImport_ImportModule("gputrace.hot"), *path = PyUnicode_FromFormat("gputrace.hot.%s", wanted[i].module);
        PyObject *found = path ? PyImport_Import(path) : NULL, *sub = NULL;
        if (found && package) sub = PyDict_GetItemWithError(PyImport_GetModuleDict(), path);
        if (sub) *wanted[i].to = PyObject_GetAttrString(sub, wanted[i].name);
        Py_XDECREF(package);
        Py_XDECREF(path);
        Py_XDECREF(found);
        if (!*wanted[i].to) return false;
    }
    helpers.modules = PyImport_GetModuleDict();
    if (!(helpers.asyncio = PyUnicode_InternFromString("_asyncio")) || !(helpers.greenlet = PyUnicode_InternFromString("greenlet")) ||
        !(stream_name = PyUnicode_InternFromString("stream")) || !(off_by_name = PyDict_New()))
        return false;
    span_type = (PyTypeObject *)PyType_FromSpec(&span_spec);
    PyObject *bases = span_type ? PyTuple_Pack(1, (PyObject *)span_type) : NULL;
    window_type = bases ? (PyTypeObject *)PyType_FromSpecWithBases(&window_spec, bases) : NULL;
    Py_XDECREF(bases);
    off_type = (PyTypeObject *)PyType_FromSpec(&off_spec);
    dropped_type = (PyTypeObject *)PyType_FromSpec(&dropped_spec);
    nothing = dropped_type ? (PyObject *)blank(dropped_type) : NULL;
    return span_type && window_type && off_type && nothing;
}
