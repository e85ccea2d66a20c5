/* Whose turn it is: the collector's calls, which may hold pointers into a recording and run without the GIL, and what ends
 * the recording under them. It knows nothing of what they do.
 *
 * A collector that a driver held beyond its recording's end may come back inside a later one. Each call says which
 * recording it is of, and is refused if that is over; and none is over while a call is inside.
 */

#include "hot.h"

#include <unistd.h>

_Atomic bool hurried;
static unsigned inside; /* changed with the GIL, or the guard */
static pid_t process;

bool turn_take(unsigned long long generation) {
    GUARD();
    bool ours = generation == core.generation;
    inside += ours;
    UNGUARD();
    if (!ours) PyErr_SetString(PyExc_RuntimeError, "this recording is over, and another one may have begun");
    return ours;
}

void turn_end(void) {
    GUARD();
    inside--;
    UNGUARD();
}

bool turn_take_for(PyObject *generation) {
    unsigned long long asked = PyLong_AsUnsignedLongLong(generation);
    return !PyErr_Occurred() && turn_take(asked);
}

/* Threads do not survive a fork, nor does what they did. */
static void mind_fork(void) {
    if (process == getpid()) return;
    process = getpid();
    inside = 0;
    for (struct thread *thread = atomic_load(&core.threads); thread; thread = atomic_load(&thread->next))
        atomic_store(&thread->taken, false);
    atomic_store(&hurried, false);
#ifdef Py_GIL_DISABLED
    memset(&core_lock, 0, sizeof core_lock); /* a thread of the parent's may have it */
#endif
}

bool turns_over(void) {
    enum { TRIES = 1000, PAUSE_NS = 1000000 };
    mind_fork();
    for (int i = 0; i < TRIES; i++) {
        GUARD();
        if (!inside) {
            core.generation++;
            rings_quiet();
            return true;
        }
        UNGUARD();
        atomic_store(&hurried, true); /* anew each time: whoever set it last may have set it back */
        PyThreadState *state = PyEval_SaveThread();
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        PyEval_RestoreThread(state);
        atomic_store(&hurried, false);
    }
    PyErr_SetString(PyExc_RuntimeError, "the collector of an earlier recording does not come back: try again later");
    return false;
}
