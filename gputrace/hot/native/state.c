/* Whether and what is recorded: a recording's begin and end, and what it came to so far. With the GIL. */

#include "hot.h"

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
    samples_forget();
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

PyMethodDef state_functions[] = {
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
    {"state", hot_state, METH_NOARGS, "Counts, what was given up, and how the rings are."},
    {"set_hurried", hot_set_hurried, METH_O, "Calls of the collector are to be short."},
    {"set_clock", hot_set_clock, METH_VARARGS, "A clock for tests."},
    {0},
};
