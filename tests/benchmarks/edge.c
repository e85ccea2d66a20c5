/* The compiled twin with a door to one of its parts: what an edge's store in its thread's ring takes, by itself. */

#include "../../gputrace/hot/native/spans.c"

#define OPEN_TO_ALL __attribute__((visibility("default")))

/* ns an edge, of `slices` begins and ends of one name; negative where a slice found no room. With the GIL. */
OPEN_TO_ALL double edge_store_ns(PyObject *name, uint64_t slices) {
    struct thread *thread = thread_here();
    int64_t id = name_id(name);
    if (!thread || id <= 0) return PyErr_Clear(), -1;
    struct label label = {.id = (uint32_t)id};
    int64_t start_ns = now_ns();
    for (uint64_t i = 0; i < slices; i++) {
        uint64_t number = ++core.next_number;
        int64_t ns = start_ns + (int64_t)(2 * i);
        if (!put_record(thread, RECORD_BEGIN, 0, label, ns, number, 0, NULL, false)) return -1;
        put_record(thread, RECORD_END, 0, (struct label){0}, ns + 1, number, 0, NULL, true);
    }
    return (double)(now_ns() - start_ns) / (double)(2 * slices);
}
