/* Whole batches in the worker. A part of `hot_path.c`, whose helpers it uses.
 *
 * Fields of a Struct are read from their slots: through the attribute each would cost 25 ns, ten times for each request.
 */
#include <structmember.h>

/* The slots of a class, found once. */
typedef struct {
    PyTypeObject *type;
    Py_ssize_t at[16];
} Slots;

/* Returns whether all of these are slots of the class; -1 with an error. */
static int find_slots(Slots *slots, PyObject *type, const char *const *names, int count) {
    if (slots->type == (PyTypeObject *)type) return 1;
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "not a class");
        return -1;
    }
    for (int i = 0; i < count; i++) {
        PyObject *found = PyObject_GetAttrString(type, names[i]);
        if (found == NULL) return -1;
        int fits = Py_IS_TYPE(found, &PyMemberDescr_Type) && ((PyMemberDescrObject *)found)->d_member->type == T_OBJECT_EX;
        if (fits) slots->at[i] = ((PyMemberDescrObject *)found)->d_member->offset;
        Py_DECREF(found);
        if (!fits) return 0;
    }
    Py_INCREF(type);
    slots->type = (PyTypeObject *)type;
    return 1;
}

/* Borrowed; NULL where it was never set. */
static PyObject *slot(const Slots *slots, PyObject *of, int which) {
    return *(PyObject **)((char *)of + slots->at[which]);
}

static PyObject *list_of_none(Py_ssize_t size) {
    PyObject *made = PyList_New(size);
    for (Py_ssize_t i = 0; made != NULL && i < size; i++) PyList_SET_ITEM(made, i, Py_NewRef(Py_None));
    return made;
}

/* A number that is nearly always the one before. */
typedef struct {
    long long value;
    PyObject *made;
} LastNumber;

static PyObject *number_object(LastNumber *last, long long value) {
    if (last->made == NULL || last->value != value) {
        Py_XSETREF(last->made, PyLong_FromLongLong(value));
        last->value = value;
    }
    return Py_XNewRef(last->made);
}

/* ---------------------------------------------------------------- a claim */

/* entries(Entry, marks, messages, first, verdicts, settled) -> tuple: `batching.claim.lease.entries_of`. */
static PyObject *entries(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (wrong_number("entries", 6, count)) return NULL;
    PyObject *messages = args[2], *verdicts = args[4], *settled = args[5];
    char *marks;
    Py_ssize_t marks_size;
    if (PyBytes_AsStringAndSize(args[1], &marks, &marks_size) < 0) return NULL;
    Py_ssize_t first = PyLong_AsSsize_t(args[3]);
    if (first == -1 && PyErr_Occurred()) return NULL;
    if (!PyList_CheckExact(messages) || !PyDict_CheckExact(verdicts) || !PyBytes_CheckExact(settled)) Py_RETURN_NONE;
    Py_ssize_t size = PyList_GET_SIZE(messages);
    if (marks_size < 2 * size) Py_RETURN_NONE;
    PyObject *found = PyList_New(0), *verdict = NULL;
    char mark = 0;
    for (Py_ssize_t i = 0; found != NULL && i < size; i++) {
        PyObject *message = PyList_GET_ITEM(messages, i);
        if (!PyBytes_CheckExact(message)) {
            Py_DECREF(found);
            Py_RETURN_NONE;
        }
        if (PyBytes_GET_SIZE(message) == PyBytes_GET_SIZE(settled)
            && memcmp(PyBytes_AS_STRING(message), PyBytes_AS_STRING(settled), PyBytes_GET_SIZE(settled)) == 0)
            continue;
        if (verdict == NULL || marks[2 * i + 1] != mark) {
            mark = marks[2 * i + 1];
            PyObject *key = PyLong_FromLong((unsigned char)mark);
            verdict = key == NULL ? NULL : PyDict_GetItemWithError(verdicts, key);
            Py_XDECREF(key);
            if (verdict == NULL) {
                Py_DECREF(found);
                if (PyErr_Occurred()) return NULL;
                Py_RETURN_NONE;
            }
        }
        PyObject *position = PyLong_FromSsize_t(first + i + 1), *rank = PyLong_FromLong((unsigned char)marks[2 * i] - 48);
        PyObject *made = NULL;
        if (position != NULL && rank != NULL) {
            PyObject *fields[] = {position, rank, verdict, message};
            made = PyObject_Vectorcall(args[0], fields, 4, NULL);
        }
        Py_XDECREF(position);
        Py_XDECREF(rank);
        if (made == NULL || PyList_Append(found, made) < 0) Py_CLEAR(found);
        Py_XDECREF(made);
    }
    PyObject *tuple = found == NULL ? NULL : PyList_AsTuple(found);
    Py_XDECREF(found);
    return tuple;
}

/* Whether it is a JSON string without escapes; other values are read by msgspec. It is UTF-8. */
static int is_plain_string(const char *at, Py_ssize_t size) {
    if (size < 2 || at[0] != '"' || at[size - 1] != '"') return 0;
    for (Py_ssize_t i = 1; i < size - 1; i++)
        if (at[i] == '"' || at[i] == '\\' || (unsigned char)at[i] < 0x20) return 0;
    return 1;
}

/* Of `read_fresh`: what all messages of a batch have in common. */
typedef struct {
    PyObject *request, *parameters, *decode, *reply_to;
    LastNumber enqueued, deadline, ttl, sent;
    const char *mark;
    Py_ssize_t mark_size;
} Common;

static PyObject *reply_object(Common *c, const Plain *p) {
    Py_ssize_t size = 0;
    const char *last = c->reply_to == NULL ? NULL : PyUnicode_AsUTF8AndSize(c->reply_to, &size);
    if (last == NULL || size != p->reply_size || memcmp(last, p->reply_to, size) != 0)
        Py_XSETREF(c->reply_to, PyUnicode_FromStringAndSize(p->reply_to, p->reply_size));
    return Py_XNewRef(c->reply_to);
}

/* A request of its first attempt, or None; NULL with an error. */
static PyObject *request_of(Common *c, const Plain *p, PyObject *tier, PyObject *position) {
    PyObject *input = PyBytes_FromStringAndSize(p->input, p->input_size);
    if (input == NULL) return NULL;
    if (!is_plain_string(p->input, p->input_size)) {
        PyObject *value = PyObject_CallOneArg(c->decode, input);
        if (value == NULL) {
            Py_DECREF(input);
            if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
            PyErr_Clear();
            Py_RETURN_NONE;
        }
        Py_DECREF(value);
    }
    PyObject *fields[] = {
        PyUnicode_FromStringAndSize(p->id, p->id_size),
        Py_NewRef(tier),
        Py_NewRef(position),
        input,
        Py_NewRef(c->parameters),
        PyLong_FromLong(1),
        PyLong_FromLong(0),
        number_object(&c->enqueued, p->enqueued_ms),
        number_object(&c->deadline, p->deadline_ms),
        number_object(&c->ttl, p->ttl_ms),
        reply_object(c, p),
        PyLong_FromLong(0),
        PyBytes_FromStringAndSize(NULL, 0),
        Py_NewRef(p->tracked ? Py_True : Py_False),
        number_object(&c->sent, p->sent_ms),
        PyUnicode_FromStringAndSize(p->owner, p->owner_size),
    };
    enum { FIELDS = sizeof fields / sizeof *fields };
    int whole = 1;
    for (int i = 0; i < FIELDS; i++) whole = whole && fields[i] != NULL;
    PyObject *made = whole ? PyObject_Vectorcall(c->request, fields, FIELDS, NULL) : NULL;
    for (int i = 0; i < FIELDS; i++) Py_XDECREF(fields[i]);
    return made;
}

/* One entry of a claim into `requests`; what Python has to look at goes into `marked`. Returns -1 with an error. */
static int read_entry(
    Common *c, PyObject *requests, PyObject *marked, Py_ssize_t index, PyObject *message, PyObject *tier,
    PyObject *position, long long now_ms, int all
) {
    Plain plain, *p = &plain;
    Buffer buffer, *b = &buffer;
    begin(b);
    PyObject *made = NULL;
    int done = 0;
    if (!read_fields(PyBytes_AS_STRING(message), PyBytes_GET_SIZE(message), p, b) || p->attempt || p->lost
        || (p->deadline_ms && p->deadline_ms <= now_ms)) {
        release(b);
        return 0;
    }
    made = request_of(c, p, tier, position);
    if (made != NULL && made != Py_None) {
        int is_blob = p->input_size >= c->mark_size && memcmp(p->input, c->mark, c->mark_size) == 0;
        if (all || p->once_size || p->seal_size || is_blob) {
            PyObject *row = Py_BuildValue("(ns#s#)", index, p->once, p->once_size, p->seal, p->seal_size);
            done = row == NULL ? -1 : PyList_Append(marked, row);
            Py_XDECREF(row);
        }
    }
    release(b);
    if (made == NULL) return -1;
    PyList_SetItem(requests, index, made);
    return done;
}

/* read_fresh(entries, now_ms, all, Entry, Request, run, tiers, parameters, decode, mark) -> (requests, marked): the
 * requests of a claim that can run as they are, None in the place of each other; and of those that Python has to look
 * at, or of `all`, (index, once, seal). */
static PyObject *read_fresh(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    enum { POSITION, RANK, VERDICT, MESSAGE, NAMES };
    static const char *const names[NAMES] = {"position", "rank", "verdict", "message"};
    static Slots slots;
    if (wrong_number("read_fresh", 10, count)) return NULL;
    PyObject *entries = args[0], *run = args[5], *tiers = args[6];
    long long now_ms = PyLong_AsLongLong(args[1]);
    int all = PyObject_IsTrue(args[2]);
    if (PyErr_Occurred()) return NULL;
    Common common = {.request = args[4], .parameters = args[7], .decode = args[8]};
    char *mark;
    if (PyBytes_AsStringAndSize(args[9], &mark, &common.mark_size) < 0) return NULL;
    common.mark = mark;
    if (!PyTuple_CheckExact(entries) || !PyTuple_CheckExact(tiers)) {
        PyErr_SetString(PyExc_TypeError, "read_fresh() takes tuples of entries and tiers");
        return NULL;
    }
    int known = find_slots(&slots, args[3], names, NAMES);
    if (known < 0) return NULL;
    Py_ssize_t size = PyTuple_GET_SIZE(entries);
    PyObject *requests = list_of_none(size), *marked = PyList_New(0);
    int fine = requests != NULL && marked != NULL;
    for (Py_ssize_t i = 0; fine && known && i < size; i++) {
        PyObject *entry = PyTuple_GET_ITEM(entries, i);
        if (!Py_IS_TYPE(entry, slots.type)) continue;
        PyObject *message = slot(&slots, entry, MESSAGE), *rank = slot(&slots, entry, RANK);
        PyObject *position = slot(&slots, entry, POSITION);
        if (slot(&slots, entry, VERDICT) != run || message == NULL || !PyBytes_CheckExact(message) || rank == NULL
            || !PyLong_CheckExact(rank) || position == NULL)
            continue;
        long which = PyLong_AsLong(rank);
        if (which < 0 || which >= PyTuple_GET_SIZE(tiers)) {
            PyErr_Clear();
            continue;
        }
        fine = read_entry(&common, requests, marked, i, message, PyTuple_GET_ITEM(tiers, which), position, now_ms, all) == 0;
    }
    Py_XDECREF(common.reply_to);
    Py_XDECREF(common.enqueued.made);
    Py_XDECREF(common.deadline.made);
    Py_XDECREF(common.ttl.made);
    Py_XDECREF(common.sent.made);
    if (!fine) {
        Py_XDECREF(requests);
        Py_XDECREF(marked);
        return NULL;
    }
    return Py_BuildValue("(NN)", requests, marked);
}

/* ---------------------------------------------------------------- its outcomes */

enum { R_ID, R_TIER, R_POSITION, R_ATTEMPT, R_ENQUEUED, R_SENT, R_TTL, R_REPLY, R_TRACKED, R_QUESTION, R_SEALED, R_FOREIGN, R_NAME, R_NAMES };
static const char *const request_names[R_NAMES] = {
    "id", "tier", "position", "attempt", "enqueued_ms", "sent_ms", "result_ttl_ms", "reply_to", "tracked", "question",
    "sealed", "foreign", "request_id"};
static Slots request_slots;

/* Of `results`: what all outcomes of a batch have in common. */
typedef struct {
    PyObject *settled, *tiers, *prefix, *date_done, *common, *tier, *tier_name;
    long long claimed_ms;
} Batch;

/* Writes the stored result of an output; returns 0 where Python must. */
static int put_result(Buffer *b, Batch *of, PyObject *request, PyObject *output, PyObject *metadata, PyObject *id) {
    long long attempt = small(slot(&request_slots, request, R_ATTEMPT));
    long long enqueued_ms = small(slot(&request_slots, request, R_ENQUEUED));
    long long sent_ms = small(slot(&request_slots, request, R_SENT));
    PyObject *tier = slot(&request_slots, request, R_TIER);
    if (attempt < 0 || enqueued_ms < 0 || sent_ms < 0 || tier == NULL) return 0;
    if (tier != of->tier) {
        of->tier_name = PyDict_GetItemWithError(of->tiers, tier);
        if (of->tier_name == NULL) return 0;
        of->tier = tier;
    }
    long long admission_ms = enqueued_ms && sent_ms && enqueued_ms > sent_ms ? enqueued_ms - sent_ms : 0;
    long long queue_ms = enqueued_ms && of->claimed_ms > enqueued_ms ? of->claimed_ms - enqueued_ms : 0;
    Stored stored = {
        .part = {"SUCCESS", PyBytes_AS_STRING(output), "null", PyBytes_AS_STRING(of->date_done)},
        .size = {7, PyBytes_GET_SIZE(output), 4, PyBytes_GET_SIZE(of->date_done)},
        .owned = slot(&request_slots, request, R_SEALED) == Py_True, .id = id, .tier = of->tier_name,
        .common = of->common, .admission_ms = admission_ms, .queue_ms = queue_ms, .attempt = attempt};
    if (!put_stored(b, &stored)) return 0;
    if (PyBytes_GET_SIZE(metadata)) {
        PUT(b, ",");
        put(b, PyBytes_AS_STRING(metadata), PyBytes_GET_SIZE(metadata));
    }
    PUT(b, "}}");
    return !b->failed;
}

static PyObject *settled_of(Buffer *b, Batch *of, PyObject *request, PyObject *output, PyObject *metadata) {
    PyObject *id = slot(&request_slots, request, R_ID), *reply_to = slot(&request_slots, request, R_REPLY);
    PyObject *question = slot(&request_slots, request, R_QUESTION), *position = slot(&request_slots, request, R_POSITION);
    PyObject *ttl = slot(&request_slots, request, R_TTL), *foreign = slot(&request_slots, request, R_FOREIGN);
    if (id == NULL || question == NULL || position == NULL || ttl == NULL || foreign == NULL || reply_to == NULL
        || !PyUnicode_CheckExact(id) || !PyUnicode_CheckExact(reply_to) || !PyUnicode_CheckExact(question)
        || PyUnicode_GET_LENGTH(question) || output == NULL || !PyBytes_CheckExact(output) || metadata == NULL
        || !PyBytes_CheckExact(metadata))
        Py_RETURN_NONE;
    b->at = b->start;
    if (!put_result(b, of, request, output, metadata, id)) {
        /* Python says it better, where there is anything to say. */
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    int heard = PyUnicode_Tailmatch(reply_to, of->prefix, 0, PY_SSIZE_T_MAX, -1) == 1;
    PyObject *nobody = PyUnicode_FromStringAndSize("", 0), *nothing = PyBytes_FromStringAndSize(NULL, 0);
    PyObject *result = PyBytes_FromStringAndSize(b->start, b->at - b->start), *made = NULL;
    if (nobody != NULL && nothing != NULL && result != NULL) {
        int announce = !heard || slot(&request_slots, request, R_TRACKED) == Py_True;
        PyObject *fields[] = {
            position, id, ttl, heard ? reply_to : nobody, result, nothing, announce ? Py_True : Py_False, Py_None, foreign};
        made = PyObject_Vectorcall(of->settled, fields, sizeof fields / sizeof *fields, NULL);
    }
    Py_XDECREF(nobody);
    Py_XDECREF(nothing);
    Py_XDECREF(result);
    return made;
}

/* results(outcomes, Request, Ok, Settled, tiers, prefix, claimed_ms, date_done, common) -> a `Settled` for each output of a
 * request that is nothing to others, None for whatever else. */
static PyObject *results(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    enum { OUTPUT, METADATA, NAMES };
    static const char *const names[NAMES] = {"output", "metadata"};
    static Slots slots;
    if (wrong_number("results", 9, count)) return NULL;
    PyObject *outcomes = args[0];
    Batch batch = {.settled = args[3], .tiers = args[4], .prefix = args[5], .date_done = args[7], .common = args[8]};
    batch.claimed_ms = small(args[6]);
    if (PyErr_Occurred()) return NULL;
    if (!PyList_CheckExact(outcomes) || !PyDict_CheckExact(batch.tiers) || !PyUnicode_Check(batch.prefix)
        || !PyBytes_CheckExact(batch.date_done) || !PyUnicode_Check(batch.common)) {
        PyErr_SetString(PyExc_TypeError, "results() takes other types");
        return NULL;
    }
    int known = find_slots(&request_slots, args[1], request_names, R_NAMES);
    if (known > 0) known = find_slots(&slots, args[2], names, NAMES);
    if (known < 0) return NULL;
    Py_ssize_t size = PyList_GET_SIZE(outcomes);
    PyObject *found = list_of_none(size);
    if (found == NULL || !known || batch.claimed_ms < 0) return found;
    Buffer buffer, *b = &buffer;
    begin(b);
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *pair = PyList_GET_ITEM(outcomes, i);
        if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2) continue;
        PyObject *request = PyTuple_GET_ITEM(pair, 0), *outcome = PyTuple_GET_ITEM(pair, 1);
        if (!Py_IS_TYPE(request, request_slots.type) || !Py_IS_TYPE(outcome, slots.type)) continue;
        PyObject *made = settled_of(b, &batch, request, slot(&slots, outcome, OUTPUT), slot(&slots, outcome, METADATA));
        if (made == NULL) {
            Py_DECREF(found);
            return abandon(b);
        }
        PyList_SetItem(found, i, made);
    }
    release(b);
    return found;
}

/* members(settled, Request, Ok, ranks, claimed_ms) -> bytes | None: the JSON of a `Member` for each, where all were in the
 * batch and have an output. */
static PyObject *members(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (wrong_number("members", 5, count)) return NULL;
    PyObject *settled = args[0], *ranks = args[3], *tier = NULL;
    long long claimed_ms = small(args[4]), rank = 0;
    if (PyErr_Occurred()) return NULL;
    if (!PyList_CheckExact(settled) || !PyDict_CheckExact(ranks)) Py_RETURN_NONE;
    int known = find_slots(&request_slots, args[1], request_names, R_NAMES);
    if (known < 0) return NULL;
    if (!known || claimed_ms < 0) Py_RETURN_NONE;
    Buffer buffer, *b = &buffer;
    begin(b);
    PUT(b, "[");
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(settled); i++) {
        PyObject *pair = PyList_GET_ITEM(settled, i);
        int fits = PyTuple_CheckExact(pair) && PyTuple_GET_SIZE(pair) == 2
            && Py_IS_TYPE(PyTuple_GET_ITEM(pair, 0), request_slots.type) && (PyObject *)Py_TYPE(PyTuple_GET_ITEM(pair, 1)) == args[2];
        PyObject *request = fits ? PyTuple_GET_ITEM(pair, 0) : NULL;
        for (int k = 0; fits && k < R_NAMES; k++) fits = slot(&request_slots, request, k) != NULL;
        if (fits && slot(&request_slots, request, R_TIER) != tier) {
            tier = slot(&request_slots, request, R_TIER);
            PyObject *found = PyDict_GetItemWithError(ranks, tier);
            fits = found != NULL && (rank = small(found)) >= 0;
        }
        long long position = fits ? small(slot(&request_slots, request, R_POSITION)) : -1;
        long long attempt = fits ? small(slot(&request_slots, request, R_ATTEMPT)) : -1;
        long long enqueued_ms = fits ? small(slot(&request_slots, request, R_ENQUEUED)) : -1;
        long long sent_ms = fits ? small(slot(&request_slots, request, R_SENT)) : -1;
        fits = fits && position > 0 && attempt >= 0 && enqueued_ms >= 0 && sent_ms >= 0;
        Py_ssize_t id_size, name_size;
        const char *id = fits ? PyUnicode_AsUTF8AndSize(slot(&request_slots, request, R_ID), &id_size) : NULL;
        const char *name = id ? PyUnicode_AsUTF8AndSize(slot(&request_slots, request, R_NAME), &name_size) : NULL;
        if (name == NULL) {
            PyErr_Clear();
            release(b);
            Py_RETURN_NONE;
        }
        if (i) PUT(b, ",");
        PUT(b, "[\"");
        put_escaped(b, id, id_size);
        PUT(b, "\",");
        put_number(b, rank, 1);
        PUT(b, ",");
        put_number(b, attempt, 1);
        PUT(b, ",");
        if (enqueued_ms && sent_ms) put_number(b, enqueued_ms > sent_ms ? enqueued_ms - sent_ms : 0, 1);
        else PUT(b, "-1");
        PUT(b, ",");
        if (enqueued_ms) put_number(b, claimed_ms > enqueued_ms ? claimed_ms - enqueued_ms : 0, 1);
        else PUT(b, "-1");
        PUT(b, ",\"OK\",\"");
        put_escaped(b, name, name_size);
        PUT(b, "\",\"\"]");
    }
    PUT(b, "]");
    return bytes_of(b);
}

/* outcome_words(outcomes, Settled, first) -> (channels, words) | None: `batching.outcome_rows`, of outcomes that are
 * nothing to others. */
static PyObject *outcome_words(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    enum { POSITION, ID, TTL, REPLY, RESULT, LETTER, ANNOUNCE, ASKED, FOREIGN, NAMES };
    static const char *const names[NAMES] = {
        "position", "task_id", "ttl_ms", "reply_to", "result", "dead_letter", "announce", "asked", "foreign"};
    static Slots slots;
    if (wrong_number("outcome_words", 3, count)) return NULL;
    PyObject *outcomes = args[0];
    long long first = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    if (!PyList_CheckExact(outcomes)) Py_RETURN_NONE;
    int known = find_slots(&slots, args[1], names, NAMES);
    if (known < 0) return NULL;
    if (!known) Py_RETURN_NONE;
    PyObject *channels = PyDict_New(), *words = PyList_New(0), *before = NULL;
    int fine = channels != NULL && words != NULL, plain = 1;
    long long position = 0, in_run = 0;
    Py_ssize_t count_at = -1;
    for (Py_ssize_t i = 0; fine && plain && i < PyList_GET_SIZE(outcomes); i++) {
        PyObject *each = PyList_GET_ITEM(outcomes, i);
        if (!Py_IS_TYPE(each, slots.type)) {
            plain = 0;
            break;
        }
        for (int k = 0; k < NAMES; k++) plain = plain && slot(&slots, each, k) != NULL;
        if (!plain || slot(&slots, each, ASKED) != Py_None) {
            plain = 0;
            break;
        }
        PyObject *reply_to = slot(&slots, each, REPLY), *place = slot(&slots, each, POSITION);
        long long here = PyLong_AsLongLong(place) - first;
        if (PyErr_Occurred()) {
            fine = 0;
            break;
        }
        int same = before != NULL && here == position && slot(&slots, before, ANNOUNCE) == slot(&slots, each, ANNOUNCE)
            && slot(&slots, before, FOREIGN) == slot(&slots, each, FOREIGN);
        static const int compared[] = {TTL, REPLY, LETTER};
        for (int k = 0; k < 3 && same > 0; k++)
            same = PyObject_RichCompareBool(slot(&slots, before, compared[k]), slot(&slots, each, compared[k]), Py_EQ);
        if (same < 0) {
            fine = 0;
            break;
        }
        if (!same) {
            if (count_at >= 0) PyList_SetItem(words, count_at, PyLong_FromLongLong(in_run));
            in_run = 0;
            long channel = 0;
            int has_channel = PyObject_IsTrue(reply_to);
            if (has_channel < 0) {
                fine = 0;
                break;
            }
            if (has_channel) {
                PyObject *number = PyDict_GetItemWithError(channels, reply_to);
                if (number != NULL) {
                    channel = PyLong_AsLong(number);
                } else {
                    channel = PyDict_GET_SIZE(channels) + 1;
                    number = PyLong_FromLong(channel);
                    fine = number != NULL && !PyErr_Occurred() && PyDict_SetItem(channels, reply_to, number) == 0;
                    Py_XDECREF(number);
                    if (!fine) break;
                }
            }
            int announce = PyObject_IsTrue(slot(&slots, each, ANNOUNCE));
            if (PyObject_IsTrue(slot(&slots, each, FOREIGN))) announce = 2;
            PyObject *run[] = {
                Py_NewRef(slot(&slots, each, TTL)), PyLong_FromLong(channel), Py_NewRef(slot(&slots, each, LETTER)),
                PyLong_FromLong(announce), PyLong_FromLong(2), PyLong_FromLongLong(here), PyLong_FromLong(0)};
            for (int k = 0; k < 7; k++) {
                fine = fine && run[k] != NULL && PyList_Append(words, run[k]) == 0;
                Py_XDECREF(run[k]);
            }
            count_at = PyList_GET_SIZE(words) - 1;
            position = here;
        }
        fine = fine && PyList_Append(words, slot(&slots, each, ID)) == 0 && PyList_Append(words, slot(&slots, each, RESULT)) == 0;
        in_run++;
        position++;
        before = each;
    }
    if (fine && plain && count_at >= 0) fine = PyList_SetItem(words, count_at, PyLong_FromLongLong(in_run)) == 0;
    if (fine && plain) return Py_BuildValue("(NN)", channels, words);
    Py_XDECREF(channels);
    Py_XDECREF(words);
    if (!fine) return NULL;
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- a command */

static void put_word(Buffer *b, const char *data, Py_ssize_t size) {
    PUT(b, "$");
    put_number(b, size, 1);
    PUT(b, "\r\n");
    put(b, data, size);
    PUT(b, "\r\n");
}

/* packed(command) -> bytes | None: a command as Redis reads it, as `hiredis.pack_command` writes it, of texts, bytes and
 * numbers. */
static PyObject *packed(PyObject *self, PyObject *command) {
    if (!PyTuple_CheckExact(command)) Py_RETURN_NONE;
    Py_ssize_t count = PyTuple_GET_SIZE(command), size = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *word = PyTuple_GET_ITEM(command, i);
        size += PyBytes_CheckExact(word) ? PyBytes_GET_SIZE(word) + 16 : 64;
    }
    Buffer buffer, *b = &buffer;
    begin(b);
    room(b, size);
    PUT(b, "*");
    put_number(b, count, 1);
    PUT(b, "\r\n");
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *word = PyTuple_GET_ITEM(command, i);
        if (PyBytes_CheckExact(word)) {
            put_word(b, PyBytes_AS_STRING(word), PyBytes_GET_SIZE(word));
        } else if (PyUnicode_CheckExact(word)) {
            Py_ssize_t length;
            const char *text = PyUnicode_AsUTF8AndSize(word, &length);
            if (text == NULL) return abandon(b);
            put_word(b, text, length);
        } else if (PyLong_CheckExact(word) || PyFloat_CheckExact(word)) {
            PyObject *digits = PyObject_Repr(word);
            Py_ssize_t length;
            const char *text = digits == NULL ? NULL : PyUnicode_AsUTF8AndSize(digits, &length);
            if (text != NULL) put_word(b, text, length);
            Py_XDECREF(digits);
            if (text == NULL) return abandon(b);
        } else {
            release(b);
            Py_RETURN_NONE;
        }
    }
    return bytes_of(b);
}
