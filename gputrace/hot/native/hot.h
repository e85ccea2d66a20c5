/* The compiled twin of the hot path: what its files share.
 *
 *   text.c      names and arguments as bytes
 *   rings.c     where host edges are kept until they are written, and found after a crash
 *   spans.c     the program's side: span, window, instant, counter
 *   calls.c     Python's function calls as slices
 *   operators.c slices that a library of another language begins and ends without the GIL
 *   streams.c   devices, their events, and the queues of windows on streams
 *   lanes.c     which lane a slice goes to, and what is open on it
 *   perfetto.c  edges to Perfetto's wire format
 *   turns.c     which recording a call of the collector is of
 *   collect.c   the collector's side of the host: edges to slices
 *   windows.c   the collector's side of a device: windows that it has reached to slices
 *   state.c     whether and what is recorded: a recording's begin and end
 *   ../_hot.c   the module
 *
 * `gputrace/hot/pure.py`, `calls.py`, `drain.py`, `gputrace/timeline.py` and `exporters/sequence.py` say the same in Python, and
 * why;
 * here is said only what C makes different. Times are ns of CLOCK_MONOTONIC, device times ns of the device's own clock.
 *
 * Who may touch what: the program's side runs with the GIL, the collector's without. Where both meet, one side writes and
 * the other reads behind one atomic store (a record's tag, a queue's count, a chain of windows); the pieces of the rings
 * have a mutex. An operator's edges are put by its own thread without the GIL: a ring that may get such has a lock, which
 * whoever puts something takes, and what is read for it is atomic. Without a GIL (free-threaded Python) the program's side
 * takes `core_lock` instead: see GUARD.
 */
#ifndef GPUTRACE_HOT_H
#define GPUTRACE_HOT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#ifdef Py_GIL_DISABLED
/* Python's own kind: who waits for one of pthread's cannot be stopped by a collection of garbage, which then waits, too. */
extern PyMutex core_lock;
#define GUARD() PyMutex_Lock(&core_lock)
#define UNGUARD() PyMutex_Unlock(&core_lock)
#else
#define GUARD() ((void)0)
#define UNGUARD() ((void)0)
#endif

/* Headers of 3.12 and later count no reference to None, whichever Python the extension is for. For the same reason no call
 * here has a `#` in its format: what that means depends on the headers, and what is asked for by it on the Python. */
#define RETURN_NONE return Py_NewRef(Py_None)
#define FASTCALL(function) ((PyCFunction)(void (*)(void))(function))

/* Room for one more of `count` items of `size` bytes: twice as much where there is none. `items` is the address of the
 * pointer to them. False where memory ran out; nothing has changed then. */
static inline bool room_for_one(void *items, size_t *room, size_t count, size_t size) {
    if (likely(count < *room)) return true;
    size_t more = *room ? 2 * *room : 16;
    void *moved;
    memcpy(&moved, items, sizeof moved);
    if (!(moved = realloc(moved, more * size))) return false;
    memcpy(items, &moved, sizeof moved);
    *room = more;
    return true;
}

/* text.c */

enum { MOST_NAMES = 1 << 14, LONGEST_NAME_KEPT = 1024 };
enum { LONGEST_NAME = 1 << 17, MOST_ARGS = 1 << 18, ARG_COST = 16 }; /* characters: see arguments.py */
enum { ARG_NONE, ARG_BOOL, ARG_INT, ARG_DOUBLE, ARG_TEXT, ARG_WIDE, ARG_FLOW };
/* ARG_WIDE: an int beyond int64, in hexadecimal. ARG_FLOW: no fact, a further flow id (model.py, `Flow`). */
enum { NAME_INLINE = 0, NAME_ERROR, NAME_ENDED, NAME_GPU, NAME_PLACEMENT, NAME_CLOCK, NAME_LEFT_OUT, FIRST_NAME };

/* A name that was met before; never freed. `generation`: of the recording whose ring defines it. */
struct name {
    PyObject *object;
    uint32_t generation, length;
    char bytes[]; /* UTF-8, lone surrogates as they come ("surrogatepass") */
};

struct text {
    const char *bytes;
    uint32_t length;
};

/* Arguments, or a name that is not kept, as the ring's payload has them. Shared, by count. */
struct blob {
    _Atomic uint32_t count;
    uint32_t length;
    uint8_t bytes[];
};

/* What a record or a window is called: an id, or text (id 0). */
struct label {
    uint32_t id;
    struct text text;
};

/* Arguments as they lie somewhere: a payload without its name. */
struct args {
    const uint8_t *at, *end;
};

/* One argument. */
struct arg {
    struct label key;
    int type;
    int64_t integer;
    double real;
    struct text text;
};

extern struct name *names[MOST_NAMES];

bool text_start(void);
/* The id of a str, NAME_INLINE where it is not kept; -1 with an exception set. */
int64_t name_id(PyObject *name);
/* A str's bytes; `keep` is a new reference to whatever holds them. False with an exception set. */
bool text_of(PyObject *string, struct text *out, PyObject **keep);
PyObject *text_object(struct text text);
PyObject *label_object(struct label label);
struct text label_text(struct label label);
struct blob *blob_make(const void *bytes, size_t length);
struct blob *blob_share(struct blob *blob);
void blob_drop(struct blob *blob);
/* Keyword arguments as a blob. NULL with `*ok` true where there is nothing to keep. */
struct blob *blob_of_args(PyObject *const *values, PyObject *kwnames, bool *ok);
struct blob *blob_of_text_args(int count, const uint32_t *keys, const struct text *values);
struct blob *blob_of_error(struct text said); /* the arguments {"error": said} */
/* A span's arguments for its window: without what the host's slice follows. A new reference; NULL where there are none. */
struct blob *blob_of_window(struct blob *args);
bool arg_next(struct args *args, struct arg *out);
PyObject *args_object(const struct args *views, int count);
uint64_t text_hash(struct text text, uint64_t seed);

/* rings.c */

enum { PIECE_BYTES = 1 << 16, PIECE_HEAD = 64, SLOT = 32, MOST_SLOTS = 0xffff };
enum { PIECE_FREE, PIECE_EDGES, PIECE_NAMES, PIECE_THREADS, PIECE_OPEN };
enum { RECORD_BEGIN = 1, RECORD_END, RECORD_INSTANT, RECORD_SAMPLE, RECORD_FILL = 255 };
enum { HAS_STREAM = 1, IS_DOUBLE = 1 };
#define EXPLICIT_WINDOW UINT64_MAX /* the scope of what nests in nothing */

/* The ring file's header. */
struct ring_header {
    char magic[8];
    uint32_t version, piece_bytes;
    _Atomic uint64_t committed, pending;
    uint64_t length[2];
    uint64_t tracks;
    uint32_t pid, name_length;
    char name[512]; /* the process's */
    uint64_t dropped_spans, dropped_windows;
};

struct piece_head {
    _Atomic uint32_t kind;
    uint32_t units, thread, unused;
    uint64_t sequence, consumed_old, consumed_new, epoch_new, spare[2];
};

struct record {
    _Atomic uint64_t tag; /* kind, flags << 8, slots << 16, name << 32: stored last */
    int64_t ns;
    uint64_t number, scope;
};

struct open_entry {
    _Atomic uint64_t number;
    uint32_t thread, track;
    uint64_t begin_epoch, end_epoch, scope;
};

struct thread_entry {
    _Atomic uint32_t number;
    uint32_t tid, track;
    _Atomic uint32_t length;
    uint64_t announced, spare;
    char name[96];
};

/* One piece of a ring, as this process knows it. */
struct piece {
    struct piece *_Atomic next; /* of the same thread, or in a list */
    uint8_t *base;
    uint32_t units;
};

bool rings_start(const char *path, uint64_t most_bytes, struct text process_name);
void rings_forget(void);
void rings_stop(void); /* remove the file: everything is in the shard */
struct piece *piece_take(uint32_t kind, uint32_t units, uint32_t thread, uint64_t sequence, bool beyond_bound);
void pieces_free(struct piece *first); /* what this process knows of them, not their memory */
bool ring_define_name(uint32_t id);
uint64_t rings_bytes(void);
bool rings_filling(void); /* an eighth of what there may be is in use */
bool rings_over(void);
const char *rings_trouble(void); /* why nothing survives a crash, NULL if all is well */
struct thread_entry *thread_entry_take(uint32_t number, uint32_t tid, struct text name);
void thread_entry_name(struct thread_entry *entry, struct text name);
struct open_entry *open_entry_take(void);
struct ring_header *ring_header(void);
uint64_t ring_epoch(void); /* the one being written */
bool ring_commit_is_long(void);
void ring_commit(void);    /* it is in the shard: what was given back by then may be used again */
/* Give back, once the epoch being written is in the shard. */
void piece_give(struct piece *piece);
void thread_entry_give(struct thread_entry *entry);
void open_entry_end(struct open_entry *entry);

/* lanes.c */

struct map_slot {
    uint64_t a, b, value;
    bool used;
};

/* (a, b) to a value. Open addressing, half full at most; forgets by shifting back. */
struct map {
    struct map_slot *slots;
    size_t capacity, count;
};

uint64_t *map_find(const struct map *map, uint64_t a, uint64_t b);
bool map_put(struct map *map, uint64_t a, uint64_t b, uint64_t value);
bool map_take(struct map *map, uint64_t a, uint64_t b, uint64_t *value);
void map_clear(struct map *map);

struct sequence;

/* A slice that is open, and what the ring says of it: a host thread's alone. */
struct open_item {
    uint64_t item;
    struct open_entry *entry;
};

/* One track, and what is open on it, outermost first. */
struct lane {
    struct sequence *sequence; /* encodes it, or: */
    PyObject *edges;           /* the list its edges go to, for an exporter in Python */
    PyObject *track;
    uint32_t track_id;
    size_t index;
    struct open_item *stack;
    size_t depth, room;
    uint64_t key_a, key_b; /* whose scoped spans may nest here now */
    bool keyed, touched;
    int64_t last_ns;
    struct lane *next_touched;
};

enum { DEEPEST = 512, CLOSE_NS = 1000 };

struct lanes {
    struct lane **lanes;
    size_t count, room;
    size_t *empty; /* a heap of the lanes with nothing open */
    size_t empty_count, empty_room;
    struct map owned;   /* by key: the lane whose innermost span is of that key */
    struct map lane_of; /* by open item */
    PyObject *open_lane; /* (index) -> what lane_open reads */
    struct thread *thread; /* whose they are, NULL for a stream's */
};

enum edge_kind { EDGE_BEGIN = 1, EDGE_END, EDGE_INSTANT, EDGE_SLICE = 5 }; /* 4, a counter's value, is Python's to write */
enum { MOST_VIEWS = 8 };

/* What is written: as `gputrace.model.Edge`. The arguments are the views' in order, a later one's instead of an earlier. */
struct edge {
    int64_t ts, end_ns;
    enum edge_kind kind;
    struct label name;
    uint64_t flow;
    struct args views[MOST_VIEWS];
    int view_count;
};

struct collecting;
struct lane *lane_make(PyObject *described, size_t index);
void lane_free(struct lane *lane);
struct lane *lanes_choose(struct collecting *c, struct lanes *set, bool keyed, uint64_t a, uint64_t b, int64_t ts);
bool lanes_begin(struct collecting *c, struct lanes *set, struct lane *lane, uint64_t item, bool keyed, uint64_t a, uint64_t b);
int64_t lanes_end(struct collecting *c, struct lanes *set, uint64_t item, int64_t ts, const struct args *args, int count);
bool lane_cut_down_to(struct collecting *c, struct lanes *set, struct lane *lane, uint64_t item, int64_t ts);
bool lane_push(struct collecting *c, struct lane *lane, uint64_t item, struct thread *thread);
void lane_pop(struct lane *lane);
bool lane_emit(struct collecting *c, struct lane *lane, const struct edge *edge);
void lanes_free(struct lanes *set);

/* perfetto.c */

struct buffer {
    uint8_t *data;
    size_t length, room;
};

struct sequence *sequence_make(PyObject *native);
void sequence_free(struct sequence *sequence);
bool sequence_encode(struct sequence *sequence, struct buffer *out, const struct edge *edge);

/* spans.c */

enum thread_life { THREAD_LIVES, THREAD_ENDED, THREAD_FORGOTTEN }; /* by the system, by us: whoever comes second frees what is left */

/* A function call that is open. `key`: its frame where frames can be suspended, else its code; `number`: its slice's, 0
 * where it is not drawn. One that `waits` is not in the ring yet, as it may prove too short: its begin, its name, of a name
 * that is not kept what `label.text` points to, and its arguments. */
struct open_call {
    uintptr_t key;
    uint64_t number;
    bool waits;
    int64_t begin_ns;
    struct label label;
    struct blob *name_text, *args;
};

/* Handles below mean another stream on each context. */
enum { AMBIENT_HANDLES = 3 };

/* One host thread that opened a span. Its ring is written with the GIL, by whoever closes a span of its, and read by the
 * collector. */
struct thread {
    struct thread *_Atomic next;
    uint32_t number, tid;
    uint32_t generation;
    uint32_t open; /* spans that hold it */
    _Atomic uint32_t scoped; /* of these, the ones that nest in what can be suspended */
    bool is_shared;          /* what is put may be put without the GIL, and so behind the lock: */
    _Atomic bool taken;
    _Atomic enum thread_life life;
    PyObject *name;
    /* the program's side */
    struct ambient {
        PyObject *queue;
        unsigned long long context_id;
    } ambient[AMBIENT_HANDLES]; /* what they meant last */
    PyObject *last_stream; /* the binding's object that was passed last, and its queue: both kept */
    struct queue *last_queue;
    struct open_call *calls; /* innermost last */
    size_t calls_open, calls_room;
    _Atomic size_t calls_waiting;
    int64_t least_call_ns; /* a shorter one is not drawn */
    uint8_t *at, *end, *limit; /* limit: its piece's end; end: how far a record may be put without asking */
    struct piece *newest;
    uint64_t pieces;
    struct thread_entry *entry; /* its track in there is the collector's */
    /* the collector's side */
    struct piece *_Atomic oldest;
    uint8_t *_Atomic read; /* in the oldest piece; stored after it */
    struct lane *home;
    struct lanes lanes;
};

struct device;
struct queue;
struct window;

enum span_state { FRESH, OPENING, OPEN, ENDED, CLOSED };

typedef struct {
    PyObject_HEAD
    enum span_state state;
    uint32_t generation;
    bool never_closed, is_scoped;
    struct label label; /* text: of `name` */
    PyObject *name;
    struct queue *queue; /* its stream's; NULL for a host slice alone */
    struct blob *args;
    struct thread *thread;
    struct window *window; /* while it is open and recorded */
    uint64_t number;
    PyObject *error, *reason; /* str; what went wrong inside; why its end could not be recorded */
    PyObject *again;          /* list of uses of a shared object: see `_another` in pure.py */
    PyObject *stream, *kwargs; /* of one made with tracing off */
} Span;

struct stats {
    _Atomic uint64_t dropped_spans;
    uint64_t dropped_windows, failed, uncaptured, short_calls;
};

/* Which gputrace/hot/_hot.pyi this is: compiled.py has the number, too. Another one where what is there changes. */
enum { INTERFACE = 6 };

/* The process's state. */
struct core {
    _Atomic bool on; /* are spans recorded now */
    bool armed;      /* is there a recording, be it paused */
    _Atomic bool wake_needed, filling, stream_used; /* filling: the rings are */
    _Atomic uint32_t generation;
    _Atomic uint64_t next_number;
    uint32_t next_thread;
    struct stats stats;
    struct thread *_Atomic threads; /* newest first */
    PyObject *resolve, *wake;
    PyObject *queues;         /* dict: what programs pass -> Queue */
    PyObject *all_queues;     /* list */
    PyTypeObject *stream_type; /* a binding's, of stream objects that are handles and nothing else */
    PyObject *current_stream; /* what gives use_stream's context variable here */
    int64_t clock_ns, clock_step; /* a clock for tests: moves by so much at each read */
};
extern struct core core;

/* Put another reference in a place; the one before goes last, as it may run anything. */
static inline void replace(PyObject **place, PyObject *object) {
    PyObject *before = *place;
    *place = object;
    Py_XDECREF(before);
}

/* What the module finds in its Python siblings. */
struct helpers {
    PyObject *plain, *as_name, *kind_name, *describe, *flow;   /* arguments.py */
    PyObject *find_scope, *task_scope, *running_loop;          /* scope.py */
    PyObject *note_use, *last_use, *let_through, *thread_name, *decorate, *decorate_bare, *functions, *reduced; /* shared.py */
    PyObject *modules, *asyncio, *greenlet;
};
extern struct helpers helpers;

extern PyTypeObject *span_type, *window_type, *off_type, *dropped_type, *queue_type, *device_type;
extern PyMethodDef span_functions[];
bool spans_start(void);
struct thread *thread_here(void);  /* the calling one's, in this recording; NULL with an exception set */
struct thread *thread_known(void); /* the same, NULL if there is none yet */
/* Has the collector been woken, if it is to be? False with an exception set. */
bool spans_awake(void);
/* A slice of a thread's own, without an object: its number, 0 where there is no room. */
uint64_t slice_begin(struct thread *thread, struct label label, int64_t ns, const struct blob *args);
void slice_end(struct thread *thread, uint64_t number, int64_t ns, const struct blob *args);
/* Put into a thread's ring those of its open calls that wait and began until then, outermost first. With the GIL. */
void calls_settle(struct thread *thread, int64_t until_ns);
/* Put a record without the GIL into the calling thread's ring, which is shared. False where there is no room, or its
 * recording is over. `name`: its id, which is in the ring. */
bool put_freely(struct thread *thread, unsigned kind, uint32_t name, uint64_t number, uint32_t generation);
/* A name is to be in the ring before what is called so. False where there is no room. With the GIL. */
bool define_name(uint32_t id);
void count_dropped_span(void);
/* Wait until nobody is about to put something that a recording that is over would have. */
void rings_quiet(void);
void thread_empty(struct thread *thread);
void thread_forget(struct thread *thread);
/* The error indicator holds what a fenced call raised. False: it is the program's and stays set. */
bool let_through(void);
bool exhausted(void); /* what is set says that there is no depth or no memory left */
/* Give the exception that is set to a function: what it returned. NULL with one set: the function's, or the same, as it is
 * no Exception and so the program's. */
PyObject *hand_over(PyObject *function);
struct queue *queue_of(PyObject *stream); /* borrowed; NULL for none, with no exception set */

static inline int64_t now_ns(void) {
    if (unlikely(core.clock_step != 0)) return core.clock_ns += core.clock_step;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* calls.c */

PyObject *calls_start(void); /* its type, a new reference; NULL with an exception set */

/* operators.c */

PyObject *operators_start(void); /* its table, a new reference; NULL with an exception set, or without where there is none */

/* streams.c */

enum { CUDA_INVALID_HANDLE = 400, CUDA_NOT_READY = 600, CUDA_CAPTURE_IMPLICIT = 906 };
enum { CODE_RAISED = -1, CODE_LEFT = -2 }; /* a device in Python raised; what is the program's and stays set */

/* A window on a stream: two events and what its slice will say. Belongs to its device for good. */
struct window {
    struct window *next; /* in a list of free ones */
    void *start, *end;   /* a CUevent, or a borrowed Python object */
    uint64_t number, key_thread, scope;
    int64_t enqueued_ns;
    struct label label;
    struct blob *args, *end_args, *name_text; /* name_text: what label.text points to */
    struct blob *read_error;                  /* why an event could not be read: the collector's */
    bool is_open; /* the collector's: its begin has been taken */
    bool has_reason, abandoned, never_closed, has_error;
};

enum { QUEUE_CHUNK = 510 };

struct chunk {
    struct chunk *_Atomic next;
    _Atomic uint32_t count;
    uint32_t taken;
    uintptr_t entries[QUEUE_CHUNK]; /* a window, or with the lowest bit set a blob: every window open here failed */
};

/* An edge the device has passed: as `gputrace.hot.drain.Passed`. */
struct passed {
    int64_t device_ns, end_device_ns, enqueued_ns;
    uint64_t flow, key_thread, scope;
    struct label label;
    struct blob *name_text, *args, *end_args, *read_error;
    bool timed, is_leaf, is_begin, given_up; /* given_up: on purpose, or never closed: no failure */
};

struct queue {
    PyObject_HEAD
    struct device *device;
    PyObject *native, *handle, *refused;
    bool forgotten; /* its handle may mean another stream by now */
    void *stream;
    struct chunk *_Atomic newest, *oldest;
    _Atomic uint64_t pushed;
    _Atomic uint64_t popped;
    uint64_t marked;
    /* the collector's */
    struct lanes lanes;
    struct passed *waiting;
    size_t waiting_count, waiting_room;
    int64_t earliest_ns, latest_ns; /* of the device, of what has waited since nothing did */
    int64_t last_ns;
    struct map unread; /* by flow: windows whose beginning could not be read */
    struct map failed; /* by flow: the error of an open window, a blob */
};

struct device {
    PyObject_HEAD
    bool is_native;
    int (*record)(void *event, void *stream);
    int (*capturing)(void *stream, int *status);
    int (*elapsed)(float *ms, void *start, void *end);
    int (*context)(void **context);
    int (*context_id)(void *context, unsigned long long *id);
    PyObject *record_raw, *capturing_raw, *elapsed_raw; /* of a device in Python */
    PyObject *make;
    struct window *free;
    struct window *_Atomic returned;
    uint64_t taken, made;
    _Atomic uint64_t given;
    struct slab *slabs;
    int64_t open; /* windows whose begin was taken and whose end was not */
};

bool streams_start(void);
struct window *window_take(struct device *device);
void window_give(struct window *window, struct device *device);
bool queue_push(struct queue *queue, uintptr_t entry);
bool queue_peek(struct queue *queue, uint64_t ahead, uintptr_t *entry);
void queue_drop(struct queue *queue, uint64_t count);
uint64_t queue_length(struct queue *queue);
void window_clear(struct window *window);
void passed_clear(struct passed *passed);

/* turns.c */

extern _Atomic bool hurried; /* calls of the collector are to be short */

/* Begin a call of the collector, of the recording of this generation. False with an exception set if that is over. */
bool turn_take(unsigned long long generation);
bool turn_take_for(PyObject *generation);
void turn_end(void);
/* Begin another generation, once no call is inside: the guard is held then. False with an exception set, and without the
 * guard, if one stays there. */
bool turns_over(void);

/* Is it enough for this call, after so many steps? Some are taken each time, so that whoever may not stop gets on. */
static inline bool turn_enough(uint64_t steps) {
    enum { LEAST_STEPS = 256 };
    return steps >= LEAST_STEPS && unlikely(atomic_load_explicit(&hurried, memory_order_relaxed));
}

/* collect.c */

/* The collector's, read by whoever asks how it goes while it works. */
struct counts {
    _Atomic uint64_t slices, windows, clamped, out_of_order, failed, unreadable, clock_violations, worst_error_ns;
};

/* One call of the collector. `state`: of the thread, while it does not hold the GIL. `stays`: it holds it throughout. */
struct collecting {
    PyThreadState *state;
    bool stays;
};

extern struct counts counts;

/* More of what one thread at a time counts, and others read. */
static inline void add_to(_Atomic uint64_t *count, uint64_t more) {
    atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + more, memory_order_relaxed);
}

extern struct buffer out;
extern bool python_sink; /* the exporter encodes, not we */
extern PyObject *open_thread, *close_thread;
extern struct lane *touched; /* lanes whose lists hold edges */
extern PyMethodDef collect_functions[];
void gil_take(struct collecting *c);
void gil_drop(struct collecting *c);
void samples_forget(void);

/* So much is encoded in one call, and more where the rings fill: the GIL, needed to have it written, is long in coming. */
enum { MOST_ENCODED = 1 << 20, MOST_IN_HASTE = 1 << 23 };

/* Is it enough for this call, after so many steps? */
static inline bool collected_enough(uint64_t steps, uint64_t most) {
    if (steps >= most || turn_enough(steps)) return true;
    return unlikely(out.length >= MOST_ENCODED) && (out.length >= MOST_IN_HASTE || !rings_filling());
}

static inline void add_view(struct edge *edge, struct args view) {
    if (view.at < view.end && *view.at != ARG_NONE) edge->views[edge->view_count++] = view;
}

static inline struct args blob_view(const struct blob *blob) {
    return blob ? (struct args){blob->bytes, blob->bytes + blob->length} : (struct args){NULL, NULL};
}

/* windows.c */

extern PyMethodDef window_functions[];

/* state.c */

extern PyMethodDef state_functions[];

#endif
