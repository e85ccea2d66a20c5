/* Python's function calls as slices: what the interpreter calls at the begin and the end of each. `Calls` of
 * gputrace/hot/calls.py, said in C. Which functions are shown is asked there, once a code object.
 *
 * A call's slice goes from its thread's ring to the trace as a span's does; there is no object for it. What is open is a
 * stack a thread, of the recording's own, as the threads here are. Where short calls are left out, a call's begin waits on
 * the stack until it is old enough, or something else is put into the ring, which must come behind it.
 */

#include "hot.h"

enum { MOST_CODES = 1 << 16, SUSPENDABLE = 0x20 | 0x80 | 0x200 }; /* generators, coroutines, asynchronous generators */

/* What is known of a code object, which is held, so that its address means it. */
struct code {
    PyObject *object, *name; /* name: NULL for one that is left out */
    struct label label;
    struct blob *args; /* where it stands, if that is to be shown */
    bool suspendable;
    PyObject *bytes; /* its instructions, once they were asked for */
};

typedef struct {
    PyObject_HEAD
    PyObject *choose, *fail, *left_out, *ends, *raised;
    size_t depth;
    int64_t least_ns;
    struct map codes; /* by address, struct code */
} Calls;

static PyObject *last_instruction, *caller, *is_contextlib, *source_key; /* the last: a tuple, of one */

static void code_free(struct code *code) {
    Py_XDECREF(code->object);
    Py_XDECREF(code->name);
    Py_XDECREF(code->bytes);
    blob_drop(code->args);
    free(code);
}

static struct code *ask(Calls *self, PyObject *object, PyObject *frame) {
    struct code *code = calloc(1, sizeof *code);
    if (!code) return (struct code *)PyErr_NoMemory();
    code->object = Py_NewRef(object);
    PyObject *name = PyObject_CallFunctionObjArgs(self->choose, frame, NULL), *flags = PyObject_GetAttrString(object, "co_flags");
    PyObject *source = NULL;
    bool ok = true;
    if (name && PyTuple_Check(name) && PyArg_ParseTuple(name, "OO", &code->name, &source)) {
        Py_INCREF(code->name);
        code->args = blob_of_args(&source, source_key, &ok);
    } else if (name && PyUnicode_CheckExact(name)) {
        code->name = Py_NewRef(name);
    }
    if (flags) code->suspendable = PyLong_AsLong(flags) & SUSPENDABLE;
    Py_XDECREF(name);
    Py_XDECREF(flags);
    int64_t id = code->name && !PyErr_Occurred() ? name_id(code->name) : 0;
    if (id < 0 || !ok || PyErr_Occurred()) return code_free(code), NULL;
    code->label.id = (uint32_t)id;
    return code;
}

/* NULL with an exception set. One that is not `*kept` is the caller's to free: there are too many. */
static struct code *code_of(Calls *self, PyObject *object, PyObject *frame, bool *kept) {
    *kept = true;
    GUARD();
    uint64_t *found = map_find(&self->codes, (uintptr_t)object, 0);
    struct code *code = found ? (struct code *)(uintptr_t)*found : NULL;
    UNGUARD();
    if (likely(code != NULL) || !(code = ask(self, object, frame))) return code;
    GUARD(); /* another thread may have asked meanwhile */
    *kept = self->codes.count < MOST_CODES && !map_find(&self->codes, (uintptr_t)object, 0) &&
            map_put(&self->codes, (uintptr_t)object, 0, (uintptr_t)code);
    UNGUARD();
    return code;
}

/* What says that an end is this begin's: -1 with an exception set. A frame that is suspended leaves others of its code on
 * the stack, and so does any frame of a greenlet. */
static int key_of(const struct code *code, PyObject *frame, uintptr_t *key) {
    int greenlets = PyDict_Contains(helpers.modules, helpers.greenlet);
    *key = (uintptr_t)(code->suspendable || greenlets > 0 ? frame : code->object);
    return greenlets;
}

/* Does contextlib run this generator, to enter a span for whoever wrote the `with`? -1 with an exception set. */
static int is_driven(PyObject *frame) {
    PyObject *back = PyObject_GetAttr(frame, caller);
    PyObject *said = back ? PyObject_CallFunctionObjArgs(is_contextlib, back, NULL) : NULL;
    int driven = said ? PyObject_IsTrue(said) : -1;
    Py_XDECREF(back);
    Py_XDECREF(said);
    return driven;
}

static bool push(struct thread *thread, struct open_call call) {
    if (unlikely(!room_for_one(&thread->calls, &thread->calls_room, thread->calls_open, sizeof *thread->calls))) return false;
    thread->calls[thread->calls_open++] = call;
    thread->calls_waiting += call.waits;
    return true;
}

/* Have its begin wait. False where memory ran out. */
static bool wait_on_stack(struct thread *thread, struct open_call *call, const struct code *code, int64_t least_ns) {
    if (!call->label.id) {
        if (!(call->name_text = blob_make(call->label.text.bytes, call->label.text.length))) return false;
        call->label.text.bytes = (const char *)call->name_text->bytes;
    }
    call->args = blob_share(code->args);
    thread->least_call_ns = least_ns;
    return call->waits = true;
}

/* 1: begun; 0: left out, now and later; -1: an exception is set. */
static int begin(Calls *self, struct code *code, PyObject *frame) {
    uintptr_t key;
    if (!code->name) return 0;
    int driven = unlikely(code->suspendable) ? is_driven(frame) : 0;
    if (unlikely(driven)) return driven;
    if (!core.armed) return 1;
    if (!spans_awake() || key_of(code, frame, &key) < 0) return -1;
    PyObject *keep = NULL;
    struct label label = code->label;
    struct thread *thread = thread_here(); /* no Python runs between this and the end */
    if (!thread || (unlikely(!label.id) && !text_of(code->name, &label.text, &keep))) return -1;
    struct open_call call = {.key = key, .label = label};
    if (core.on && thread->calls_open < self->depth) {
        call.begin_ns = now_ns();
        if (!self->least_ns || unlikely(!wait_on_stack(thread, &call, code, self->least_ns))) {
            calls_settle(thread, INT64_MAX);
            call.number = slice_begin(thread, label, call.begin_ns, code->args);
        }
    }
    if (unlikely(!push(thread, call))) {
        blob_drop(call.name_text);
        blob_drop(call.args);
        if (call.number) slice_end(thread, call.number, now_ns(), NULL);
    }
    Py_XDECREF(keep);
    return 1;
}

/* Why a call ended, if that was no return: NULL with no exception set where it is not to be said. */
static struct blob *error_of(PyObject *kind) {
    PyObject *said = kind == PyExc_GeneratorExit ? NULL : PyObject_CallFunctionObjArgs(helpers.kind_name, kind, NULL), *keep = NULL;
    struct text text;
    struct blob *blob = said && text_of(said, &text, &keep) ? blob_of_error(text) : NULL;
    Py_XDECREF(said);
    Py_XDECREF(keep);
    return blob;
}

static bool is_open(const struct thread *thread, uintptr_t key) {
    for (size_t i = thread ? thread->calls_open : 0; i-- > 0;)
        if (thread->calls[i].key == key) return true;
    return false;
}

/* As `begin`. With it ends what a greenlet left open above. `kind`: of what was raised, or NULL. */
static int end(struct code *code, PyObject *frame, PyObject *kind) {
    uintptr_t key;
    if (!code->name) return 0;
    if (key_of(code, frame, &key) < 0) return -1;
    if (!is_open(thread_known(), key)) return 1; /* it began before the recording */
    struct blob *error = kind ? error_of(kind) : NULL;
    if (PyErr_Occurred()) return -1;
    struct thread *thread = thread_known(); /* Python ran meanwhile */
    int64_t ns = now_ns();
    for (bool more = is_open(thread, key); more;) {
        if (thread->calls_waiting && ns - thread->calls[thread->calls_open - 1].begin_ns >= thread->least_call_ns)
            calls_settle(thread, INT64_MAX); /* this one, and those around it, which are older */
        struct open_call call = thread->calls[--thread->calls_open];
        more = call.key != key;
        if (unlikely(call.waits)) {
            thread->calls_waiting--;
            core.stats.short_calls++;
        }
        blob_drop(call.name_text);
        blob_drop(call.args);
        if (call.number) slice_end(thread, call.number, ns, more ? NULL : error);
    }
    blob_drop(error);
    return 1;
}

static PyObject *answer(Calls *self, int done, bool may_leave_out) {
    if (unlikely(done < 0)) return hand_over(self->fail);
    return Py_NewRef(done || !may_leave_out ? Py_None : self->left_out);
}

/* What the interpreter calls with a code, where in it, and a value; the code's frame runs. */
static PyObject *event_of(Calls *self, PyObject *const *args, Py_ssize_t count, bool begins, bool raises, bool may_leave_out) {
    PyObject *frame = (PyObject *)PyEval_GetFrame();
    bool kept;
    if (count < 2 || !frame) RETURN_NONE;
    struct code *code = code_of(self, args[0], frame, &kept);
    if (!code) return hand_over(self->fail);
    PyObject *kind = raises && count > 2 ? (PyObject *)Py_TYPE(args[2]) : NULL;
    PyObject *said = answer(self, begins ? begin(self, code, frame) : end(code, frame, kind), may_leave_out);
    if (unlikely(!kept)) code_free(code);
    return said;
}

/* The interpreter holds no reference to what it calls, and what is called from here may have it let go. */
static PyObject *event(PyObject *self, PyObject *const *args, Py_ssize_t count, bool begins, bool raises, bool may_leave_out) {
    Py_INCREF(self);
    PyObject *said = event_of((Calls *)self, args, count, begins, raises, may_leave_out);
    Py_DECREF(self);
    return said;
}

static PyObject *calls_begin(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    return event(self, args, count, true, false, true);
}

static PyObject *calls_throw(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    return event(self, args, count, true, false, false);
}

static PyObject *calls_end(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    return event(self, args, count, false, false, true);
}

static PyObject *calls_unwind(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    return event(self, args, count, false, true, false);
}

/* Does a frame end otherwise than by one of the instructions that end one? -1 with an exception set. */
static int ends_by_raising(Calls *self, struct code *code, PyObject *frame) {
    char *bytes, *ends;
    Py_ssize_t length, ends_length;
    if (!code->bytes && !(code->bytes = PyObject_GetAttrString(code->object, "co_code"))) return -1;
    PyObject *number = PyObject_GetAttr(frame, last_instruction);
    Py_ssize_t at = number ? PyLong_AsSsize_t(number) : -1;
    Py_XDECREF(number);
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(code->bytes, &bytes, &length) || PyBytes_AsStringAndSize(self->ends, &ends, &ends_length))
        return -1;
    return at < 0 || at >= length || !memchr(ends, bytes[at], (size_t)ends_length);
}

/* The interpreter has one string an event, though none that can be asked for: it is remembered from the first time. */
static bool is_event(PyObject *said, const char *name, PyObject **known) {
    if (said == *known) return true;
    if (PyUnicode_CompareWithASCIIString(said, name)) return false;
    replace(known, Py_NewRef(said));
    return true;
}

/* A profile function, for the Pythons without sys.monitoring: with a frame, what happened, and a value. */
static PyObject *profile_of(Calls *self, PyObject *const *args, Py_ssize_t count) {
    static PyObject *call_event, *return_event;
    if (count < 3 || !PyUnicode_Check(args[1])) RETURN_NONE;
    bool begins = is_event(args[1], "call", &call_event), kept;
    if (!begins && !is_event(args[1], "return", &return_event)) RETURN_NONE;
    PyObject *frame = args[0], *of = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
    struct code *code = code_of(self, of, frame, &kept);
    Py_DECREF(of);
    if (!code) return hand_over(self->fail);
    int raises = !begins && code->name && args[2] == Py_None ? ends_by_raising(self, code, frame) : 0;
    int done = begins ? begin(self, code, frame) : raises < 0 ? -1 : end(code, frame, raises ? self->raised : NULL);
    PyObject *said = answer(self, done, false);
    if (unlikely(!kept)) code_free(code);
    return said;
}

static PyObject *calls_profile(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Py_INCREF(self);
    PyObject *said = profile_of((Calls *)self, args, count);
    Py_DECREF(self);
    return said;
}

/* Calls(choose, fail, depth, least_ns, left_out, ends, raised) */
static PyObject *calls_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *choose, *fail, *left_out, *ends, *raised;
    Py_ssize_t depth;
    long long least_ns;
    if (kwargs && PyDict_Size(kwargs)) return PyErr_SetString(PyExc_TypeError, "Calls() takes no keywords"), NULL;
    if (!PyArg_ParseTuple(args, "OOnLOSO", &choose, &fail, &depth, &least_ns, &left_out, &ends, &raised)) return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Calls *self = (Calls *)allocate(type, 0);
    if (!self) return NULL;
    self->choose = Py_NewRef(choose);
    self->fail = Py_NewRef(fail);
    self->left_out = Py_NewRef(left_out);
    self->ends = Py_NewRef(ends);
    self->raised = Py_NewRef(raised);
    self->depth = depth > 0 ? (size_t)depth : SIZE_MAX;
    self->least_ns = least_ns > 0 ? least_ns : 0;
    return (PyObject *)self;
}

static int calls_traverse(PyObject *object, visitproc visit, void *arg) {
    Calls *self = (Calls *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->choose);
    Py_VISIT(self->fail);
    return 0;
}

/* `fail` is a closure over what undoes the patch, which has this. */
static int calls_clear(PyObject *object) {
    Calls *self = (Calls *)object;
    replace(&self->choose, Py_NewRef(Py_None));
    replace(&self->fail, Py_NewRef(Py_None));
    return 0;
}

static void calls_dealloc(PyObject *object) {
    Calls *self = (Calls *)object;
    PyObject_GC_UnTrack(object);
    for (size_t i = 0; i < self->codes.capacity; i++)
        if (self->codes.slots[i].used) code_free((struct code *)(uintptr_t)self->codes.slots[i].value);
    map_clear(&self->codes);
    Py_XDECREF(self->choose);
    Py_XDECREF(self->fail);
    Py_XDECREF(self->left_out);
    Py_XDECREF(self->ends);
    Py_XDECREF(self->raised);
    PyTypeObject *type = Py_TYPE(object);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(object);
    Py_DECREF(type);
}

static PyMethodDef calls_methods[] = {
    {"begin", FASTCALL(calls_begin), METH_FASTCALL, "A call begins, or a generator goes on."},
    {"throw", FASTCALL(calls_throw), METH_FASTCALL, "A generator goes on with an exception."},
    {"end", FASTCALL(calls_end), METH_FASTCALL, "A call returns, or a generator yields."},
    {"unwind", FASTCALL(calls_unwind), METH_FASTCALL, "A call is left by an exception."},
    {"profile", FASTCALL(calls_profile), METH_FASTCALL, "A profile function."},
    {0},
};
static PyType_Slot calls_slots[] = {{Py_tp_new, calls_new},
                                    {Py_tp_traverse, calls_traverse},
                                    {Py_tp_clear, calls_clear},
                                    {Py_tp_dealloc, calls_dealloc},
                                    {Py_tp_methods, calls_methods},
                                    {Py_tp_doc, "Python's function calls as slices: see `gputrace.hot.calls.Calls`."},
                                    {0, NULL}};
static PyType_Spec calls_spec = {"gputrace.hot._hot.Calls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, calls_slots};

/* The type, a new reference; NULL with an exception set. */
PyObject *calls_start(void) {
    PyObject *scope = PyImport_ImportModule("gputrace.hot.scope");
    is_contextlib = scope ? PyObject_GetAttrString(scope, "is_contextlib") : NULL;
    Py_XDECREF(scope);
    if (!is_contextlib || !(last_instruction = PyUnicode_InternFromString("f_lasti")) || !(caller = PyUnicode_InternFromString("f_back")) ||
        !(source_key = Py_BuildValue("(s)", "source")))
        return NULL;
    return PyType_FromSpec(&calls_spec);
}
