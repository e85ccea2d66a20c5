/* The rings' memory: a file of pieces, mapped shared, so that what is written there outlives the process.
 *
 * Pieces are taken by threads of the program and given back by the collector, under a mutex that is held for a few
 * instructions, or for one growth of the file. Where the file cannot grow (a full disk) or its room is not to be relied
 * on, memory of the process's own takes its place: tracing goes on and only the surviving is lost. It knows the file's
 * layout, and no span.
 */

#include "hot.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { FIRST_GROWTH = 4, READY = 1, MOST_REGIONS = 256, MOST_TRIES = 1000, LONG_STEP = 4, FILLING = 8, LONG_COMMIT = 32, ENTRIES = (PIECE_BYTES - PIECE_HEAD) };

_Static_assert(sizeof(struct record) == SLOT, "records are slots");
_Static_assert(sizeof(struct piece_head) == PIECE_HEAD, "pieces begin with their head");
_Static_assert(sizeof(struct thread_entry) == 128 && sizeof(struct open_entry) == 40, "as the reader has them");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool begun; /* not between two recordings: a piece that a late thread took then would be gone with the next */
static char *path;
static uint64_t most_units, file_units;
static _Atomic uint64_t all_units, used_units; /* changed with the lock, read without */
static struct piece *free_pieces, *free_long; /* of one unit, and of more */
static size_t free_count;
static char trouble[256];
static _Atomic bool has_trouble; /* once all of it is there */
static struct {
    void *base;
    size_t length;
} regions[MOST_REGIONS];
static size_t region_count;
static struct ring_header *_Atomic header, own_header;
static struct piece *names_piece, *threads_pieces, *open_pieces;
static uint8_t *names_at;
static struct open_entry **open_free;
static size_t open_free_count, open_free_room; /* `open_free` has room for every entry there is */
/* What may be used again once an epoch is in the shard: one of the three. */
static struct deferred {
    struct piece *piece;
    struct thread_entry *thread;
    struct open_entry *open;
    uint64_t epoch;
} *deferred;
static size_t deferred_count, deferred_room;
static struct text process_name;
static char process_name_bytes[512];

/* Give a stretch of the file its room on the disk now, so that no later store finds none (SIGBUS). An errno, or 0. */
static int reserve(int file, uint64_t offset, uint64_t bytes) {
    struct rlimit limit;
    /* Asked first: to ask for more than it allows is answered by SIGXFSZ, which may end the program. */
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY && offset + bytes > limit.rlim_cur) return EFBIG;
    int error = EINTR; /* the program's signals break it off on some file systems */
    for (int tries = 0; error == EINTR && tries < MOST_TRIES; tries++) error = posix_fallocate(file, (off_t)offset, (off_t)bytes);
    return error;
}

/* Is the file on one of those that write a page anew elsewhere each time? What was reserved is used up by then, and at a
 * quota or on a full disk a store ends the program (SIGBUS), whatever the file's flags. */
static bool copies_on_write(int file) {
    static const uint32_t BTRFS = 0x9123683E, ZFS = 0x2FC12FC1, BCACHEFS = 0xCA451A4E;
    struct statfs system;
    if (fstatfs(file, &system)) return false;
    uint32_t type = (uint32_t)system.f_type;
    return type == BTRFS || type == ZFS || type == BCACHEFS;
}

/* open(), but never as one of the program's standard streams where it has closed them: its threads write to those. */
static int open_out_of_the_way(const char *file, int flags) {
    int plugs[3], count = 0, plug = -1;
    while (count < 3 && (plug = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0 && plug < 3) plugs[count++] = plug;
    if (plug >= 3) close(plug);
    int opened = open(file, flags | O_CLOEXEC | O_NOFOLLOW, 0600), error = errno;
    while (count) close(plugs[--count]);
    errno = error;
    return opened;
}

/* The file's next `units` pieces, mapped; NULL with `trouble` set. With the file's header in front the first time. */
static uint8_t *grow_file(uint64_t units) {
    bool first = !file_units;
    uint64_t offset = first ? 0 : (1 + file_units) * PIECE_BYTES, bytes = (units + first) * PIECE_BYTES;
    if (!path || trouble[0]) return NULL;
    int file = open_out_of_the_way(path, O_RDWR | (first ? O_CREAT | O_EXCL : 0));
    if (first && file >= 0) fchmod(file, 0600); /* the program's umask may have taken what we need ourselves */
    bool copies = file >= 0 && copies_on_write(file);
    int error = file < 0 ? errno : copies ? ENOTSUP : reserve(file, offset, bytes);
    uint8_t *base = MAP_FAILED;
    if (!error && (base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)offset)) == MAP_FAILED)
        error = errno;
    if (file >= 0) close(file);
    if (error) {
        snprintf(trouble, sizeof trouble, "%s", copies ? "its output's file system copies on write" : strerror(error));
        has_trouble = true;
        if (first && file >= 0) unlink(path);
        return NULL;
    }
    regions[region_count].base = base;
    regions[region_count++].length = bytes;
    file_units += units;
    if (!first) return base;
    struct ring_header *in_file = (struct ring_header *)base;
    memcpy(in_file->name, process_name_bytes, process_name.length);
    in_file->name_length = process_name.length;
    in_file->pid = (uint32_t)getpid();
    in_file->version = 2;
    in_file->piece_bytes = PIECE_BYTES;
    in_file->tracks = own_header.tracks;
    in_file->dropped_spans = own_header.dropped_spans;
    in_file->dropped_windows = own_header.dropped_windows;
    in_file->length[0] = own_header.length[0];
    in_file->length[1] = own_header.length[1];
    atomic_store(&in_file->committed, atomic_load(&own_header.committed));
    atomic_store(&in_file->pending, atomic_load(&own_header.pending));
    atomic_thread_fence(memory_order_release);
    memcpy(in_file->magic, "gputrng1", 8);
    atomic_store_explicit(&header, in_file, memory_order_release);
    return base + PIECE_BYTES;
}

static void push_free(struct piece *piece) {
    struct piece **list = piece->units > 1 ? &free_long : &free_pieces;
    atomic_store(&piece->next, *list);
    *list = piece;
    free_count += piece->units == 1;
}

/* Make short pieces of a long one: a burst of long records must not keep the room from short ones for ever. */
static void cut_long(void) {
    struct piece *piece = free_long;
    uint32_t units = piece->units;
    free_long = atomic_load(&piece->next);
    piece->units = 1;
    for (uint32_t i = 0; i < units; i++) {
        struct piece *one = i ? calloc(1, sizeof *one) : piece;
        if (!one) return; /* the rest is lost, and nothing else */
        one->base = piece->base + (uint64_t)i * PIECE_BYTES;
        one->units = 1;
        ((struct piece_head *)one->base)->units = 1;
        push_free(one);
    }
}

/* One that is as long, taken off its list; NULL if there is none. */
static struct piece *pop_free(uint32_t units) {
    if (units == 1 && free_pieces) {
        struct piece *piece = free_pieces;
        free_pieces = atomic_load(&piece->next);
        free_count--;
        return piece;
    }
    if (units == 1 && free_long) cut_long();
    if (units == 1 && free_pieces) return pop_free(1);
    struct piece *before = NULL;
    for (struct piece *piece = units > 1 ? free_long : NULL; piece; before = piece, piece = atomic_load(&piece->next)) {
        if (piece->units < units) continue;
        if (before) atomic_store(&before->next, atomic_load(&piece->next));
        else free_long = atomic_load(&piece->next);
        return piece;
    }
    return NULL;
}

/* More pieces, `units` of them in one where that is more than one. Called with the lock. */
static struct piece *grow(uint64_t units, bool beyond_bound) {
    uint64_t more = units > 1 ? units : all_units / 2 > FIRST_GROWTH ? all_units / 2 : FIRST_GROWTH;
    if (all_units + more > most_units) more = units;
    if ((all_units + more > most_units && !beyond_bound) || region_count == MOST_REGIONS) return NULL;
    uint8_t *base = grow_file(more);
    if (!base) {
        base = mmap(NULL, more * PIECE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED) return NULL;
        regions[region_count].base = base;
        regions[region_count++].length = more * PIECE_BYTES;
    }
    all_units += more;
    uint64_t each = units > 1 ? units : 1;
    for (uint64_t i = 0; i < more; i += each) {
        struct piece *piece = calloc(1, sizeof *piece);
        if (!piece) return NULL;
        piece->base = base + i * PIECE_BYTES;
        piece->units = (uint32_t)each;
        if (units > 1) return piece;
        push_free(piece);
    }
    return pop_free(1);
}

struct piece *piece_take(uint32_t kind, uint32_t units, uint32_t thread, uint64_t sequence, bool beyond_bound) {
    if (!begun) return NULL;
    pthread_mutex_lock(&lock);
    if (units > 1) units = (units + LONG_STEP - 1) / LONG_STEP * LONG_STEP; /* so that another can use it */
    struct piece *piece = pop_free(units);
    if (!piece) piece = grow(units, beyond_bound);
    if (piece) used_units += piece->units;
    pthread_mutex_unlock(&lock);
    if (!piece) return NULL;
    struct piece_head *head = (struct piece_head *)piece->base;
    head->units = piece->units;
    head->thread = thread;
    head->sequence = sequence;
    head->consumed_old = head->consumed_new = PIECE_HEAD;
    head->epoch_new = 0;
    atomic_store_explicit(&head->kind, kind, memory_order_release);
    atomic_store_explicit(&piece->next, NULL, memory_order_relaxed);
    return piece;
}

/* Cleared before it is taken again: a tag that is not zero means a whole record. */
static void clear(uint8_t *base, uint32_t units) {
    struct piece_head *head = (struct piece_head *)base;
    atomic_store_explicit(&head->kind, PIECE_FREE, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    memset(base + 8, 0, (size_t)units * PIECE_BYTES - 8);
}

static void piece_free(struct piece *piece) {
    clear(piece->base, piece->units);
    pthread_mutex_lock(&lock);
    used_units -= piece->units;
    push_free(piece);
    pthread_mutex_unlock(&lock);
}

/* Keep some pieces ready. */
static void prepare(void) {
    pthread_mutex_lock(&lock);
    if (free_count < READY && used_units) {
        struct piece *piece = grow(1, false);
        if (piece) push_free(piece);
    }
    pthread_mutex_unlock(&lock);
}

void pieces_free(struct piece *first) {
    for (struct piece *piece = first, *next; piece; piece = next) {
        next = atomic_load(&piece->next);
        free(piece);
    }
}

uint64_t rings_bytes(void) {
    return all_units * PIECE_BYTES;
}

bool rings_filling(void) {
    return FILLING * used_units > most_units;
}

/* Is more in use than may be? Ends of spans may go beyond the bound. */
bool rings_over(void) {
    return used_units > most_units;
}

const char *rings_trouble(void) {
    return has_trouble ? trouble : NULL;
}

struct ring_header *ring_header(void) {
    struct ring_header *mapped = atomic_load_explicit(&header, memory_order_acquire);
    return mapped ? mapped : &own_header;
}

/* Names. Written by the program's side alone. */

bool ring_define_name(uint32_t id) {
    struct name *name = names[id];
    size_t bytes = 8 + (((size_t)name->length + 7) & ~(size_t)7);
    if (!names_piece || names_at + bytes > names_piece->base + PIECE_BYTES) {
        struct piece *piece = piece_take(PIECE_NAMES, 1, 0, 0, true);
        if (!piece) return false;
        if (names_piece) free(names_piece);
        names_piece = piece;
        names_at = piece->base + PIECE_HEAD;
    }
    memcpy(names_at + 4, &name->length, 4);
    memcpy(names_at + 8, name->bytes, name->length);
    atomic_store_explicit((_Atomic uint32_t *)names_at, id, memory_order_release);
    names_at += bytes;
    name->generation = core.generation;
    return true;
}

/* What else is kept there: threads' names and whose thread is whose track, and what is open. */

void thread_entry_name(struct thread_entry *entry, struct text name) {
    atomic_store(&entry->length, 0);
    uint32_t length = name.length < sizeof entry->name ? name.length : (uint32_t)sizeof entry->name;
    memcpy(entry->name, name.bytes, length);
    atomic_store(&entry->length, length);
}

struct thread_entry *thread_entry_take(uint32_t number, uint32_t tid, struct text name) {
    for (;;) {
        for (struct piece *piece = threads_pieces; piece; piece = piece->next) {
            struct thread_entry *entry = (struct thread_entry *)(piece->base + PIECE_HEAD);
            for (size_t i = 0; i < ENTRIES / sizeof *entry; i++, entry++) {
                if (atomic_load_explicit(&entry->number, memory_order_relaxed)) continue;
                entry->tid = tid;
                entry->track = 0;
                entry->announced = 0;
                thread_entry_name(entry, name);
                atomic_store_explicit(&entry->number, number, memory_order_release);
                return entry;
            }
        }
        struct piece *piece = piece_take(PIECE_THREADS, 1, 0, 0, true);
        if (!piece) return NULL;
        piece->next = threads_pieces;
        threads_pieces = piece;
    }
}

struct open_entry *open_entry_take(void) {
    if (!open_free_count) {
        size_t count = ENTRIES / sizeof(struct open_entry);
        struct piece *piece = piece_take(PIECE_OPEN, 1, 0, 0, true);
        if (!piece) return NULL;
        struct open_entry **more = realloc(open_free, (open_free_room + count) * sizeof *more);
        if (!more) return free(piece), NULL;
        open_free = more;
        open_free_room += count;
        struct open_entry *entries = (struct open_entry *)(piece->base + PIECE_HEAD);
        for (size_t i = count; i-- > 0;) open_free[open_free_count++] = entries + i;
        piece->next = open_pieces;
        open_pieces = piece;
    }
    return open_free[--open_free_count];
}

/* Epochs: what the shard holds. See the ring file's reader. */

uint64_t ring_epoch(void) {
    return atomic_load_explicit(&ring_header()->committed, memory_order_relaxed) + 1;
}

static void defer(struct deferred what) {
    if (!room_for_one(&deferred, &deferred_room, deferred_count, sizeof *deferred)) return; /* it is lost, and nothing else */
    what.epoch = ring_epoch();
    deferred[deferred_count++] = what;
}

void piece_give(struct piece *piece) {
    defer((struct deferred){.piece = piece});
}

void thread_entry_give(struct thread_entry *entry) {
    defer((struct deferred){.thread = entry});
}

void open_entry_end(struct open_entry *entry) {
    entry->end_epoch = ring_epoch();
    defer((struct deferred){.open = entry});
}

bool ring_commit_is_long(void) {
    return deferred_count > LONG_COMMIT;
}

void ring_commit(void) {
    uint64_t now = ring_epoch();
    atomic_store_explicit(&ring_header()->committed, now, memory_order_release);
    size_t kept = 0;
    for (size_t i = 0; i < deferred_count; i++) {
        struct deferred *what = &deferred[i];
        if (what->epoch > now) {
            deferred[kept++] = *what;
        } else if (what->piece) {
            piece_free(what->piece);
        } else if (what->thread) {
            atomic_store_explicit(&what->thread->number, 0, memory_order_release);
        } else {
            atomic_store_explicit(&what->open->number, 0, memory_order_release);
            open_free[open_free_count++] = what->open;
        }
    }
    deferred_count = kept;
    prepare();
}

/* Life. */

bool rings_start(const char *file, uint64_t most_bytes, struct text name) {
    rings_forget();
    if (file && !(path = strdup(file))) return PyErr_NoMemory(), false;
    most_units = most_bytes / PIECE_BYTES;
    process_name.length = name.length < sizeof process_name_bytes ? name.length : (uint32_t)sizeof process_name_bytes;
    memcpy(process_name_bytes, name.bytes, process_name.length);
    return begun = true;
}

/* Let go of all memory and leave the file as it is: another process's, or another recording's. No lock is asked for: the
 * thread that held it may have stayed behind in the process this one was forked from. */
void rings_forget(void) {
    pthread_mutex_init(&lock, NULL);
    begun = false;
    for (size_t i = 0; i < region_count; i++) munmap(regions[i].base, regions[i].length);
    struct piece *const lists[] = {free_pieces, free_long, threads_pieces, open_pieces};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) pieces_free(lists[i]);
    for (size_t i = 0; i < deferred_count; i++) free(deferred[i].piece);
    free(names_piece);
    free(path);
    path = NULL;
    region_count = free_count = open_free_count = open_free_room = deferred_count = 0;
    all_units = used_units = file_units = most_units = 0;
    free_pieces = free_long = names_piece = threads_pieces = open_pieces = NULL;
    header = NULL;
    memset(&own_header, 0, sizeof own_header);
    trouble[0] = 0;
    has_trouble = false;
}

void rings_stop(void) {
    if (path && file_units) unlink(path);
}
