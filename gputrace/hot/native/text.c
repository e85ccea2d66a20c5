/* Names and arguments as bytes. It knows Python's objects and the ring's payload format, and no ring. */

#include "hot.h"

struct name *names[MOST_NAMES];
static uint32_t name_count = FIRST_NAME;
static PyObject *ids; /* dict: str -> id */

#ifndef Py_GIL_DISABLED
/* In front of the dict, by address. Holds its strings, so an address means one string. */
enum { CACHE = 1024 };
static struct {
    PyObject *name;
    uint32_t id;
} cache[CACHE];
#endif

static bool name_keep(PyObject *object, struct text text, uint32_t id) {
    struct name *name = malloc(sizeof *name + text.length);
    if (!name) return PyErr_NoMemory(), false;
    name->object = Py_NewRef(object);
    name->generation = 0;
    name->length = text.length;
    memcpy(name->bytes, text.bytes, text.length);
    names[id] = name;
    return true;
}

static void name_let_go(uint32_t id) {
    Py_DECREF(names[id]->object);
    free(names[id]);
    names[id] = NULL;
}

bool text_start(void) {
    static const char *const known[] = {NULL, "error", "ended", "gpu", "placement", "clock", "args left out"};
    if (!(ids = PyDict_New())) return false;
    for (uint32_t id = 1; id < FIRST_NAME; id++) {
        PyObject *object = PyUnicode_InternFromString(known[id]), *number = PyLong_FromUnsignedLong(id);
        struct text text = {known[id], (uint32_t)strlen(known[id])};
        if (!object || !number || PyDict_SetItem(ids, object, number) || !name_keep(object, text, id)) return false;
        Py_DECREF(object);
        Py_DECREF(number);
    }
    return true;
}

bool text_of(PyObject *string, struct text *out, PyObject **keep) {
    Py_ssize_t length;
    const char *bytes = PyUnicode_AsUTF8AndSize(string, &length);
    if (bytes) {
        *keep = Py_NewRef(string);
    } else { /* half a character: a lone surrogate */
        PyErr_Clear();
        char *raw;
        if (!(*keep = PyUnicode_AsEncodedString(string, "utf-8", "surrogatepass"))) return false;
        if (PyBytes_AsStringAndSize(*keep, &raw, &length)) return Py_DECREF(*keep), false;
        bytes = raw;
    }
    *out = (struct text){bytes, length > UINT32_MAX ? UINT32_MAX : (uint32_t)length};
    return true;
}

static int64_t name_id_by_dict(PyObject *name) {
    int64_t id = NAME_INLINE;
    PyObject *known = PyDict_GetItemWithError(ids, name);
    if (known) return PyLong_AsLongLong(known);
    if (PyErr_Occurred()) return -1;
    if (name_count < MOST_NAMES && PyUnicode_GetLength(name) <= LONGEST_NAME_KEPT) {
        struct text text;
        PyObject *keep;
        if (!text_of(name, &text, &keep)) return -1;
        PyObject *number = PyLong_FromUnsignedLong(name_count);
        if (number && name_keep(name, text, name_count)) {
            if (!PyDict_SetItem(ids, name, number)) id = name_count++;
            else name_let_go(name_count);
        }
        Py_XDECREF(number);
        Py_DECREF(keep);
        if (!id) return -1;
    }
    return id;
}

int64_t name_id(PyObject *name) {
#ifndef Py_GIL_DISABLED
    size_t slot = ((uintptr_t)name >> 4) & (CACHE - 1);
    if (likely(cache[slot].name == name)) return cache[slot].id;
#endif
    if (unlikely(!PyUnicode_CheckExact(name))) { /* a kind of the program's, whose hash and equality may be anything */
        PyObject *exact = PyUnicode_FromObject(name);
        int64_t same = exact ? name_id(exact) : -1;
        Py_XDECREF(exact);
        return same;
    }
    GUARD();
    int64_t id = name_id_by_dict(name);
#ifndef Py_GIL_DISABLED
    if (id > 0) {
        PyObject *before = cache[slot].name;
        cache[slot].name = Py_NewRef(name);
        cache[slot].id = (uint32_t)id;
        Py_XDECREF(before);
    }
#endif
    UNGUARD();
    return id;
}

PyObject *text_object(struct text text) {
    return PyUnicode_DecodeUTF8(text.bytes, (Py_ssize_t)text.length, "surrogatepass");
}

struct text label_text(struct label label) {
    if (!label.id) return label.text;
    return (struct text){names[label.id]->bytes, names[label.id]->length};
}

PyObject *label_object(struct label label) {
    return label.id ? Py_NewRef(names[label.id]->object) : text_object(label.text);
}

uint64_t text_hash(struct text text, uint64_t seed) {
    uint64_t hash = 0xcbf29ce484222325u ^ seed; /* FNV-1a */
    for (uint32_t i = 0; i < text.length; i++) hash = (hash ^ (uint8_t)text.bytes[i]) * 0x100000001b3u;
    return hash ^ hash >> 29;
}

/* Blobs. */

struct blob *blob_make(const void *bytes, size_t length) {
    struct blob *blob = malloc(sizeof *blob + length);
    if (!blob) return NULL;
    atomic_init(&blob->count, 1);
    blob->length = (uint32_t)length;
    memcpy(blob->bytes, bytes, length);
    return blob;
}

struct blob *blob_share(struct blob *blob) {
    if (blob) atomic_fetch_add_explicit(&blob->count, 1, memory_order_relaxed);
    return blob;
}

void blob_drop(struct blob *blob) {
    if (blob && atomic_fetch_sub_explicit(&blob->count, 1, memory_order_acq_rel) == 1) free(blob);
}

struct builder {
    uint8_t *at, *end, *data;
    bool full; /* no memory */
    Py_ssize_t left, key_length, left_out; /* of what arguments may have together; of the present one; for want of room */
    uint8_t here[512];
};

static void builder_start(struct builder *b) {
    b->data = b->at = b->here;
    b->end = b->here + sizeof b->here;
    b->full = false;
    b->left = MOST_ARGS;
    b->left_out = 0;
}

/* Is there room for one more argument, whose value has so many characters? */
static bool affords(struct builder *b, Py_ssize_t characters) {
    Py_ssize_t cost = ARG_COST + b->key_length + characters;
    if (unlikely(cost > b->left)) return b->left_out++, false;
    b->left -= cost;
    return true;
}

static bool room_for(struct builder *b, size_t bytes) {
    if (likely((size_t)(b->end - b->at) >= bytes)) return true;
    size_t used = (size_t)(b->at - b->data), size = 2 * used + bytes;
    if (b->full) return b->left_out++, false;
    uint8_t *more = b->data == b->here ? malloc(size) : realloc(b->data, size);
    if (!more) return b->left_out++, b->full = true, false;
    if (b->data == b->here) memcpy(more, b->here, used);
    b->data = more;
    b->at = more + used;
    b->end = more + size;
    return true;
}

static void builder_end(struct builder *b) {
    if (b->data != b->here) free(b->data);
}

static void put(struct builder *b, const void *bytes, size_t count) {
    memcpy(b->at, bytes, count);
    b->at += count;
}

static void put_text(struct builder *b, struct text text) {
    put(b, &text.length, 4);
    put(b, text.bytes, text.length);
}

/* An argument's type and key. False where there is no room for it and `more` bytes. */
static bool put_head(struct builder *b, int type, struct label key, size_t more) {
    if (!room_for(b, 9 + (key.id ? 0 : key.text.length) + more)) return false;
    *b->at++ = (uint8_t)type;
    put(b, &key.id, 4);
    if (!key.id) put_text(b, key.text);
    return true;
}

static bool put_string(struct builder *b, int type, struct label key, PyObject *string) {
    struct text text;
    PyObject *keep;
    if (!affords(b, PyUnicode_GetLength(string))) return true;
    if (!text_of(string, &text, &keep)) return false;
    if (put_head(b, type, key, 4 + (size_t)text.length)) put_text(b, text);
    Py_DECREF(keep);
    return true;
}

static bool put_int(struct builder *b, struct label key, PyObject *value) {
    int overflow;
    int64_t integer = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow) {
        PyObject *hexadecimal = PyNumber_ToBase(value, 16);
        bool ok = hexadecimal && put_string(b, ARG_WIDE, key, hexadecimal);
        Py_XDECREF(hexadecimal);
        return ok;
    }
    if (integer == -1 && PyErr_Occurred()) return false;
    if (!affords(b, 0)) b->left_out += key.id == NAME_LEFT_OUT ? integer - 1 : 0; /* it says how many before it */
    else if (put_head(b, ARG_INT, key, 8)) put(b, &integer, 8);
    return true;
}

/* Longer strings, and all other types, are made plain in Python. */
enum { LONGEST_STRING = 4096 };

static bool put_flow(struct builder *b, struct label key, PyObject *value) {
    int64_t flow = PyLong_AsLongLong(value);
    if (flow == -1 && PyErr_Occurred()) return false;
    if (affords(b, 0) && put_head(b, ARG_FLOW, key, 8)) put(b, &flow, 8);
    return true;
}

static bool put_value(struct builder *b, struct label key, PyObject *value) {
    if (PyLong_CheckExact(value)) return put_int(b, key, value);
    if (PyUnicode_CheckExact(value) && PyUnicode_GetLength(value) <= LONGEST_STRING)
        return put_string(b, ARG_TEXT, key, value);
    if (PyFloat_CheckExact(value)) {
        double real = PyFloat_AsDouble(value);
        if (affords(b, 0) && put_head(b, ARG_DOUBLE, key, 8)) put(b, &real, 8);
        return true;
    }
    if (value == Py_True || value == Py_False) {
        if (affords(b, 0) && put_head(b, ARG_BOOL, key, 1)) *b->at++ = value == Py_True;
        return true;
    }
    if ((PyObject *)Py_TYPE(value) == helpers.flow) return put_flow(b, key, value);
    PyObject *plain = PyObject_CallFunctionObjArgs(helpers.plain, value, NULL);
    if (!plain) return let_through(); /* a value that cannot say what it is costs that argument alone */
    bool ok = PyLong_CheckExact(plain) || PyUnicode_CheckExact(plain) || PyFloat_CheckExact(plain) || PyBool_Check(plain)
                  ? put_value(b, key, plain)
                  : true;
    Py_DECREF(plain);
    return ok;
}

struct blob *blob_of_args(PyObject *const *values, PyObject *kwnames, bool *ok) {
    struct builder b;
    struct blob *blob = NULL;
    Py_ssize_t count = kwnames ? PyTuple_Size(kwnames) : 0;
    builder_start(&b);
    *ok = true;
    for (Py_ssize_t i = 0; i < count && *ok; i++) {
        if (!values[i]) continue; /* taken out already: the stream */
        PyObject *key = PyTuple_GetItem(kwnames, i), *keep = NULL;
        int64_t id = name_id(key);
        struct label label = {.id = id > 0 ? (uint32_t)id : 0};
        b.key_length = PyUnicode_GetLength(key);
        if (id < 0 || (!id && !text_of(key, &label.text, &keep))) *ok = false;
        else *ok = put_value(&b, label, values[i]);
        Py_XDECREF(keep);
    }
    if (unlikely(b.left_out) && put_head(&b, ARG_INT, (struct label){.id = NAME_LEFT_OUT}, 8)) put(&b, &(int64_t){b.left_out}, 8);
    if (*ok && b.at > b.data && !(blob = blob_make(b.data, (size_t)(b.at - b.data)))) *ok = (PyErr_NoMemory(), false);
    builder_end(&b);
    return blob;
}

struct blob *blob_of_text_args(int count, const uint32_t *keys, const struct text *values) {
    struct builder b;
    builder_start(&b);
    for (int i = 0; i < count; i++)
        if (put_head(&b, ARG_TEXT, (struct label){.id = keys[i]}, 4 + (size_t)values[i].length)) put_text(&b, values[i]);
    struct blob *blob = blob_make(b.data, (size_t)(b.at - b.data));
    builder_end(&b);
    return blob;
}

struct blob *blob_of_error(struct text said) {
    static const uint32_t key[] = {NAME_ERROR};
    return blob_of_text_args(1, key, &said);
}

/* Reading. The bytes are our own: written above, so no length here is checked. */

static struct text take_text(const uint8_t **at) {
    struct text text = {.bytes = (const char *)*at + 4};
    memcpy(&text.length, *at, 4);
    *at += 4 + (size_t)text.length;
    return text;
}

bool arg_next(struct args *args, struct arg *out) {
    const uint8_t *at = args->at;
    if (at >= args->end || *at == ARG_NONE) return false;
    out->type = *at++;
    memcpy(&out->key.id, at, 4);
    at += 4;
    if (!out->key.id) out->key.text = take_text(&at);
    switch (out->type) {
    case ARG_BOOL: out->integer = *at++; break;
    case ARG_INT:
    case ARG_FLOW: memcpy(&out->integer, at, 8), at += 8; break;
    case ARG_DOUBLE: memcpy(&out->real, at, 8), at += 8; break;
    default: out->text = take_text(&at);
    }
    args->at = at;
    return true;
}

struct blob *blob_of_window(struct blob *args) {
    struct arg arg;
    if (!args) return NULL;
    struct args view = {args->bytes, args->bytes + args->length};
    for (;;) {
        const uint8_t *from = view.at;
        if (!arg_next(&view, &arg)) return blob_share(args);
        if (arg.type != ARG_FLOW) continue;
        struct blob *without = blob_make(args->bytes, args->length);
        if (!without) return NULL;
        size_t before = (size_t)(from - args->bytes), after = (size_t)(view.end - view.at);
        memcpy(without->bytes + before, view.at, after);
        without->length = (uint32_t)(before + after);
        return without;
    }
}

static PyObject *arg_object(const struct arg *arg) {
    switch (arg->type) {
    case ARG_BOOL: return PyBool_FromLong((long)arg->integer);
    case ARG_INT: return PyLong_FromLongLong(arg->integer);
    case ARG_FLOW: return PyObject_CallFunction(helpers.flow, "L", (long long)arg->integer);
    case ARG_DOUBLE: return PyFloat_FromDouble(arg->real);
    case ARG_TEXT: return text_object(arg->text);
    default: {
        PyObject *text = text_object(arg->text), *wide = NULL;
        if (text) wide = PyObject_CallFunction((PyObject *)&PyLong_Type, "Oi", text, 16);
        Py_XDECREF(text);
        return wide;
    }
    }
}

PyObject *args_object(const struct args *views, int count) {
    PyObject *dict = PyDict_New();
    for (int i = 0; dict && i < count; i++) {
        struct args view = views[i];
        struct arg arg;
        while (arg_next(&view, &arg)) {
            PyObject *key = label_object(arg.key), *value = arg_object(&arg);
            bool ok = key && value && !PyDict_SetItem(dict, key, value);
            Py_XDECREF(key);
            Py_XDECREF(value);
            if (!ok) {
                Py_DECREF(dict);
                return NULL;
            }
        }
    }
    return dict;
}
