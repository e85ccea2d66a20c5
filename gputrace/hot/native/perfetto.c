/* One track's edges as packets of one sequence: `gputrace.exporters.sequence.Sequence` in C, byte for byte.
 *
 * Field numbers are the schema's (exporters/schema.py, which is tested against Perfetto's own); that the bytes are the
 * same is tested here. `sequence_make` is given the pieces that do not change by the Python one.
 */

#include "hot.h"

enum { NAMES_KEPT = 4096, NEAR = 1 << 14, FAR = 1 << 21 };
enum { HEAD_NEAR = 1, HEAD_FAR = 2, HEAD_FLOW_NEAR = 4, HEAD_FLOW_FAR = 8 };

/* Tags: field << 3 | wire type. */
enum {
    TAG_PACKET = 0x0a,     /* Trace.packet */
    TAG_EVENT = 0x5a,      /* TracePacket.track_event */
    TAG_TIMESTAMP = 0x40,  /* TracePacket.timestamp */
    TAG_INTERNED = 0x62,   /* TracePacket.interned_data */
    TAG_SNAPSHOT = 0x32,   /* TracePacket.clock_snapshot */
    TAG_TYPE = 0x48,       /* TrackEvent.type */
    TAG_NAME = 0x50,       /* TrackEvent.name_iid */
    TAG_ANNOTATION = 0x22, /* TrackEvent.debug_annotations */
    TAG_EVENT_NAMES = 0x12, /* InternedData.event_names */
    TAG_ARG_NAMES = 0x1a,   /* InternedData.debug_annotation_names */
    TAG_IID = 0x08,         /* EventName.iid, DebugAnnotation.name_iid */
    TAG_TEXT = 0x12,        /* EventName.name */
    TAG_BOOL = 0x10,
    TAG_UINT = 0x18,
    TAG_INT = 0x20,
    TAG_DOUBLE = 0x29,
    TAG_STRING = 0x32,
};
enum { MOST_PIECE = 64 };

struct sequence {
    uint32_t id_length, head_length, defaults_length; /* of the bytes that the Python side made */
    uint8_t id[MOST_PIECE], head[MOST_PIECE], defaults[MOST_PIECE];
    uint64_t flow_base;
    int64_t offset_ns, last_ns;
    bool started;
    struct map names, arg_names; /* by id, or by the text's hash: iid << 4 | heads kept */
};

static bool copy_piece(PyObject *bytes, uint8_t *to, uint32_t *length) {
    char *from;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(bytes, &from, &size)) return false;
    if (size > MOST_PIECE) return PyErr_SetString(PyExc_ValueError, "a packet's constant part is too long"), false;
    memcpy(to, from, (size_t)size);
    *length = (uint32_t)size;
    return true;
}

/* `native`: (id field, head, defaults, flow base, offset in ns), as the Python sequence has them. */
struct sequence *sequence_make(PyObject *native) {
    struct sequence *s = calloc(1, sizeof *s);
    if (!s) return (void)PyErr_NoMemory(), NULL;
    PyObject *id, *head, *defaults;
    unsigned long long flow_base;
    long long offset_ns;
    if (PyArg_ParseTuple(native, "OOOKL", &id, &head, &defaults, &flow_base, &offset_ns) &&
        copy_piece(id, s->id, &s->id_length) && copy_piece(head, s->head, &s->head_length) &&
        copy_piece(defaults, s->defaults, &s->defaults_length)) {
        s->flow_base = flow_base;
        s->offset_ns = offset_ns;
        return s;
    }
    free(s);
    return NULL;
}

void sequence_free(struct sequence *s) {
    if (!s) return;
    map_clear(&s->names);
    map_clear(&s->arg_names);
    free(s);
}

/* Writing into a buffer. */

static bool reserve(struct buffer *b, size_t bytes) {
    if (likely(b->room - b->length >= bytes)) return true;
    size_t room = 2 * b->room + bytes + 4096;
    uint8_t *more = realloc(b->data, room);
    if (!more) return false;
    b->data = more;
    b->room = room;
    return true;
}

static inline uint8_t *varint(uint8_t *at, uint64_t value) {
    while (value > 0x7f) *at++ = (uint8_t)value | 0x80, value >>= 7;
    *at++ = (uint8_t)value;
    return at;
}

static inline size_t varint_size(uint64_t value) {
    size_t size = 1;
    while (value > 0x7f) value >>= 7, size++;
    return size;
}

static inline uint8_t *bytes(uint8_t *at, const void *from, size_t count) {
    if (count) memcpy(at, from, count); /* an empty one may have no address */
    return at + count;
}

/* A time in two bytes or in three, whatever it would take. */
static inline uint8_t *padded(uint8_t *at, uint64_t delta) {
    *at++ = (uint8_t)delta | 0x80;
    if (delta < NEAR) return *at++ = (uint8_t)(delta >> 7), at;
    *at++ = (uint8_t)(delta >> 7) | 0x80;
    *at++ = (uint8_t)(delta >> 14);
    return at;
}

/* Text as a reader can take it (exporters/values.py, `clean`): half characters become U+FFFD, a NUL U+2400. Both take
 * three bytes, a NUL two more than it had. */
static size_t clean_size(struct text text) {
    size_t nuls = 0;
    for (const char *at = text.bytes, *end = at + text.length; (at = memchr(at, 0, (size_t)(end - at))); at++) nuls++;
    return text.length + 2 * nuls;
}

static uint8_t *clean(uint8_t *at, struct text text) {
    for (uint32_t i = 0; i < text.length; i++) {
        uint8_t byte = (uint8_t)text.bytes[i];
        if (!byte) {
            at = bytes(at, "\xe2\x90\x80", 3);
        } else if (byte == 0xed && (uint8_t)text.bytes[i + 1] >= 0xa0) {
            at = bytes(at, "\xef\xbf\xbd", 3);
            i += 2;
        } else {
            *at++ = byte;
        }
    }
    return at;
}

static uint8_t *sized_text(uint8_t *at, uint8_t tag, struct text text, size_t size) {
    *at++ = tag;
    return clean(varint(at, size), text);
}

/* Names. */

static uint64_t *interned(struct map *map, struct label label, uint64_t *a, uint64_t *b) {
    *a = label.id, *b = 0;
    if (!label.id) {
        *a = text_hash(label.text, 0);
        *b = text_hash(label.text, 0x9e3779b97f4a7c15u) | 1;
    }
    return map_find(map, *a, *b);
}

static bool put_interned(struct buffer *b, uint8_t tag, uint64_t iid, struct text text) {
    size_t size = clean_size(text), body = 1 + varint_size(iid) + 1 + varint_size(size) + size;
    if (!reserve(b, body + 12)) return false;
    uint8_t *at = b->data + b->length;
    *at++ = tag;
    at = varint(at, body);
    *at++ = TAG_IID;
    at = varint(at, iid);
    at = sized_text(at, TAG_TEXT, text, size);
    b->length = (size_t)(at - b->data);
    return true;
}

/* Packets that set the sequence up. */

static bool put_restart(struct sequence *s, struct buffer *out, const uint8_t *more, size_t count) {
    map_clear(&s->names);
    map_clear(&s->arg_names);
    size_t body = s->id_length + 2 + s->defaults_length + count;
    if (!reserve(out, body + 12)) return false;
    uint8_t *at = out->data + out->length;
    *at++ = TAG_PACKET;
    at = varint(at, body);
    at = bytes(at, s->id, s->id_length);
    *at++ = 0x68, *at++ = 3; /* TracePacket.sequence_flags: cleared, and needed */
    at = bytes(at, s->defaults, s->defaults_length);
    at = bytes(at, more, count);
    out->length = (size_t)(at - out->data);
    return true;
}

static bool put_start(struct sequence *s, struct buffer *out, int64_t ts) {
    uint8_t clocks[64], *at = clocks, more[96], *to = more;
    *at++ = 0x0a, *at++ = 6;                                          /* ClockSnapshot.clocks */
    at = bytes(at, "\x08\x40\x10\x00\x18\x01", 6);                      /* 64, at 0, incremental */
    uint64_t boottime = (uint64_t)(ts + s->offset_ns);
    *at++ = 0x0a;
    at = varint(at, 3 + varint_size(boottime));
    at = bytes(at, "\x08\x06\x10", 3); /* BOOTTIME */
    at = varint(at, boottime);
    to = bytes(to, "\xb8\x05\x01", 3); /* TracePacket.first_packet_on_sequence */
    *to++ = TAG_SNAPSHOT;
    to = varint(to, (uint64_t)(at - clocks));
    to = bytes(to, clocks, (size_t)(at - clocks));
    s->started = true;
    s->last_ns = ts;
    return put_restart(s, out, more, (size_t)(to - more));
}

/* Arguments. */

static size_t annotation_size(const struct arg *arg) {
    switch (arg->type) {
    case ARG_BOOL: return 2;
    case ARG_INT: return 1 + varint_size((uint64_t)arg->integer);
    case ARG_DOUBLE: return 9;
    default: {
        size_t size = clean_size(arg->text);
        return 1 + varint_size(size) + size;
    }
    }
}

/* An int beyond int64 that a uint64 holds is one. */
static bool fits_unsigned(struct text text, uint64_t *value) {
    if (text.length > 18 || text.bytes[0] == '-') return false;
    *value = 0;
    for (uint32_t i = 2; i < text.length; i++) {
        char digit = text.bytes[i];
        *value = *value << 4 | (uint64_t)(digit <= '9' ? digit - '0' : digit - 'a' + 10);
    }
    return true;
}

static bool put_flow(const struct sequence *s, struct buffer *event, int64_t flow) {
    if (!reserve(event, 10)) return false;
    uint64_t id = s->flow_base + (uint64_t)flow;
    uint8_t *at = event->data + event->length;
    *at++ = 0xf9, *at++ = 0x02; /* TrackEvent.flow_ids */
    event->length = (size_t)(bytes(at, &id, 8) - event->data);
    return true;
}

static bool put_annotation(struct sequence *s, struct buffer *event, struct buffer *names_out, const struct arg *arg) {
    uint64_t a, b, iid, wide = 0, *known = interned(&s->arg_names, arg->key, &a, &b);
    if (known) {
        iid = *known;
    } else {
        iid = s->arg_names.count + 1;
        if (!map_put(&s->arg_names, a, b, iid)) return false;
        if (!put_interned(names_out, TAG_ARG_NAMES, iid, label_text(arg->key))) return false;
    }
    bool is_wide = arg->type == ARG_WIDE && fits_unsigned(arg->text, &wide);
    size_t value = is_wide ? 1 + varint_size(wide) : annotation_size(arg), body = 1 + varint_size(iid) + value;
    if (!reserve(event, body + 12)) return false;
    uint8_t *at = event->data + event->length;
    *at++ = TAG_ANNOTATION;
    at = varint(at, body);
    *at++ = TAG_IID;
    at = varint(at, iid);
    switch (arg->type) {
    case ARG_BOOL: *at++ = TAG_BOOL, *at++ = (uint8_t)arg->integer; break;
    case ARG_INT: *at++ = TAG_INT, at = varint(at, (uint64_t)arg->integer); break;
    case ARG_DOUBLE: *at++ = TAG_DOUBLE, at = bytes(at, &arg->real, 8); break;
    default:
        if (is_wide) *at++ = TAG_UINT, at = varint(at, wide);
        else at = sized_text(at, TAG_STRING, arg->text, clean_size(arg->text));
    }
    event->length = (size_t)(at - event->data);
    return true;
}

static bool same_key(struct label x, struct label y) {
    if (x.id || y.id) return x.id == y.id;
    return x.text.length == y.text.length && !memcmp(x.text.bytes, y.text.bytes, x.text.length);
}

/* The value that a later view gives to a key, as when dicts are merged. */
static void override(const struct edge *edge, int from, struct arg *arg) {
    for (int i = from; i < edge->view_count; i++) {
        struct args view = edge->views[i];
        struct arg other;
        while (arg_next(&view, &other))
            if (same_key(arg->key, other.key)) *arg = other;
    }
}

static bool said_before(const struct edge *edge, int before, struct label key) {
    for (int i = 0; i < before; i++) {
        struct args view = edge->views[i];
        struct arg other;
        while (arg_next(&view, &other))
            if (same_key(key, other.key)) return true;
    }
    return false;
}

static bool put_args(struct sequence *s, struct buffer *event, struct buffer *names_out, const struct edge *edge) {
    for (int i = 0; i < edge->view_count; i++) {
        struct args view = edge->views[i];
        struct arg arg;
        while (arg_next(&view, &arg)) {
            if (i && said_before(edge, i, arg.key)) continue;
            if (edge->view_count > 1) override(edge, i + 1, &arg);
            bool ok = arg.type == ARG_FLOW ? put_flow(s, event, arg.integer) : put_annotation(s, event, names_out, &arg);
            if (!ok) return false;
        }
    }
    return true;
}

/* Any edge's packet: `Sequence._any`. */
static bool put_any(struct sequence *s, struct buffer *out, uint64_t delta, enum edge_kind kind, const struct edge *edge) {
    static struct buffer event, names_out; /* the collector's alone */
    if (s->names.count + s->arg_names.count >= NAMES_KEPT && !put_restart(s, out, NULL, 0)) return false;
    event.length = names_out.length = 0;
    if (!reserve(&event, 64)) return false;
    uint8_t *at = event.data;
    *at++ = TAG_TYPE, *at++ = (uint8_t)kind; /* the kinds are TrackEvent's types */
    bool bare = kind == EDGE_END;
    if (!bare) {
        uint64_t a, b, iid, *known = interned(&s->names, edge->name, &a, &b);
        if (known) {
            iid = *known >> 4;
            if (kind == EDGE_BEGIN && !edge->view_count)
                *known |= edge->flow ? (delta < NEAR ? HEAD_FLOW_NEAR : HEAD_FLOW_FAR) : delta < NEAR ? HEAD_NEAR : HEAD_FAR;
        } else {
            iid = s->names.count + 1;
            if (!map_put(&s->names, a, b, iid << 4)) return false;
            if (!put_interned(&names_out, TAG_EVENT_NAMES, iid, label_text(edge->name))) return false;
        }
        *at++ = TAG_NAME;
        at = varint(at, iid);
        if (edge->flow) {
            uint64_t flow = s->flow_base + edge->flow;
            *at++ = 0xf9, *at++ = 0x02; /* TrackEvent.flow_ids */
            at = bytes(at, &flow, 8);
        }
    }
    event.length = (size_t)(at - event.data);
    /* A slice's end, when it is put here, says nothing: its arguments stand at its begin. */
    bool with_args = edge->view_count && !(bare && edge->kind == EDGE_SLICE);
    if (with_args && !put_args(s, &event, &names_out, edge)) return false;
    size_t body = s->head_length + 1 + varint_size(event.length) + event.length + 1 + varint_size(delta);
    if (names_out.length) body += 1 + varint_size(names_out.length) + names_out.length;
    if (!reserve(out, body + 12)) return false;
    at = out->data + out->length;
    *at++ = TAG_PACKET;
    at = varint(at, body);
    at = bytes(at, s->head, s->head_length);
    *at++ = TAG_EVENT;
    at = varint(at, event.length);
    at = bytes(at, event.data, event.length);
    *at++ = TAG_TIMESTAMP;
    at = varint(at, delta);
    if (names_out.length) {
        *at++ = TAG_INTERNED;
        at = varint(at, names_out.length);
        at = bytes(at, names_out.data, names_out.length);
    }
    out->length = (size_t)(at - out->data);
    return true;
}

/* The begin of a slice whose like was met before, without arguments. Room was reserved. */
static uint8_t *put_known(struct sequence *s, uint8_t *at, uint64_t iid, uint64_t delta, uint64_t flow) {
    size_t width = delta < NEAR ? 2 : 3, event = 2 + 1 + varint_size(iid) + (flow ? 10 : 0);
    *at++ = TAG_PACKET;
    at = varint(at, s->head_length + 1 + varint_size(event) + event + 1 + width);
    at = bytes(at, s->head, s->head_length);
    *at++ = TAG_EVENT;
    at = varint(at, event);
    *at++ = TAG_TYPE, *at++ = EDGE_BEGIN;
    *at++ = TAG_NAME;
    at = varint(at, iid);
    if (flow) {
        flow += s->flow_base;
        *at++ = 0xf9, *at++ = 0x02;
        at = bytes(at, &flow, 8);
    }
    *at++ = TAG_TIMESTAMP;
    return padded(at, delta);
}

static uint8_t *put_known_end(struct sequence *s, uint8_t *at, uint64_t delta) {
    *at++ = TAG_PACKET;
    *at++ = (uint8_t)(s->head_length + 4 + 1 + (delta < NEAR ? 2 : 3));
    at = bytes(at, s->head, s->head_length);
    *at++ = TAG_EVENT, *at++ = 2, *at++ = TAG_TYPE, *at++ = EDGE_END;
    *at++ = TAG_TIMESTAMP;
    return padded(at, delta);
}

static bool put_end(struct sequence *s, struct buffer *out, uint64_t delta, const struct edge *edge) {
    if (delta >= FAR) return put_any(s, out, delta, EDGE_END, edge);
    if (!reserve(out, MOST_PIECE + 64)) return false;
    out->length = (size_t)(put_known_end(s, out->data + out->length, delta) - out->data);
    return true;
}

bool sequence_encode(struct sequence *s, struct buffer *out, const struct edge *edge) {
    if (unlikely(!s->started) && !put_start(s, out, edge->ts)) return false;
    int64_t ts = edge->ts > s->last_ns ? edge->ts : s->last_ns;
    uint64_t delta = (uint64_t)(ts - s->last_ns);
    s->last_ns = ts;
    bool done = false;
    if (edge->kind == EDGE_END) {
        return edge->view_count ? put_any(s, out, delta, EDGE_END, edge) : put_end(s, out, delta, edge);
    }
    enum edge_kind kind = edge->kind == EDGE_SLICE ? EDGE_BEGIN : edge->kind;
    if (kind == EDGE_BEGIN && !edge->view_count && delta < FAR) {
        uint64_t a, b, *known = interned(&s->names, edge->name, &a, &b);
        uint64_t head = edge->flow ? (delta < NEAR ? HEAD_FLOW_NEAR : HEAD_FLOW_FAR) : delta < NEAR ? HEAD_NEAR : HEAD_FAR;
        if (known && *known & head) {
            if (!reserve(out, 2 * MOST_PIECE + 128)) return false;
            out->length = (size_t)(put_known(s, out->data + out->length, *known >> 4, delta, edge->flow) - out->data);
            done = true;
        }
    }
    if (!done && !put_any(s, out, delta, kind, edge)) return false;
    if (edge->kind != EDGE_SLICE) return true;
    int64_t end = edge->end_ns > ts ? edge->end_ns : ts;
    s->last_ns = end;
    return put_end(s, out, (uint64_t)(end - ts), edge);
}
