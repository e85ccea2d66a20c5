// Records both ends of each of torch's operators, forward and backward, on whichever thread runs it; and calls Python where
// a node of a backward pass begins that lies in another stretch of nodes than the one before.
//
// Built against the installed torch by observer.py, which says what it is called with. It includes nothing of Python:
// what it calls is of the stable ABI, and Python's headers need not be there.
//
// An operator runs without the GIL. Where the compiled twin is, it is begun and ended by its functions, which need none
// either (gputrace/hot/native/operators.c); else, and where it has a GPU window or args, by Python, and each end takes the
// GIL. A thread that Python does not know is left alone: it would get a new identity with every call.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

extern "C" {
typedef struct _object PyObject;
int PyGILState_Ensure(void);
void PyGILState_Release(int);
void *PyGILState_GetThisThreadState(void);
PyObject *PyObject_CallFunction(PyObject *, const char *, ...);
void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);
void PyErr_Fetch(PyObject **, PyObject **, PyObject **);
void PyErr_Restore(PyObject *, PyObject *, PyObject *);
int PyArg_ParseTuple(PyObject *, const char *, ...);
int Py_AddPendingCall(int (*)(void *), void *);
int PyCapsule_IsValid(PyObject *, const char *);
void *PyCapsule_GetPointer(PyObject *, const char *);
}

namespace {

// As in gputrace/hot/native/operators.c.
constexpr char operators_name[] = "gputrace.hot._hot.OPERATORS";
constexpr std::uint64_t ELSEWHERE = UINT64_MAX;
struct Operators {
    std::uint32_t (*name)(const char *, std::size_t, std::uint32_t *);
    std::uint64_t (*begin)(std::uint32_t, std::uint32_t);
    void (*end)(std::uint64_t, std::uint32_t);
};

// What Python is called with. Set before callbacks are added, and never freed: one may still be under way at the end.
struct Watch {
    PyObject *opened, *closed;
    const Operators *operators; // or NULL
    bool every;
};
std::atomic<Watch *> watch{nullptr};
thread_local bool inside = false; // our own Python runs: what it may do is not shown

struct Span : at::ObserverContext {
    Span(PyObject *span, PyObject *closed) : span(span), closed(closed) {}
    Span(const Operators *operators, std::uint64_t number, std::uint32_t generation)
        : operators(operators), number(number), generation(generation) {}
    PyObject *span = nullptr, *closed = nullptr; // Python's, or:
    const Operators *operators = nullptr;
    std::uint64_t number = 0;
    std::uint32_t generation = 0;
};

// A name, and its id in the recording of a generation. One of no more than fits here: others are Python's.
struct Known {
    std::uint32_t hash, generation, id;
    char name[84];
};
constexpr std::size_t KNOWN = 512, PROBES = 4;
thread_local Known known[KNOWN];

// Where a name is among this thread's, or may be put; NULL where it is too long.
Known *find(const char *name) {
    std::uint32_t hash = 2166136261u;
    const char *at = name;
    for (; *at; at++) hash = (hash ^ static_cast<unsigned char>(*at)) * 16777619u;
    auto size = static_cast<std::size_t>(at - name) + 1;
    if (size > sizeof known->name) return nullptr;
    Known *place = nullptr;
    for (std::size_t i = 0; i < PROBES; i++) {
        Known *each = &known[(hash + i) % KNOWN];
        if (each->id && each->hash == hash && !std::memcmp(each->name, name, size)) return each;
        if (!place && !each->id) place = each;
    }
    if (!place) place = &known[hash % KNOWN];
    *place = {hash, 0, 0, {}};
    std::memcpy(place->name, name, size);
    return place;
}

struct Error {
    PyObject *type, *value, *trace;
};

int raise(void *argument) {
    auto error = static_cast<Error *>(argument);
    PyErr_Restore(error->type, error->value, error->trace);
    delete error;
    return -1;
}

// The GIL, and what exception was under way put back at the end. What a signal's handler raised inside is the program's:
// it is raised in it as soon as its own code runs.
struct Held {
    Held() : state(PyGILState_Ensure()) {
        inside = true;
        PyErr_Fetch(&before.type, &before.value, &before.trace);
    }
    ~Held() {
        auto error = new Error();
        PyErr_Fetch(&error->type, &error->value, &error->trace);
        if (!error->type || Py_AddPendingCall(raise, error)) delete error;
        PyErr_Restore(before.type, before.value, before.trace);
        inside = false;
        PyGILState_Release(state);
    }
    int state;
    Error before;
};

// The tensor that an argument is or begins with; NULL if it is none, or of the program's own kind, which would answer by
// the program's own code.
const at::Tensor *first_tensor(const c10::IValue &value, at::Tensor &kept) {
    const at::Tensor *tensor = &kept;
    if (value.isTensor()) {
        tensor = &value.toTensor();
    } else if (value.isTensorList() && value.toTensorList().size()) {
        kept = value.toTensorList().get(0);
    } else {
        return nullptr;
    }
    return tensor->defined() && !tensor->key_set().has(c10::DispatchKey::Python) ? tensor : nullptr;
}

// Around each node of a backward pass, whose own name follows at once.
constexpr char engine[] = "autograd::engine::evaluate_function: ";

// What moves between devices, or has the host wait for one: those that are shown where not all are.
enum Kind { OTHER, COPY, SCALAR, WAITS };

Kind kind_of(const char *name) {
    if (std::strncmp(name, "aten::", 6)) return OTHER;
    name += 6;
    if (!std::strcmp(name, "copy_")) return COPY;
    if (!std::strcmp(name, "_local_scalar_dense")) return SCALAR;
    if (!std::strcmp(name, "nonzero") || !std::strcmp(name, "equal")) return WAITS;
    return OTHER;
}

std::unique_ptr<at::ObserverContext> open_span(const at::RecordFunction &function) {
    Watch *now = watch.load(std::memory_order_acquire);
    if (!now || inside) return nullptr;
    const char *name = function.name();
    if (!std::strncmp(name, engine, sizeof engine - 1)) return nullptr;
    Kind kind = kind_of(name);
    if (kind == OTHER && !now->every) return nullptr;

    auto inputs = function.inputs();
    int device = -1;
    at::Tensor kept;
    for (const auto &value : inputs) {
        const at::Tensor *tensor = first_tensor(value, kept);
        if (tensor && tensor->is_cuda()) {
            device = tensor->get_device();
            break;
        }
    }
    long long bytes = -1;
    std::string from, to;
    int non_blocking = 0;
    const at::Tensor *first = nullptr, *second = nullptr;
    at::Tensor other;
    if ((kind == COPY || kind == SCALAR) && inputs.size()) first = first_tensor(inputs[0], kept);
    if (kind == COPY && inputs.size() > 2) second = first_tensor(inputs[1], other);
    if (first && second) {
        bytes = first->unsafeGetTensorImpl()->has_symbolic_sizes_strides()
                    ? -1
                    : static_cast<long long>(first->numel()) * static_cast<long long>(first->element_size());
        from = second->device().str();
        to = first->device().str();
        non_blocking = inputs[2].isBool() && inputs[2].toBool();
    } else if (first && kind == SCALAR) {
        bytes = static_cast<long long>(first->element_size());
        from = first->device().str();
        to = "cpu";
    }

    bool plain = now->operators && device < 0 && to.empty();
    Known *here = plain ? find(name) : nullptr;
    if (here && here->id) {
        std::uint64_t number = now->operators->begin(here->id, here->generation);
        if (!number) return nullptr;
        if (number != ELSEWHERE) return std::make_unique<Span>(now->operators, number, here->generation);
    }
    if (!PyGILState_GetThisThreadState()) return nullptr;
    Held held;
    if (here) here->id = now->operators->name(name, std::strlen(name), &here->generation);
    PyObject *span = PyObject_CallFunction(
        now->opened, "siiLssi", name, device, kind == WAITS, bytes, from.c_str(), to.c_str(), non_blocking);
    return span ? std::make_unique<Span>(span, now->closed) : nullptr;
}

// An exception from here would be printed to the program's standard error.
std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction &function) {
    try {
        return open_span(function);
    } catch (...) {
        return nullptr;
    }
}

void end(const at::RecordFunction &, at::ObserverContext *context) {
    auto span = static_cast<Span *>(context);
    if (!span) return;
    if (span->operators) return span->operators->end(span->number, span->generation);
    Held held;
    PyObject *nothing = PyObject_CallFunction(span->closed, "O", span->span);
    if (nothing) Py_DecRef(nothing);
    Py_DecRef(span->span);
}

// Called with the thread that made a node, and the node's number there. Never freed, as a watch.
std::atomic<PyObject *> moved{nullptr};
std::atomic<unsigned long long> generation{0};

// What Python said last, on this thread: it stays the same between two numbers.
struct Stretch {
    unsigned long long generation, thread;
    long long begin, end;
};
thread_local Stretch here{0, 0, 0, 0};

std::unique_ptr<at::ObserverContext> node_begins(const at::RecordFunction &function) {
    PyObject *call = moved.load(std::memory_order_acquire);
    long long number = function.seqNr();
    unsigned long long thread = function.forwardThreadId(), now = generation.load(std::memory_order_acquire);
    // A gradient's accumulation has no number: it is its neighbour's.
    if (!call || inside || number < 0 || !thread) return nullptr;
    if (here.generation == now && here.thread == thread && number >= here.begin && number < here.end) return nullptr;
    if (!PyGILState_GetThisThreadState()) return nullptr;
    Held held;
    here = {now, thread, number, number + 1};
    PyObject *stretch = PyObject_CallFunction(call, "KL", thread, number);
    if (!stretch) return nullptr;
    long long begin, end;
    if (PyArg_ParseTuple(stretch, "LL", &begin, &end)) {
        here.begin = begin;
        here.end = end;
    } else {
        PyObject *type, *value, *trace; // None: Python has stopped looking
        PyErr_Fetch(&type, &value, &trace);
        Py_DecRef(type);
        Py_DecRef(value);
        Py_DecRef(trace);
    }
    Py_DecRef(stretch);
    return nullptr;
}

} // namespace

extern "C" unsigned long long gputrace_watch_nodes(PyObject *call) {
    Py_IncRef(call);
    generation.fetch_add(1);
    moved.store(call, std::memory_order_release);
    auto callback = at::RecordFunctionCallback(node_begins);
    callback.scopes({at::RecordScope::BACKWARD_FUNCTION});
    return at::addGlobalCallback(callback);
}

extern "C" void gputrace_stop_nodes(unsigned long long handle) {
    moved.store(nullptr, std::memory_order_release);
    at::removeCallback(handle);
}

extern "C" void gputrace_look_again(void) { generation.fetch_add(1, std::memory_order_acq_rel); }

// What nodes that this thread makes will name it by.
extern "C" unsigned long long gputrace_thread(void) { return at::RecordFunction::currentThreadId(); }

extern "C" unsigned long long gputrace_observe(PyObject *opened, PyObject *closed, PyObject *operators, int every) {
    Py_IncRef(opened);
    Py_IncRef(closed);
    bool compiled = PyCapsule_IsValid(operators, operators_name);
    auto table = compiled ? static_cast<const Operators *>(PyCapsule_GetPointer(operators, operators_name)) : nullptr;
    watch.store(new Watch{opened, closed, table, every != 0}, std::memory_order_release);
    auto callback = at::RecordFunctionCallback(begin, end).needsInputs(true);
    callback.scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
    return at::addGlobalCallback(callback);
}

extern "C" void gputrace_stop(unsigned long long handle) {
    watch.store(nullptr, std::memory_order_release);
    at::removeCallback(handle);
}
