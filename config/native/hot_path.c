/* The hot path's inner functions. Each has a Python twin, which is the specification: see `config/native/__init__.py`.
 *
 * A function that meets anything but the plain case returns None, and its caller takes the Python way. So this file has
 * no error messages of its own, and may be as strict as is convenient.
 *
 * Memory: every function writes into one `Buffer`, which is on the stack until it grows beyond it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#ifndef SOURCE_HASH
#define SOURCE_HASH ""
#endif

/* ---------------------------------------------------------------- a buffer */

typedef struct {
    char *start, *at, *end;
    int failed;
    char inside[4096];
} Buffer;

static void begin(Buffer *b) {
    b->start = b->at = b->inside;
    b->end = b->inside + sizeof b->inside;
    b->failed = 0;
}

static void release(Buffer *b) {
    if (b->start != b->inside) PyMem_Free(b->start);
}

static int room(Buffer *b, Py_ssize_t more) {
    if (b->end - b->at >= more) return 1;
    if (b->failed) return 0;
    Py_ssize_t used = b->at - b->start, size = (b->end - b->start) * 2;
    if (size < used + more) size = used + more;
    char *grown = b->start == b->inside ? PyMem_Malloc(size) : PyMem_Realloc(b->start, size);
    if (grown == NULL) {
        b->failed = 1;
        return 0;
    }
    if (b->start == b->inside) memcpy(grown, b->inside, used);
    b->start = grown;
    b->at = grown + used;
    b->end = grown + size;
    return 1;
}

static void put(Buffer *b, const char *data, Py_ssize_t size) {
    if (!room(b, size)) return;
    memcpy(b->at, data, size);
    b->at += size;
}

#define PUT(b, literal) put((b), (literal), sizeof(literal) - 1)

/* Digits of a number that is not negative, with leading zeros up to `width`. */
static void put_number(Buffer *b, unsigned long long number, int width) {
    char digits[24];
    int at = sizeof digits;
    do {
        digits[--at] = '0' + number % 10;
        number /= 10;
        width--;
    } while (number || width > 0);
    put(b, digits + at, sizeof digits - at);
}

/* As f"{value:.3f}". */
static void put_fixed(Buffer *b, double value) {
    char *text = PyOS_double_to_string(value, 'f', 3, 0, NULL);
    if (text == NULL) {
        b->failed = 1;
        return;
    }
    put(b, text, strlen(text));
    PyMem_Free(text);
}

/* JSON's escapes, as msgspec writes them. */
static void put_escaped(Buffer *b, const char *data, Py_ssize_t size) {
    static const char hex[] = "0123456789abcdef";
    Py_ssize_t more = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        unsigned char c = data[i];
        more += c < 0x20 ? 5 : c == '"' || c == '\\';
    }
    if (!room(b, size + more)) return;
    char *at = b->at;
    for (Py_ssize_t i = 0; i < size; i++) {
        unsigned char c = data[i];
        if (c >= 0x20 && c != '"' && c != '\\') {
            *at++ = c;
            continue;
        }
        *at++ = '\\';
        switch (c) {
        case '"': case '\\': *at++ = c; break;
        case '\b': *at++ = 'b'; break;
        case '\t': *at++ = 't'; break;
        case '\n': *at++ = 'n'; break;
        case '\f': *at++ = 'f'; break;
        case '\r': *at++ = 'r'; break;
        default:
            memcpy(at, "u00", 3);
            at[3] = hex[c >> 4];
            at[4] = hex[c & 15];
            at += 5;
        }
    }
    b->at = at;
}

static int put_text(Buffer *b, PyObject *text) {
    Py_ssize_t size;
    const char *data = PyUnicode_AsUTF8AndSize(text, &size);
    if (data == NULL) return 0;
    put(b, data, size);
    return 1;
}

static PyObject *bytes_of(Buffer *b) {
    PyObject *made = b->failed ? PyErr_NoMemory() : PyBytes_FromStringAndSize(b->start, b->at - b->start);
    release(b);
    return made;
}

static PyObject *abandon(Buffer *b) {
    release(b);
    return NULL;
}

static int is_ascii(const char *data, Py_ssize_t size) {
    for (Py_ssize_t i = 0; i < size; i++)
        if ((unsigned char)data[i] >= 0x80) return 0;
    return 1;
}

/* Raises UnicodeDecodeError. */
static int check_utf8(const char *data, Py_ssize_t size) {
    if (is_ascii(data, size)) return 1;
    PyObject *text = PyUnicode_DecodeUTF8(data, size, NULL);
    Py_XDECREF(text);
    return text != NULL;
}

/* A number that is not negative and has at most fifteen digits; -1 for another, which takes the Python way. */
static long long small(PyObject *number) {
    int overflow = 0;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    return overflow || value < 0 || value > 999999999999999LL ? -1 : value;
}

static int wrong_number(const char *name, Py_ssize_t wanted, Py_ssize_t given) {
    if (wanted == given) return 0;
    PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, got %zd", name, wanted, given);
    return 1;
}

/* -------------------------------------------------- messages, written and read */

/* As HTTP allows (`tasks.protocol.json_structure.MAX_DEPTH`). */
enum { MOST_DEPTH = 200 };

static const char BODY_END[] = "],{\"parameters\":{}},{}]";

/* message_rest(tracked, ttl_ms, tag, task_id, marks, expires, sent_ms, more, input, parameters, reply_to, queue) */
static PyObject *message_rest(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (wrong_number("message_rest", 12, count)) return NULL;
    int tracked = PyObject_IsTrue(args[0]);
    unsigned long long ttl_ms = PyLong_AsUnsignedLongLong(args[1]), sent_ms = PyLong_AsUnsignedLongLong(args[6]);
    Py_ssize_t id_size, input_size, parameters_size;
    const char *id = PyUnicode_AsUTF8AndSize(args[3], &id_size);
    char *input, *parameters;
    if (PyErr_Occurred() || id == NULL || PyBytes_AsStringAndSize(args[8], &input, &input_size) < 0
        || PyBytes_AsStringAndSize(args[9], &parameters, &parameters_size) < 0
        || !check_utf8(input, input_size) || !check_utf8(parameters, parameters_size))
        return NULL;
    Buffer buffer, *b = &buffer;
    begin(b);
    put(b, tracked ? "1;" : "0;", 2);
    put_number(b, ttl_ms, 9);
    PUT(b, ";");
    if (!put_text(b, args[2])) return abandon(b);
    PUT(b, ";");
    put(b, id, id_size);
    PUT(b, "\",");
    if (!put_text(b, args[4])) return abandon(b);
    PUT(b, "\"lang\":\"py\",\"task\":\"bunch.infer\",\"id\":\"");
    put(b, id, id_size);
    PUT(b, "\",\"expires\":\"");
    if (!put_text(b, args[5])) return abandon(b);
    PUT(b, "\",\"bunch_sent\":");
    put_number(b, sent_ms, 1);
    if (!put_text(b, args[7])) return abandon(b);
    PUT(b, "},\"body\":\"[[");
    put_escaped(b, input, input_size);
    PUT(b, "],{\\\"parameters\\\":");
    put_escaped(b, parameters, parameters_size);
    PUT(b, "},{}]\",\"content-type\":\"application/json\",\"content-encoding\":\"utf-8\",\"properties\":{\"reply_to\":");
    if (!put_text(b, args[10])) return abandon(b);
    PUT(b, ",\"delivery_info\":{\"exchange\":\"\",\"routing_key\":\"");
    if (!put_text(b, args[11])) return abandon(b);
    PUT(b, "\"},\"priority\":0,\"body_encoding\":\"utf-8\",\"delivery_tag\":\"");
    put(b, id, id_size);
    PUT(b, "\"}}");
    return bytes_of(b);
}

/* A reader of one message. Once `at` is NULL, nothing fits any more. */
typedef struct {
    const char *at, *end;
} Reader;

static void skip(Reader *r, const char *literal, Py_ssize_t size) {
    if (r->at == NULL) return;
    if (r->end - r->at < size || memcmp(r->at, literal, size) != 0) r->at = NULL;
    else r->at += size;
}

#define SKIP(r, literal) skip((r), (literal), sizeof(literal) - 1)

static int follows(Reader *r, const char *literal, Py_ssize_t size) {
    if (r->at == NULL || r->end - r->at < size || memcmp(r->at, literal, size) != 0) return 0;
    r->at += size;
    return 1;
}

#define FOLLOWS(r, literal) follows((r), (literal), sizeof(literal) - 1)

/* Exactly `width` digits, or with a width of 0 from one to fifteen. */
static long long number(Reader *r, int width) {
    long long value = 0;
    int read = 0;
    if (r->at == NULL) return 0;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9' && read < (width ? width : 15)) {
        value = value * 10 + (*r->at++ - '0');
        read++;
    }
    if (read == 0 || (width && read != width)) r->at = NULL;
    /* JSON has no number with a leading zero, and none that goes on in another way. */
    if (!width && r->at != NULL && ((read > 1 && r->at[-read] == '0') || r->at == r->end || *r->at != '}')) r->at = NULL;
    return value;
}

/* The characters up to the closing quote: ASCII, without escapes. */
static const char *plain(Reader *r, Py_ssize_t *size) {
    if (r->at == NULL) return NULL;
    const char *start = r->at;
    while (r->at < r->end && *r->at != '"') {
        unsigned char c = *r->at;
        if (c < 0x20 || c >= 0x7f || c == '\\') {
            r->at = NULL;
            return NULL;
        }
        r->at++;
    }
    if (r->at == r->end) {
        r->at = NULL;
        return NULL;
    }
    *size = r->at++ - start;
    return start;
}

static void same(Reader *r, const char *text, Py_ssize_t size) {
    skip(r, text, size);
    SKIP(r, "\"");
}

/* The most arrays and objects within each other, or more: brackets in strings count as well. */
static int depth_of(const char *at, const char *end) {
    int depth = 0, most = 0;
    for (; at < end; at++) {
        if (*at == '[' || *at == '{') {
            if (++depth > most) most = depth;
        } else if ((*at == ']' || *at == '}') && depth) {
            depth--;
        }
    }
    return most;
}

static int is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* The JSON text within a JSON string; its escapes are undone. Whole characters of four digits take the Python way. */
static void unescaped(Reader *r, Buffer *b) {
    if (r->at == NULL || !room(b, r->end - r->at)) {
        r->at = NULL;
        return;
    }
    char *to = b->at;
    const char *at = r->at, *end = r->end;
    for (;;) {
        if (at == end || (unsigned char)*at < 0x20) {
            r->at = NULL;
            return;
        }
        char c = *at++;
        if (c == '"') break;
        if (c == '\\') {
            if (at == end) {
                r->at = NULL;
                return;
            }
            c = *at++;
            switch (c) {
            case '"': case '\\': case '/': break;
            case 'b': c = '\b'; break;
            case 't': c = '\t'; break;
            case 'n': c = '\n'; break;
            case 'f': c = '\f'; break;
            case 'r': c = '\r'; break;
            default:
                r->at = NULL;
                return;
            }
        }
        *to++ = c;
    }
    r->at = at;
    b->at = to;
}

/* What a frontend's message says. The texts lie in the message, the input in the buffer. */
typedef struct {
    const char *id, *input, *reply_to, *once, *owner, *seal;
    Py_ssize_t id_size, input_size, reply_size, once_size, owner_size, seal_size;
    long long deadline_ms, enqueued_ms, attempt, lost, tracked, ttl_ms, sent_ms;
} Plain;

/* Returns whether it is a plain one. Whether the input is JSON is left to the caller. */
static int read_fields(const char *data, Py_ssize_t size, Plain *p, Buffer *b) {
    Py_ssize_t skipped;
    Reader reader = {data, data + size}, *r = &reader;
    memset(p, 0, sizeof *p);
    SKIP(r, "{\"headers\":{\"bunch\":\"1;");
    p->deadline_ms = number(r, 13);
    SKIP(r, ";");
    number(r, 13);
    SKIP(r, ";");
    p->enqueued_ms = number(r, 13);
    SKIP(r, ";");
    p->attempt = number(r, 2);
    SKIP(r, ";");
    p->lost = number(r, 1);
    SKIP(r, ";");
    p->tracked = number(r, 1);
    SKIP(r, ";");
    p->ttl_ms = number(r, 9);
    SKIP(r, ";");
    if (r->at == NULL || p->tracked > 1 || r->end - r->at < 9) return 0;
    for (int i = 0; i < 8; i++)
        if (!Py_ISXDIGIT((unsigned char)r->at[i])) return 0;
    r->at += 8;
    SKIP(r, ";");
    p->id = plain(r, &p->id_size);
    p->once = p->owner = p->seal = "";
    SKIP(r, ",\"");
    if (FOLLOWS(r, "bunch_once\":\"")) {
        p->once = plain(r, &p->once_size);
        SKIP(r, ",\"");
    }
    if (FOLLOWS(r, "bunch_owner\":\"")) {
        p->owner = plain(r, &p->owner_size);
        SKIP(r, ",\"");
    }
    if (FOLLOWS(r, "bunch_seal\":\"")) {
        p->seal = plain(r, &p->seal_size);
        SKIP(r, ",\"");
    }
    SKIP(r, "lang\":\"py\",\"task\":\"bunch.infer\",\"id\":\"");
    same(r, p->id, p->id_size);
    SKIP(r, ",\"expires\":\"");
    plain(r, &skipped);
    SKIP(r, ",\"bunch_sent\":");
    p->sent_ms = number(r, 0);
    SKIP(r, "},\"body\":\"");
    if (r->at == NULL || p->id_size == 0) return 0;
    unescaped(r, b);
    SKIP(r, ",\"content-type\":\"application/json\",\"content-encoding\":\"utf-8\",\"properties\":{\"reply_to\":\"");
    p->reply_to = plain(r, &p->reply_size);
    SKIP(r, ",\"delivery_info\":{\"exchange\":\"\",\"routing_key\":\"");
    plain(r, &skipped);
    SKIP(r, "},\"priority\":0,\"body_encoding\":\"utf-8\",\"delivery_tag\":\"");
    same(r, p->id, p->id_size);
    SKIP(r, "}}");
    Py_ssize_t length = b->at - b->start, end_size = sizeof(BODY_END) - 1;
    if (r->at == NULL || r->at != r->end || b->failed || length < 2 + end_size || memcmp(b->start, "[[", 2) != 0
        || memcmp(b->at - end_size, BODY_END, end_size) != 0)
        return 0;
    p->input = b->start + 2;
    p->input_size = length - 2 - end_size;
    const char *input_end = p->input + p->input_size;
    /* Python takes the white space off, and knows how deep is too deep. */
    if (p->input_size == 0 || is_space(*p->input) || is_space(input_end[-1]) || depth_of(p->input, input_end) > MOST_DEPTH)
        return 0;
    if (!check_utf8(b->start, length)) {
        PyErr_Clear();
        return 0;
    }
    return 1;
}

/* read_plain(message) -> (id, input, attempt, lost, enqueued_ms, deadline_ms, ttl_ms, reply_to, tracked, sent_ms, once,
 * owner, seal) | None. */
static PyObject *read_plain(PyObject *self, PyObject *message) {
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(message, &data, &size) < 0) return NULL;
    Plain plain, *p = &plain;
    Buffer buffer, *b = &buffer;
    begin(b);
    if (!read_fields(data, size, p, b)) {
        release(b);
        Py_RETURN_NONE;
    }
    PyObject *read = Py_BuildValue(
        "(s#y#iiLLLs#OLs#s#s#)", p->id, p->id_size, p->input, p->input_size, (int)p->attempt + 1, (int)p->lost,
        p->enqueued_ms, p->deadline_ms, p->ttl_ms, p->reply_to, p->reply_size, p->tracked ? Py_True : Py_False,
        p->sent_ms, p->once, p->once_size, p->owner, p->owner_size, p->seal, p->seal_size);
    release(b);
    return read;
}

/* ---------------------------------------------------------------- results */

enum { STATUS, OUTPUT, TRACEBACK, DONE, PARTS };

/* A stored result, but for what is added to its `bunch`. */
typedef struct {
    const char *part[PARTS];
    Py_ssize_t size[PARTS];
    PyObject *id, *tier, *common;
    long long admission_ms, queue_ms, attempt;
    int owned;
} Stored;

/* Returns 0 with an exception. The end of the object is for the caller to write. */
static int put_stored(Buffer *b, const Stored *of) {
    Py_ssize_t id_size;
    const char *id = PyUnicode_AsUTF8AndSize(of->id, &id_size);
    if (id == NULL) return 0;
    PUT(b, "{\"status\":\"");
    put(b, of->part[STATUS], of->size[STATUS]);
    if (of->owned) PUT(b, "\",\"owned\":true,\"result\":");
    else PUT(b, "\",\"result\":");
    put(b, of->part[OUTPUT], of->size[OUTPUT]);
    PUT(b, ",\"traceback\":");
    put(b, of->part[TRACEBACK], of->size[TRACEBACK]);
    PUT(b, ",\"children\":[],\"date_done\":\"");
    put(b, of->part[DONE], of->size[DONE]);
    PUT(b, "\",\"task_id\":\"");
    put_escaped(b, id, id_size);
    PUT(b, "\",\"bunch\":{\"admission_ms\":");
    put_number(b, of->admission_ms, 1);
    PUT(b, ",\"queue_ms\":");
    put_number(b, of->queue_ms, 1);
    PUT(b, ",\"tier\":\"");
    if (!put_text(b, of->tier)) return 0;
    PUT(b, "\",\"attempt\":");
    put_number(b, of->attempt, 1);
    PUT(b, ",");
    return put_text(b, of->common);
}

/* result(status, owned, output, traceback, date_done, task_id, admission_ms, queue_ms, tier, attempt, common, added) */
static PyObject *result(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (wrong_number("result", 12, count)) return NULL;
    static const int place[PARTS] = {0, 2, 3, 4};
    Stored of = {
        .owned = PyObject_IsTrue(args[1]), .id = args[5], .admission_ms = small(args[6]), .queue_ms = small(args[7]),
        .tier = args[8], .attempt = small(args[9]), .common = args[10]};
    char *part, *added;
    Py_ssize_t added_size;
    for (int i = 0; i < PARTS; i++) {
        if (PyBytes_AsStringAndSize(args[place[i]], &part, &of.size[i]) < 0) return NULL;
        of.part[i] = part;
    }
    if (PyBytes_AsStringAndSize(args[11], &added, &added_size) < 0 || PyErr_Occurred()) return NULL;
    if (of.admission_ms < 0 || of.queue_ms < 0 || of.attempt < 0) Py_RETURN_NONE;
    Buffer buffer, *b = &buffer;
    begin(b);
    if (!put_stored(b, &of)) return abandon(b);
    put(b, added, added_size);
    PUT(b, "}}");
    return bytes_of(b);
}

/* ---------------------------------------------------------------- requests over HTTP */

/* unfilled(size) -> (bytes, memoryview): bytes whose content is to be written by the view, before anybody else has them.
 * The view must be released before the bytes are. */
static PyObject *unfilled(PyObject *self, PyObject *size) {
    Py_ssize_t length = PyLong_AsSsize_t(size);
    if (length == -1 && PyErr_Occurred()) return NULL;
    PyObject *made = PyBytes_FromStringAndSize(NULL, length);
    if (made == NULL) return NULL;
    PyObject *view = PyMemoryView_FromMemory(PyBytes_AS_STRING(made), length, PyBUF_WRITE);
    PyObject *both = view == NULL ? NULL : PyTuple_Pack(2, made, view);
    Py_XDECREF(view);
    Py_DECREF(made);
    return both;
}

/* body_of(data, before, after, longest) -> bytes | None: the body of a request whose head is `before`, the body's length,
 * and `after`. */
static PyObject *body_of(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (wrong_number("body_of", 4, count)) return NULL;
    char *data, *before, *after;
    Py_ssize_t size, before_size, after_size;
    if (PyBytes_AsStringAndSize(args[0], &data, &size) < 0) return NULL;
    if (PyBytes_AsStringAndSize(args[1], &before, &before_size) < 0) return NULL;
    if (PyBytes_AsStringAndSize(args[2], &after, &after_size) < 0) return NULL;
    Py_ssize_t longest = PyLong_AsSsize_t(args[3]);
    if (longest == -1 && PyErr_Occurred()) return NULL;
    if (size <= before_size || memcmp(data, before, before_size) != 0) Py_RETURN_NONE;
    Py_ssize_t at = before_size, length = 0;
    if (data[at] == '0') Py_RETURN_NONE;
    for (; at < size && at < before_size + 9 && data[at] >= '0' && data[at] <= '9'; at++)
        length = length * 10 + (data[at] - '0');
    if (at == before_size || size - at < after_size || memcmp(data + at, after, after_size) != 0) Py_RETURN_NONE;
    at += after_size;
    if (at > longest || size - at != length) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize(data + at, length);
}

static const char *skip_blanks(const char *at, const char *end) {
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) at++;
    return at;
}

/* The end of a string of printable ASCII without escapes that begins at `at`, after its second quote; else NULL. */
static const char *plain_string(const char *at, const char *end) {
    if (at == end || *at != '"') return NULL;
    for (at++; at < end; at++) {
        if (*at == '"') return at + 1;
        if (*at < ' ' || *at > '~' || *at == '\\') return NULL;
    }
    return NULL;
}

/* plain_input(body) -> (input, model | None) | None: of `{"input": "…", "model": "…"}`, in this order or the other. The
 * model may be missing. `input` is JSON. */
static PyObject *plain_input(PyObject *self, PyObject *body) {
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(body, &data, &size) < 0) return NULL;
    const char *end = data + size, *at = skip_blanks(data, end);
    const char *input = NULL, *input_end = NULL, *model = NULL, *model_end = NULL;
    if (at == end || *at++ != '{') Py_RETURN_NONE;
    for (;;) {
        const char *name = skip_blanks(at, end), *name_end = plain_string(name, end);
        if (name_end == NULL) Py_RETURN_NONE;
        at = skip_blanks(name_end, end);
        if (at == end || *at++ != ':') Py_RETURN_NONE;
        const char *value = skip_blanks(at, end), *value_end = plain_string(value, end);
        if (value_end == NULL || name_end - name != 7) Py_RETURN_NONE;
        if (memcmp(name, "\"input\"", 7) == 0 && input == NULL) {
            input = value;
            input_end = value_end;
        } else if (memcmp(name, "\"model\"", 7) == 0 && model == NULL) {
            model = value;
            model_end = value_end;
        } else {
            Py_RETURN_NONE;
        }
        at = skip_blanks(value_end, end);
        if (at == end) Py_RETURN_NONE;
        if (*at == '}') break;
        if (*at++ != ',') Py_RETURN_NONE;
    }
    if (input == NULL || skip_blanks(at + 1, end) != end) Py_RETURN_NONE;
    if (model == NULL) return Py_BuildValue("(y#O)", input, input_end - input, Py_None);
    return Py_BuildValue("(y#s#)", input, input_end - input, model + 1, model_end - model - 2);
}

/* ---------------------------------------------------------------- answers over HTTP */

/* answer(request_id, task_id, model, output, bunch, latency_ms, admission_ms, queue_ms, batch_wait_ms, transfer_ms,
 * compute_ms) -> (body, Server-Timing) */
static PyObject *answer(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (wrong_number("answer", 11, count)) return NULL;
    double ms[6];
    for (int i = 0; i < 6; i++) {
        ms[i] = PyFloat_AsDouble(args[5 + i]);
        if (ms[i] == -1.0 && PyErr_Occurred()) {
            /* A number that is too large for a double. */
            if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return NULL;
            PyErr_Clear();
            Py_RETURN_NONE;
        }
    }
    long long admission_ms = small(args[6]), queue_ms = small(args[7]);
    if (PyErr_Occurred()) return NULL;
    if (admission_ms < 0 || queue_ms < 0) Py_RETURN_NONE;
    double reply_ms = ms[0] - ms[1] - ms[2] - ms[3] - ms[4] - ms[5];
    if (reply_ms < 0) reply_ms = 0.0;
    Py_buffer output, bunch;
    if (PyObject_GetBuffer(args[3], &output, PyBUF_SIMPLE) < 0) return NULL;
    if (PyObject_GetBuffer(args[4], &bunch, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&output);
        return NULL;
    }
    Buffer buffer, *b = &buffer;
    begin(b);
    PUT(b, "admission;dur=");
    put_number(b, admission_ms, 1);
    PUT(b, ", queue;dur=");
    put_number(b, queue_ms, 1);
    PUT(b, ", batch_wait;dur=");
    put_fixed(b, ms[3]);
    PUT(b, ", transfer;dur=");
    put_fixed(b, ms[4]);
    PUT(b, ", compute;dur=");
    put_fixed(b, ms[5]);
    PUT(b, ", reply;dur=");
    Py_ssize_t reply_at = b->at - b->start;
    put_fixed(b, reply_ms);
    PyObject *timing = b->failed ? NULL : PyUnicode_FromStringAndSize(b->start, b->at - b->start);
    char reply[64];
    Py_ssize_t reply_size = b->at - b->start - reply_at;
    int fine = timing != NULL && reply_size <= (Py_ssize_t)sizeof reply;
    if (fine) memcpy(reply, b->start + reply_at, reply_size);
    b->at = b->start;
    if (fine) {
        PUT(b, "{\"request_id\":\"");
        fine = put_text(b, args[0]);
    }
    if (fine) {
        PUT(b, "\",\"task_id\":\"");
        fine = put_text(b, args[1]);
    }
    if (fine) {
        PUT(b, "\",\"model\":\"");
        fine = put_text(b, args[2]);
    }
    PyObject *made = NULL;
    if (fine) {
        PUT(b, "\",\"output\":");
        put(b, output.buf, output.len);
        PUT(b, ",\"latency_ms\":");
        Py_ssize_t latency_at = b->at - b->start;
        put_fixed(b, ms[0]);
        char latency[64];
        Py_ssize_t latency_size = b->at - b->start - latency_at;
        if (latency_size > (Py_ssize_t)sizeof latency) latency_size = 0;
        memcpy(latency, b->start + latency_at, latency_size);
        PUT(b, ",\"metadata\":{\"latency_ms\":");
        put(b, latency, latency_size);
        PUT(b, ",\"reply_ms\":");
        put(b, reply, reply_size);
        PUT(b, ",");
        if (bunch.len > 2) put(b, (char *)bunch.buf + 1, bunch.len - 1);
        else PUT(b, "\"cached\":false}");
        PUT(b, "}");
        made = b->failed ? PyErr_NoMemory() : PyBytes_FromStringAndSize(b->start, b->at - b->start);
    }
    PyBuffer_Release(&output);
    PyBuffer_Release(&bunch);
    release(b);
    if (made == NULL) {
        if (!PyErr_Occurred()) PyErr_NoMemory();
        Py_XDECREF(timing);
        return NULL;
    }
    return Py_BuildValue("(NN)", made, timing);
}

enum { PLAIN, LENGTH, CONNECTION, DATE, OURS, TYPE };

/* Latin-1 without CR, LF and NUL, which would let a value's author add fields. */
static int put_field_text(Buffer *b, PyObject *text) {
    if (!PyUnicode_Check(text) || PyUnicode_READY(text) < 0 || PyUnicode_KIND(text) != PyUnicode_1BYTE_KIND) return 0;
    Py_ssize_t size = PyUnicode_GET_LENGTH(text);
    const char *data = (const char *)PyUnicode_1BYTE_DATA(text);
    if (memchr(data, '\r', size) || memchr(data, '\n', size) || memchr(data, '\0', size)) return 0;
    put(b, data, size);
    return 1;
}

/* response(status, fields, kinds, date, body) -> bytes | None: a whole response to a GET or POST of HTTP/1.1 on a
 * connection that goes on. `kinds` is `webapp.http.response._kinds`. */
static PyObject *response(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (wrong_number("response", 5, count)) return NULL;
    PyObject *fields = args[1], *kinds = args[2];
    char *body;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(args[4], &body, &size) < 0) return NULL;
    if (!PyList_CheckExact(fields) || !PyDict_CheckExact(kinds)) Py_RETURN_NONE;
    Buffer buffer, *b = &buffer;
    begin(b);
    int fits = 1, json = 0, has_length = 0;
    PUT(b, "HTTP/1.1 ");
    fits = put_field_text(b, args[0]);
    for (Py_ssize_t i = 0; fits && i < PyList_GET_SIZE(fields); i++) {
        PyObject *field = PyList_GET_ITEM(fields, i);
        if (!PyTuple_CheckExact(field) || PyTuple_GET_SIZE(field) != 2) {
            fits = 0;
            break;
        }
        PyObject *name = PyTuple_GET_ITEM(field, 0), *value = PyTuple_GET_ITEM(field, 1);
        PyObject *kind = PyDict_GetItemWithError(kinds, name);
        long which = kind == NULL ? -1 : PyLong_AsLong(kind);
        if (which == LENGTH) {
            /* Sent after the others, in its canonical form. */
            char digits[24];
            int length = PyOS_snprintf(digits, sizeof digits, "%zd", size);
            fits = !has_length && PyUnicode_Check(value) && PyUnicode_GET_LENGTH(value) == length
                && PyUnicode_CompareWithASCIIString(value, digits) == 0;
            has_length = 1;
        } else if (which == PLAIN || which == TYPE) {
            PUT(b, "\r\n");
            fits = put_field_text(b, name);
            PUT(b, ": ");
            fits = fits && put_field_text(b, value);
            if (which == TYPE) json = fits && PyUnicode_CompareWithASCIIString(value, "application/json") == 0;
        } else {
            fits = 0;
        }
    }
    if (PyErr_Occurred()) return abandon(b);
    if (!fits || !has_length) {
        release(b);
        Py_RETURN_NONE;
    }
    PUT(b, "\r\nContent-Length: ");
    put_number(b, size, 1);
    PUT(b, "\r\nDate: ");
    if (!put_field_text(b, args[3])) {
        release(b);
        Py_RETURN_NONE;
    }
    PUT(b, "\r\nX-Content-Type-Options: nosniff");
    if (json) PUT(b, "\r\nCache-Control: no-store");
    PUT(b, "\r\n\r\n");
    put(b, body, size);
    return bytes_of(b);
}

#include "batches.c"

static PyMethodDef methods[] = {
    {"message_rest", (PyCFunction)(void (*)(void))message_rest, METH_FASTCALL, NULL},
    {"read_plain", read_plain, METH_O, NULL},
    {"result", (PyCFunction)(void (*)(void))result, METH_FASTCALL, NULL},
    {"body_of", (PyCFunction)(void (*)(void))body_of, METH_FASTCALL, NULL},
    {"plain_input", plain_input, METH_O, NULL},
    {"unfilled", unfilled, METH_O, NULL},
    {"answer", (PyCFunction)(void (*)(void))answer, METH_FASTCALL, NULL},
    {"read_fresh", (PyCFunction)(void (*)(void))read_fresh, METH_FASTCALL, NULL},
    {"results", (PyCFunction)(void (*)(void))results, METH_FASTCALL, NULL},
    {"entries", (PyCFunction)(void (*)(void))entries, METH_FASTCALL, NULL},
    {"members", (PyCFunction)(void (*)(void))members, METH_FASTCALL, NULL},
    {"outcome_words", (PyCFunction)(void (*)(void))outcome_words, METH_FASTCALL, NULL},
    {"packed", packed, METH_O, NULL},
    {"response", (PyCFunction)(void (*)(void))response, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_hot_path", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__hot_path(void) {
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddStringConstant(made, "SOURCE_HASH", SOURCE_HASH) < 0) Py_CLEAR(made);
    return made;
}
