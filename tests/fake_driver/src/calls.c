/* What every call goes through first: it is counted, may fail or be delayed on demand, and obeys the common rules.
 * Also cuInit, the error names and cuGetProcAddress, from which the bindings take every other function.
 */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

#define F(symbol, name, since, rules) EXPORT CUresult symbol();
#include "functions.h"
#undef F

const Function functions[FUNCTIONS] = {
#define F(symbol, name, since, rules) {#symbol, name, since, rules, (void *)symbol},
#include "functions.h"
#undef F
};

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
_Atomic uint64_t call_count[FUNCTIONS];
atomic_bool initialised;
atomic_bool null_is_per_thread;

typedef struct {
    int64_t countdown; /* calls that still succeed before the first that fails */
    int64_t times;     /* how many then fail; -1 for ever */
    CUresult code;
    bool lose_device;
} Fault;

static Fault faults[FUNCTIONS];
static _Atomic int64_t delays_ns[FUNCTIONS];
static _Atomic CUresult lost;
static atomic_bool forked;
static atomic_bool alarmed; /* any of the above: the only thing an undisturbed call looks at */

/* A lost device does not keep a thread from changing its context and its capture mode. */
static bool survives(const char *name) {
    return !strncmp(name, "cuDevice", 8) || !strncmp(name, "cuThread", 8) ||
           (!strncmp(name, "cuCtx", 5) && strcmp(name, "cuCtxSynchronize"));
}

static CUresult disturbed(int function) {
    if (delays_ns[function]) wait_until(host_now() + delays_ns[function]);
    if (functions[function].rules == ANYTIME && function != F_cuInit) return SUCCESS;
    /* A child of fork() cannot use CUDA that its parent had initialised. */
    if (forked) return NOT_INITIALIZED;
    if (lost && !survives(functions[function].name)) return lost;
    LOCKED;
    Fault *fault = &faults[function];
    if (!fault->times) return SUCCESS;
    if (fault->countdown-- > 0) return SUCCESS;
    if (fault->times > 0) fault->times--;
    if (fault->lose_device) lost = fault->code;
    return fault->code;
}

CUresult enter(int function) {
    int rules = functions[function].rules;
    atomic_fetch_add_explicit(&call_count[function], 1, memory_order_relaxed);
    if (UNLIKELY(atomic_load_explicit(&alarmed, memory_order_relaxed))) {
        CUresult code = disturbed(function);
        if (code) return code;
    }
    if ((rules & INIT) && !atomic_load_explicit(&initialised, memory_order_relaxed)) return NOT_INITIALIZED;
    if ((rules & CTX) == CTX) {
        CUresult code = context_check();
        if (code) return code;
    }
    return rules & UNSAFE && UNLIKELY(captures_ongoing() != NULL) ? capture_unsafe_call() : SUCCESS;
}

/* By a function's symbol (cuEventElapsedTime_v2) or the name it is asked for by (cuEventElapsedTime: all of them). */
static int each_named(const char *name, void (*apply)(int function, void *argument), void *argument) {
    int found = 0;
    for (int function = 0; function < FUNCTIONS; function++) {
        if (strcmp(functions[function].symbol, name) && strcmp(functions[function].name, name)) continue;
        apply(function, argument);
        found++;
    }
    return found;
}

static void set_fault(int function, void *argument) { faults[function] = *(Fault *)argument; }
static void set_delay(int function, void *argument) { delays_ns[function] = *(int64_t *)argument; }

/* The nth call from now (1 is the next) and times - 1 after it return code; times -1 is for ever. Returns how many
 * functions bear the name: 0 is a mistake. */
EXPORT int fake_fail(const char *name, int64_t nth, CUresult code, int64_t times, int lose_device) {
    LOCKED;
    Fault fault = {.countdown = nth - 1, .times = times, .code = code, .lose_device = lose_device};
    alarmed = true;
    return each_named(name, set_fault, &fault);
}

EXPORT int fake_delay(const char *name, int64_t ns) {
    LOCKED;
    alarmed = true;
    return each_named(name, set_delay, &ns);
}

/* Every call that needs the device returns code from now on, as after a fault on it; 0 heals it. */
EXPORT void fake_lose(CUresult code) {
    alarmed = true;
    lost = code;
}

EXPORT void fake_heal(void) {
    LOCKED;
    memset(faults, 0, sizeof faults);
    memset(delays_ns, 0, sizeof delays_ns);
    lost = SUCCESS;
    alarmed = (bool)forked;
}

static void add_calls(int function, void *argument) { *(uint64_t *)argument += call_count[function]; }

EXPORT uint64_t fake_calls(const char *name) {
    uint64_t total = 0;
    return each_named(name, add_calls, &total) ? total : UINT64_MAX;
}

EXPORT const char *fake_function(int index) { return index < FUNCTIONS ? functions[index].symbol : NULL; }
EXPORT uint64_t fake_calls_at(int index) { return call_count[index]; }

EXPORT void fake_reset_calls(void) { memset(call_count, 0, sizeof call_count); }

/* "NAME:NTH:CODE[:TIMES[:1 to lose the device]];..." and "NAME:NS;..." */
static void from_environment(const char *variable, bool fail) {
    const char *text = getenv(variable);
    if (!text) return;
    char *copy = strdup(text), *rest = copy, *item;
    while ((item = strsep(&rest, ";"))) {
        char *name = strsep(&item, ":");
        int64_t numbers[4] = {1, fail ? 999 : 0, 1, 0};
        for (int i = 0; i < 4 && item; i++) numbers[i] = atoll(strsep(&item, ":"));
        if (fail) fake_fail(name, numbers[0], (CUresult)numbers[1], numbers[2], (int)numbers[3]);
        else fake_delay(name, numbers[0]);
    }
    free(copy);
}

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void in_parent(void) { pthread_mutex_unlock(&lock); }
static void in_child(void) {
    pthread_mutex_unlock(&lock);
    memset(call_count, 0, sizeof call_count);
    if (initialised) forked = alarmed = true;
}

void calls_start(void) {
    from_environment("FAKE_CUDA_FAIL", true);
    from_environment("FAKE_CUDA_DELAY", false);
    pthread_atfork(before_fork, in_parent, in_child);
}

EXPORT CUresult cuInit(unsigned flags) {
    ENTER(cuInit);
    if (flags) return INVALID_VALUE;
    if (settings.devices < 1) return NO_DEVICE;
    initialised = true;
    return SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
    ENTER(cuDriverGetVersion);
    *version = (int)settings.driver_version;
    return SUCCESS;
}

static const struct {
    CUresult code;
    const char *name;
} names[] = {
    {0, "CUDA_SUCCESS"},
    {1, "CUDA_ERROR_INVALID_VALUE"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY"},
    {3, "CUDA_ERROR_NOT_INITIALIZED"},
    {100, "CUDA_ERROR_NO_DEVICE"},
    {101, "CUDA_ERROR_INVALID_DEVICE"},
    {201, "CUDA_ERROR_INVALID_CONTEXT"},
    {400, "CUDA_ERROR_INVALID_HANDLE"},
    {401, "CUDA_ERROR_ILLEGAL_STATE"},
    {500, "CUDA_ERROR_NOT_FOUND"},
    {600, "CUDA_ERROR_NOT_READY"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
    {719, "CUDA_ERROR_LAUNCH_FAILED"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
    {907, "CUDA_ERROR_CAPTURED_EVENT"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
    {999, "CUDA_ERROR_UNKNOWN"},
};

static CUresult name_of(CUresult code, const char **text) {
    *text = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code) *text = names[i].name;
    return *text ? SUCCESS : INVALID_VALUE;
}

EXPORT CUresult cuGetErrorName(CUresult code, const char **text) {
    ENTER(cuGetErrorName);
    return name_of(code, text);
}

EXPORT CUresult cuGetErrorString(CUresult code, const char **text) {
    ENTER(cuGetErrorString);
    return name_of(code, text);
}

/* The driver's private tables. NVRTC looks for one, and crashes where the function itself is missing. */
EXPORT CUresult cuGetExportTable(const void **table, const void *id) {
    ENTER(cuGetExportTable);
    (void)id;
    *table = NULL;
    return NOT_FOUND;
}

/* The newest form of the function that is no newer than the version asked for, nor than this driver. */
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status) {
    enum { PER_THREAD_DEFAULT_STREAM = 2, FOUND = 0, NO_SUCH_NAME = 1, VERSION_TOO_OLD = 2 };
    ENTER(cuGetProcAddress_v2);
    int best = -1, result = NO_SUCH_NAME;
    if (flags & PER_THREAD_DEFAULT_STREAM) null_is_per_thread = true;
    for (int function = 0; function < FUNCTIONS; function++) {
        if (strcmp(functions[function].name, name)) continue;
        if (functions[function].since > version || functions[function].since > settings.driver_version) {
            if (best < 0) result = VERSION_TOO_OLD;
        } else if (best < 0 || functions[function].since > functions[best].since) {
            best = function;
            result = FOUND;
        }
    }
    *address = best < 0 ? NULL : functions[best].address;
    if (status) *status = result;
    return SUCCESS;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **address, int version, uint64_t flags) {
    CUresult code = cuGetProcAddress_v2(name, address, version, flags, NULL);
    return code || *address ? code : NOT_FOUND;
}
