/* The module `gputrace.hot._hot`: the compiled twin of the hot path. See native/hot.h for the map of its files. */

#include "native/hot.h"

static bool started;

/* There is one state a process. Another interpreter in it is refused and gets the pure twin; a second import, after
 * somebody emptied sys.modules, gets the same types and functions. */
static int start(PyObject *module) {
    if (PyInterpreterState_GetID(PyInterpreterState_Get())) {
        PyErr_SetString(PyExc_ImportError, "it works in a process's first interpreter alone");
        return -1;
    }
    if (!started) {
        core.queues = PyDict_New();
        core.all_queues = PyList_New(0);
        core.generation = 1;
        if (!core.queues || !core.all_queues || !text_start() || !streams_start() || !spans_start()) return -1;
        started = true;
    }
    static PyObject *calls, *operators;
    if (!calls && !(calls = calls_start())) return -1;
    if (!operators && !(operators = operators_start()) && PyErr_Occurred()) return -1;
    if (PyModule_AddObjectRef(module, "OPERATORS", operators ? operators : Py_None)) return -1;
    PyObject *const types[] = {calls, (PyObject *)span_type, (PyObject *)window_type, (PyObject *)off_type, (PyObject *)queue_type, (PyObject *)device_type};
    static const char *const type_names[] = {"Calls", "Span", "Window", "Off", "StreamQueue", "Device"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (PyModule_AddObjectRef(module, type_names[i], types[i])) return -1;
    if (PyModule_AddIntConstant(module, "INTERFACE", INTERFACE)) return -1;
    PyMethodDef *const functions[] = {span_functions, state_functions, collect_functions, window_functions};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (PyModule_AddFunctions(module, functions[i])) return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, start},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_hot", "The compiled twin of the hot path.", 0, NULL, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__hot(void) {
    return PyModuleDef_Init(&definition);
}
