/* The module `gputrace.hot._hot`: the compiled twin of the hot path. See native/hot.h for the map of its files. */

#include "native/hot.h"

static int start(PyObject *module) {
    core.queues = PyDict_New();
    core.all_queues = PyList_New(0);
    core.generation = 1;
    if (!core.queues || !core.all_queues || !text_start() || !streams_start(module) || !spans_start(module)) return -1;
    return PyModule_AddFunctions(module, span_functions) || PyModule_AddFunctions(module, collect_functions) ? -1 : 0;
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
