/* What the files of the fake driver share: result codes, objects, and the few calls between them.
 *
 * Handles are plain numbers, not addresses: kind, generation and slot. A destroyed or made-up handle is therefore found
 * out and answered with an error code, where the real driver may crash. In the ABI they are the pointers CUstream,
 * CUevent and so on.
 */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t Handle;
typedef int CUresult;
typedef int CUdevice;

#define EXPORT __attribute__((visibility("default")))
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    CONTEXT_IS_DESTROYED = 709,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908,
};

enum { MODE_GLOBAL = 0, MODE_THREAD_LOCAL = 1, MODE_RELAXED = 2 };       /* CUstreamCaptureMode */
enum { STATUS_NONE = 0, STATUS_ACTIVE = 1, STATUS_INVALIDATED = 2 };     /* CUstreamCaptureStatus */
enum { LEGACY_DEFAULT = 0, LEGACY = 1, PER_THREAD = 2 };                 /* stream handles that mean "this thread's" */
enum { MAX_DEVICES = 16, MAX_DEPTH = 64 };

/* settings.c: one double each, by name, from FAKE_CUDA_NAME in the environment or fake_set(). */
#define SETTINGS(S)                                                                                                \
    S(devices, 1)             /* how many GPUs; 0 makes cuInit fail with NO_DEVICE */                              \
    S(driver_version, 13000)  /* what cuDriverGetVersion says; newer functions are not found */                    \
    S(skew_ppm, 0)            /* how much faster than the host the device clock runs */                            \
    S(wander_ppm, 0)          /* amplitude of a sinusoid on the clock's rate */                                    \
    S(wander_period_s, 10)    /* its period */                                                                     \
    S(offset_ns, 1e12)        /* device time when the library was loaded; each further device starts 1e11 later */ \
    S(tick_ns, 32)            /* resolution of event timestamps */                                                 \
    S(submit_ns, 2000)        /* from a call to the earliest moment an idle device acts on it */                   \
    S(visible_ns, 0)          /* from a stamp to the earliest moment the host can see it */                        \
    S(kernel_ns, 20000)       /* duration of a kernel */                                                           \
    S(copy_ns, 5000)          /* duration of a copy or memset, plus bytes at the next */                           \
    S(copy_gbps, 20)          /* bytes a nanosecond */                                                             \
    S(null, 0)                /* 1: a record, or a question about captures, costs a call: for benchmarks */         \
    S(truth, 0)               /* how many event stamps to keep in the truth log; 0 is off */                       \
    S(reuse_handles, 0)       /* 1: a new object takes the very handle of a destroyed one, as real drivers do */

#define DECLARE(name, initial) double name;
extern struct Settings {
    SETTINGS(DECLARE)
} settings;
#undef DECLARE

/* objects.c */
typedef enum { CONTEXT = 1, STREAM, EVENT, MODULE, FUNCTION, GRAPH, EXEC, KINDS } Kind;

typedef struct {
    Handle handle;
    bool live;
    uint32_t generation;
    int32_t next_free;
} Header;

void *object_new(Kind kind);                 /* zeroed past its header; NULL when out of memory */
void *object_find(Kind kind, Handle handle); /* NULL unless live; safe for any number, takes no lock */
void object_free(Kind kind, void *object);
void object_each(Kind kind, void (*visit)(void *object, void *argument), void *argument);
extern _Atomic int64_t live_count[KINDS], made_count[KINDS]; /* those the program made: not a context's own streams */

/* clock.c */
int64_t host_now(void);                                /* CLOCK_MONOTONIC, ns */
int64_t device_time(CUdevice device, int64_t host_ns); /* unrounded; strictly one function of host time */
int64_t device_stamp(CUdevice device, int64_t host_ns);
void clock_start(void);
void clock_changed(CUdevice device, double skew_ppm, double wander_ppm, double period_s);
void wait_until(int64_t host_ns); /* without the lock */

/* calls.c: every entry point begins with ENTER: counting, errors on demand, and the rules common to all. */
enum { ANYTIME = 0, INIT = 1, CTX = 2 | INIT, UNSAFE = 4 };
enum {
#define F(symbol, name, since, rules) F_##symbol,
#include "functions.h"
#undef F
    FUNCTIONS
};
typedef struct {
    const char *symbol, *name;
    int since, rules;
    void *address;
} Function;
extern const Function functions[FUNCTIONS];
extern _Atomic uint64_t call_count[FUNCTIONS];
extern atomic_bool initialised;
extern atomic_bool null_is_per_thread; /* the bindings asked for the per-thread default stream */
CUresult enter(int function);
void calls_start(void);
#define ENTER(symbol)                             \
    do {                                          \
        CUresult refused = enter(F_##symbol);     \
        if (UNLIKELY(refused)) return refused;    \
    } while (0)

/* One lock for all state. LOCKED holds it to the end of the block. */
extern pthread_mutex_t lock;
static inline void unlock_at_end(int *unused) {
    (void)unused;
    pthread_mutex_unlock(&lock);
}
#define LOCKED                                                          \
    __attribute__((cleanup(unlock_at_end), unused)) int locked_ = 0;    \
    pthread_mutex_lock(&lock)

/* capture.c */
typedef enum { WORK, RECORD } NodeKind;
typedef struct {
    NodeKind kind;
    int64_t duration_ns; /* WORK */
    Handle event;        /* RECORD: an external event record, stamped by each launch */
} Node;
typedef struct {
    Node *items;
    size_t count, room;
} Nodes;
typedef struct Capture {
    struct Capture *next;
    uint64_t id;
    int mode;
    bool broken;
    const void *thread; /* the one that began it */
    Handle origin, graph;
    Nodes nodes;
} Capture;

/* context.c */
typedef struct {
    Header header;
    CUdevice device;
    unsigned flags;
    uint64_t id;
    bool primary;
    int retained;
    Handle legacy;         /* its legacy default stream */
    int64_t blocking_tail; /* latest end of work in any stream that the legacy one waits for */
} Context;

Context *context_current(void);
CUresult context_check(void); /* SUCCESS, INVALID_CONTEXT (none) or CONTEXT_IS_DESTROYED */

/* stream.c: an in-order queue, kept as the host time at which its last work ends. */
typedef struct {
    Header header;
    Handle context;
    bool legacy, nonblocking;
    bool counted; /* made by the program, not one that a context or a thread simply has */
    int priority;
    uint64_t id, syncs;
    int64_t tail_ns;
    Capture *capture;
    uint64_t capture_step; /* operations captured from it so far */
    bool joined;           /* entered a capture that began elsewhere, and must be waited for before it ends */
    uint64_t joined_step;  /* the step its origin has waited for */
} Stream;

CUresult stream_find(Handle handle, Stream **stream); /* resolves the handles that depend on the thread */
Stream *stream_new(Context *context, bool legacy, bool nonblocking, bool counted);
void stream_free(Stream *stream);
Handle stream_public_handle(const Stream *stream);
int64_t stream_start(Stream *stream);              /* when work submitted now would begin */
void stream_advance(Stream *stream, int64_t end);  /* its last work now ends then */
CUresult submit(Handle handle, int64_t duration_ns);
void *thread_token(void); /* an address that is this thread's alone */

Capture *captures_ongoing(void);
CUresult capture_unsafe_call(void);                               /* the rule for potentially unsafe calls */
CUresult capture_of(Stream *stream, Capture **capture);           /* IMPLICIT and INVALIDATED as for a submission */
CUresult capture_conflict(Stream *stream);                        /* for a wait or query on the stream itself */
void capture_break(Capture *capture);
CUresult nodes_add(Nodes *nodes, Node node);
bool nodes_copy(Nodes *to, const Nodes *from);

/* event.c */
typedef struct {
    Header header;
    Handle context;
    unsigned flags;
    uint64_t records;
    Handle stream;
    int64_t stamp_ns; /* true host time; 0 when never recorded */
    uint64_t capture_id, capture_step;
    Handle capture_stream; /* last recorded in a capture: not 0 */
} Event;

/* truth.c */
typedef struct {
    uint64_t number, event, event_record, stream, context, device;
    int64_t call_ns, host_ns, device_ns;
} Stamp;
void truth_add(const Event *event, CUdevice device, int64_t call_ns);
void truth_start(void);
Stamp event_stamp(const Event *event, CUdevice device, int64_t call_ns);
void event_stamped(Event *event, const Stream *stream, int64_t stamp_ns, int64_t call_ns);

#endif
