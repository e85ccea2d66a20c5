/* Slices without the GIL, for a library of another language that runs within the program's calls: torch's operators, as
 * gputrace/instrument/torch/observer.cpp tells of them. It gets at these functions by a capsule, and knows no more.
 *
 * An edge goes into the ring of the thread that calls, as any span's, and so in order with these. What takes Python is left
 * to it: a thread that is not known yet, a name that is not in the ring, a collector to wake, a stream that `use_stream`
 * made current, calls that wait, and spans of what can be suspended, which have rows of their own.
 */

#include "hot.h"

#ifndef Py_GIL_DISABLED /* where the ring is behind `core_lock`, which only Python's threads may wait for */

#define ELSEWHERE UINT64_MAX /* have Python do it */

/* With the GIL: a name's id in this recording, whose generation is given, and from here on the thread may begin what is
 * called so; 0 for a name that is not kept. An exception that is left set is the program's. */
static uint32_t operator_name(const char *bytes, size_t length, uint32_t *generation) {
    PyObject *name = PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)length, "replace");
    int64_t id = name ? name_id(name) : -1;
    Py_XDECREF(name);
    struct thread *thread = id > 0 && core.on ? thread_here() : NULL;
    if (!thread || !define_name((uint32_t)id)) return let_through(), 0;
    thread->is_shared = true;
    *generation = core.generation;
    return (uint32_t)id;
}

/* A number to end it by: 0 for one that is not shown, or ELSEWHERE. */
static uint64_t operator_begin(uint32_t name, uint32_t generation) {
    if (unlikely(!core.on)) return 0;
    struct thread *thread = thread_known();
    if (unlikely(!thread || generation != core.generation || core.wake_needed || core.stream_used)) return ELSEWHERE;
    if (unlikely(!thread->is_shared || thread->calls_waiting || thread->scoped)) return ELSEWHERE;
    uint64_t number = ++core.next_number;
    if (likely(put_freely(thread, RECORD_BEGIN, name, number, generation))) return number;
    if (generation == core.generation) count_dropped_span();
    return 0;
}

/* On the thread that began it. */
static void operator_end(uint64_t number, uint32_t generation) {
    struct thread *thread = thread_known();
    if (likely(thread && generation == core.generation)) put_freely(thread, RECORD_END, 0, number, generation);
}

static struct {
    uint32_t (*name)(const char *, size_t, uint32_t *);
    uint64_t (*begin)(uint32_t, uint32_t);
    void (*end)(uint64_t, uint32_t);
} table = {operator_name, operator_begin, operator_end};

PyObject *operators_start(void) {
    return PyCapsule_New(&table, "gputrace.hot._hot.OPERATORS", NULL);
}

#else

PyObject *operators_start(void) {
    return NULL;
}

#endif
