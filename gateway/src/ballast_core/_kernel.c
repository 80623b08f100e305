/* The arithmetic of a decision, compiled. The numpy code beside each caller is the reference: the same formulas, the
 * same names, and results within 1e-11 of it (tests/core/test_kernel.py).
 *
 * Python's stable ABI only, so one build serves every Python from 3.11 on; arrays come as buffers, without numpy's
 * headers. Each argument is checked for type, shape and index range before it is used: a mistake raises and never
 * crashes. Results go to an array that the caller passes as `out`.
 *
 * Sums run in the order in which they are written: build with -ffp-contract=off and without -ffast-math.
 */

#include "_python.h"

#if defined(__x86_64__) && !defined(BY_PAIRS) /* a build for tests may leave the wider vectors out */
#define QUADS
#include <cpuid.h>
#endif
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What callers and kernel agree on; raised with every change of a function's arguments or formulas. */
#define VERSION 1

#define TIMES 9       /* times at which `ballast` weighs a request: the hand-off and eight pieces of its life */
#define LANES 12      /* TIMES, padded to whole vectors */
#define PIECES (TIMES - 1)
#define UNREPORTED_TOKENS 16.0
#define FIRST_DELAY_S 0.1
#define DELAYS 64
#define STEPS_PER_DOUBLING 8
#define LEAST_SLOPE 1e-9
#define NO_LIMIT INT64_MAX
#define HIGHEST_LIMIT (INT64_C(1) << 20)

/* Doubles that one instruction multiplies or adds. Wider ones give the same results: no sum is cut differently. */
typedef double pair __attribute__((vector_size(16), aligned(8), may_alias));
typedef double quad __attribute__((vector_size(32), aligned(8), may_alias));

static inline double larger(double a, double b) { return a > b ? a : b; }
static inline double smaller(double a, double b) { return a < b ? a : b; }

/* --- arguments --------------------------------------------------------------------------------------------------- */

#define MOST_BUFFERS 40

/* The buffers of a call, released together. */
typedef struct {
    Py_buffer buffers[MOST_BUFFERS];
    int count;
} Held;

static void release(Held *held)
{
    while (held->count)
        PyBuffer_Release(&held->buffers[--held->count]);
}

/* One array: its data, its number of entries, and of a matrix the number of rows and columns. */
typedef struct {
    union {
        const double *f;
        const int64_t *i;
        const unsigned char *b;
        double *out;
        int64_t *out_i;
    };
    Py_ssize_t len, rows, columns;
} Array;

enum { READ = 0, WRITE = PyBUF_WRITABLE };

/* Fill `array` from a C-contiguous array of `kind`: d float64, q int64, ? bool. -1 with an exception otherwise. */
static int get(Held *held, PyObject *from, const char *name, char kind, int dimensions, int access, Array *array)
{
    if (held->count == MOST_BUFFERS) {
        PyErr_SetString(PyExc_SystemError, "too many arrays");
        return -1;
    }
    Py_buffer *buffer = &held->buffers[held->count];
    if (PyObject_GetBuffer(from, buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | access) < 0)
        return -1;
    held->count++;
    const char *format = buffer->format ? buffer->format : "B";
    int right = buffer->itemsize == (kind == '?' ? 1 : 8) && strlen(format) == 1 &&
                (kind == 'q' ? strchr("lq", format[0]) != NULL : format[0] == kind);
    if (!right) {
        PyErr_Format(PyExc_TypeError, "%s: must hold %s, not '%s'", name,
                     kind == 'd' ? "float64" : kind == 'q' ? "int64" : "bool", format);
        return -1;
    }
    if (buffer->ndim != dimensions) {
        PyErr_Format(PyExc_ValueError, "%s: must have %d dimensions, not %d", name, dimensions, buffer->ndim);
        return -1;
    }
    array->f = buffer->buf;
    array->len = buffer->len / buffer->itemsize;
    array->rows = dimensions == 2 ? buffer->shape[0] : 1;
    array->columns = dimensions == 2 ? buffer->shape[1] : array->len;
    return 0;
}

static int expect_length(const char *name, const Array *array, Py_ssize_t least)
{
    if (array->len >= least)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s: must have %zd entries, not %zd", name, least, array->len);
    return -1;
}

static int expect_arguments(Py_ssize_t given, Py_ssize_t expected)
{
    if (given == expected)
        return 0;
    PyErr_Format(PyExc_TypeError, "takes %zd arguments, not %zd", expected, given);
    return -1;
}

/* Every index is from 0 to below `length`. */
static int expect_within(const char *name, const Array *indices, Py_ssize_t length)
{
    for (Py_ssize_t k = 0; k < indices->len; k++)
        if (indices->i[k] < 0 || indices->i[k] >= length) {
            PyErr_Format(PyExc_IndexError, "%s: %lld is not from 0 to below %zd", name, (long long)indices->i[k],
                         length);
            return -1;
        }
    return 0;
}

static int get_double(PyObject *from, double *value)
{
    *value = PyFloat_AsDouble(from);
    return *value == -1.0 && PyErr_Occurred() ? -1 : 0;
}

static int get_integer(PyObject *from, int64_t *value)
{
    *value = PyLong_AsLongLong(from);
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

/* --- hardware profiles, by slot (beliefs/stacked_profiles.py) ---------------------------------------------------- */

enum { OVERHEAD, FLOOR_4, SLOPE, READ_S, PAIR_S, HOST, BUDGET, CHUNK, CHUNK_TOKEN, KV, COLUMNS = 13 };

static int get_profiles(Held *held, PyObject *from, const char *name, Array *profiles)
{
    if (get(held, from, name, 'd', 2, READ, profiles) < 0)
        return -1;
    if (profiles->rows == COLUMNS)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s: must have %d columns, not %zd", name, COLUMNS, profiles->rows);
    return -1;
}

static inline double of(const Array *profiles, int column, int64_t slot)
{
    return profiles->f[column * profiles->columns + slot];
}

/* The law's fourth-power mean. */
static inline double weights_and_matmul_s(double slope, double floor_4, double tokens)
{
    double mean = slope * tokens;
    mean *= mean;
    mean *= mean;
    mean += floor_4;
    return sqrt(sqrt(mean));
}

/* --- prefill times (beliefs/prefill_time.py) --------------------------------------------------------------------- */

typedef struct {
    Array profiles, factors, requests, uncached_tokens, uncached_pairs, since_s;
} Prefills;

static int get_prefills(Held *held, PyObject *const *from, Prefills *prefills, Py_ssize_t *length)
{
    if (get_profiles(held, from[0], "prefill profiles", &prefills->profiles) < 0 ||
        get(held, from[1], "prefill factors", 'd', 1, READ, &prefills->factors) < 0 ||
        get(held, from[2], "prefill requests", 'q', 1, READ, &prefills->requests) < 0 ||
        get(held, from[3], "uncached_tokens", 'q', 1, READ, &prefills->uncached_tokens) < 0 ||
        get(held, from[4], "uncached_pairs", 'd', 1, READ, &prefills->uncached_pairs) < 0 ||
        get(held, from[5], "prefilling_since_s", 'd', 1, READ, &prefills->since_s) < 0)
        return -1;
    const Array *all[] = {&prefills->factors, &prefills->requests, &prefills->uncached_tokens,
                          &prefills->uncached_pairs, &prefills->since_s};
    *length = prefills->profiles.columns;
    for (int k = 0; k < 5; k++)
        if (all[k]->len < *length)
            *length = all[k]->len;
    return 0;
}

static double own_prefill_s(const Prefills *prefills, int64_t slot, double uncached_tokens, double cached_tokens)
{
    const Array *profiles = &prefills->profiles;
    double tokens = larger(uncached_tokens, 1.0), budget = of(profiles, BUDGET, slot);
    double full = floor(tokens / budget), rest = tokens - full * budget;
    double seconds = full * of(profiles, CHUNK, slot);
    if (rest > 0.0)
        seconds += weights_and_matmul_s(of(profiles, SLOPE, slot), of(profiles, FLOOR_4, slot), rest) +
                   of(profiles, OVERHEAD, slot);
    seconds += of(profiles, PAIR_S, slot) * tokens * (cached_tokens + tokens / 2.0);
    return prefills->factors.f[slot] * seconds;
}

static double prefill_wait_s(const Prefills *prefills, int64_t slot, double now_s)
{
    double seconds = of(&prefills->profiles, CHUNK_TOKEN, slot) * (double)prefills->uncached_tokens.i[slot];
    seconds += of(&prefills->profiles, PAIR_S, slot) * prefills->uncached_pairs.f[slot];
    seconds *= prefills->factors.f[slot];
    double elapsed_s = prefills->requests.i[slot] > 0 ? larger(now_s - prefills->since_s.f[slot], 0.0) : 0.0;
    return larger(seconds - elapsed_s, 0.0);
}

/* Leading tokens of the prompt that each candidate holds; an argument of None: none anywhere. */
static int get_matched(Held *held, PyObject *from, Py_ssize_t candidates, Array *matched)
{
    matched->i = NULL;
    if (from == Py_None)
        return 0;
    if (get(held, from, "matched_tokens", 'q', 1, READ, matched) < 0)
        return -1;
    return expect_length("matched_tokens", matched, candidates);
}

static inline double matched_of(const Array *matched, Py_ssize_t candidate)
{
    return matched->i ? (double)matched->i[candidate] : 0.0;
}

PyDoc_STRVAR(prefill_s_doc,
"prefill_s(out, slots, matched_tokens, prompt_tokens, now_s, *prefills)\n--\n\n"
"Expected seconds to prefill a request on each candidate, its queue there included: `View.prefill_s`.");

static PyObject *prefill_s(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Held held = {.count = 0};
    Array out, slots, matched;
    Prefills prefills;
    Py_ssize_t length;
    double prompt, now_s;
    if (expect_arguments(count, 11) < 0 || get(&held, given[0], "out", 'd', 1, WRITE, &out) < 0 ||
        get(&held, given[1], "slots", 'q', 1, READ, &slots) < 0 || expect_length("out", &out, slots.len) < 0 ||
        get_matched(&held, given[2], slots.len, &matched) < 0 || get_double(given[3], &prompt) < 0 ||
        get_double(given[4], &now_s) < 0 || get_prefills(&held, given + 5, &prefills, &length) < 0 ||
        expect_within("slots", &slots, length) < 0) {
        release(&held);
        return NULL;
    }
    for (Py_ssize_t k = 0; k < slots.len; k++) {
        double cached = matched_of(&matched, k);
        out.out[k] = prefill_wait_s(&prefills, slots.i[k], now_s) +
                     own_prefill_s(&prefills, slots.i[k], prompt - cached, cached);
    }
    release(&held);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(least_uncached_tokens_doc,
"least_uncached_tokens(out, slots, matched_tokens, prompt_tokens, *prefills)\n--\n\n"
"The costs of `LeastUncachedTokens`.");

static PyObject *least_uncached_tokens(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Held held = {.count = 0};
    Array out, slots, matched;
    Prefills prefills;
    Py_ssize_t length;
    double prompt;
    if (expect_arguments(count, 10) < 0 || get(&held, given[0], "out", 'd', 1, WRITE, &out) < 0 ||
        get(&held, given[1], "slots", 'q', 1, READ, &slots) < 0 || expect_length("out", &out, slots.len) < 0 ||
        get_matched(&held, given[2], slots.len, &matched) < 0 || get_double(given[3], &prompt) < 0 ||
        get_prefills(&held, given + 4, &prefills, &length) < 0 || expect_within("slots", &slots, length) < 0) {
        release(&held);
        return NULL;
    }
    for (Py_ssize_t k = 0; k < slots.len; k++) {
        int64_t slot = slots.i[k];
        double tokens = (double)prefills.uncached_tokens.i[slot] + prompt - matched_of(&matched, k);
        out.out[k] = tokens / (1.0 / (prefills.factors.f[slot] * of(&prefills.profiles, CHUNK_TOKEN, slot)));
    }
    release(&held);
    Py_RETURN_NONE;
}

/* --- the choice (directing/placer.py) ---------------------------------------------------------------------------- */

PyDoc_STRVAR(choose_doc,
"choose(costs, slots, turns, keep)\n--\n\n"
"The index of the lowest cost: of tied ones that of slot `keep` (-1: none), else of the least recent turn, else the "
"first. -1 where no cost is finite, or one is NaN.");

static PyObject *choose(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Held held = {.count = 0};
    Array costs, slots, turns;
    int64_t keep;
    if (expect_arguments(count, 4) < 0 || get(&held, given[0], "costs", 'd', 1, READ, &costs) < 0 ||
        get(&held, given[1], "slots", 'q', 1, READ, &slots) < 0 || expect_length("slots", &slots, costs.len) < 0 ||
        get(&held, given[2], "turns", 'q', 1, READ, &turns) < 0 || get_integer(given[3], &keep) < 0 ||
        expect_within("slots", &slots, turns.len) < 0) {
        release(&held);
        return NULL;
    }
    Py_ssize_t best = -1;
    double lowest = INFINITY;
    for (Py_ssize_t k = 0; k < costs.len; k++) {
        double cost = costs.f[k];
        int64_t slot = slots.i[k];
        if (isnan(cost)) {
            best = -1;
            break;
        }
        if (cost < lowest) {
            lowest = cost;
            best = k;
        } else if (best >= 0 && cost == lowest && slots.i[best] != keep &&
                   (slot == keep || turns.i[slot] < turns.i[slots.i[best]]))
            best = k;
    }
    release(&held);
    return PyLong_FromSsize_t(best);
}

/* --- survival curves (beliefs/survival_tables.py) ---------------------------------------------------------------- */

typedef struct {
    Array drop, intercept, end, hazard;
    double per_token; /* 1 / step */
    int64_t last;     /* index of the last bucket of a row */
} Tables;

static int get_tables(Held *held, PyObject *const *from, Tables *tables)
{
    int64_t step;
    if (get(held, from[0], "drop", 'd', 1, READ, &tables->drop) < 0 ||
        get(held, from[1], "intercept", 'd', 1, READ, &tables->intercept) < 0 ||
        get(held, from[2], "end", 'd', 1, READ, &tables->end) < 0 ||
        get(held, from[3], "hazard", 'd', 1, READ, &tables->hazard) < 0 || get_integer(from[4], &step) < 0 ||
        get_integer(from[5], &tables->last) < 0)
        return -1;
    if (step < 1 || tables->last < 1 || tables->last > (INT64_C(1) << 32)) {
        PyErr_SetString(PyExc_ValueError, "buckets: step and count must be 1 or more");
        return -1;
    }
    tables->per_token = 1.0 / (double)step;
    Py_ssize_t needed = tables->end.len * (tables->last + 1);
    if (expect_length("drop", &tables->drop, needed) < 0 ||
        expect_length("intercept", &tables->intercept, needed) < 0 ||
        expect_length("hazard", &tables->hazard, tables->end.len) < 0)
        return -1;
    return 0;
}

static inline double survival_within(const Tables *tables, double tokens, int64_t class)
{
    double position = tokens * tables->per_token;
    int64_t bucket = position < (double)tables->last ? (int64_t)position : tables->last;
    bucket += class * (tables->last + 1);
    return tables->drop.f[bucket] * position + tables->intercept.f[bucket];
}

/* P(running at `later` | running at `age`), both 0 or more; 0 from the cap on. `alive`: `survival_within` the age. */
static inline double conditional(const Tables *tables, double age, double alive, double later, int64_t class,
                                 double cap)
{
    later = larger(later, age);
    if (later >= cap)
        return 0.0;
    double ratio = survival_within(tables, later, class) / alive;
    double end = tables->end.f[class];
    if (later > end)
        ratio *= exp(-tables->hazard.f[class] * (later - larger(age, end)));
    return ratio;
}

/* --- age histograms (state/age_histograms.py) -------------------------------------------------------------------- */

PyDoc_STRVAR(classify_doc,
"classify(rows, cell, group, held, limit, slot, generated, limits, class_slot, decoding, prompt, bucket_of_age, ages)"
"\n--\n\n"
"Set how these rows are counted (`AgeHistograms._classify`); returns their highest slot, -1 without rows.");

static PyObject *classify(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Held held = {.count = 0};
    Array rows, cell, group, held_tokens, limit, slot, generated, limits, class_slot, decoding, prompt, bucket;
    int64_t ages, most = -1;
    if (expect_arguments(count, 13) < 0 || get(&held, given[0], "rows", 'q', 1, READ, &rows) < 0 ||
        get(&held, given[1], "cell", 'q', 1, WRITE, &cell) < 0 ||
        get(&held, given[2], "group", 'q', 1, WRITE, &group) < 0 ||
        get(&held, given[3], "held", 'd', 1, WRITE, &held_tokens) < 0 ||
        get(&held, given[4], "limit", 'q', 1, WRITE, &limit) < 0 ||
        get(&held, given[5], "slot", 'q', 1, READ, &slot) < 0 ||
        get(&held, given[6], "generated_tokens", 'q', 1, READ, &generated) < 0 ||
        get(&held, given[7], "limit_tokens", 'q', 1, READ, &limits) < 0 ||
        get(&held, given[8], "class_slot", 'q', 1, READ, &class_slot) < 0 ||
        get(&held, given[9], "decoding", '?', 1, READ, &decoding) < 0 ||
        get(&held, given[10], "prompt_tokens", 'q', 1, READ, &prompt) < 0 ||
        get(&held, given[11], "bucket_of_age", 'q', 1, READ, &bucket) < 0 || get_integer(given[12], &ages) < 0)
        goto failed;
    const Array *all[] = {&cell, &group, &held_tokens, &limit, &slot, &generated, &limits, &class_slot, &decoding,
                          &prompt};
    Py_ssize_t length = PY_SSIZE_T_MAX;
    for (int k = 0; k < 10; k++)
        if (all[k]->len < length)
            length = all[k]->len;
    if (expect_within("rows", &rows, length) < 0 || expect_length("bucket_of_age", &bucket, 1) < 0)
        goto failed;
    for (Py_ssize_t k = 0; k < rows.len; k++) {
        int64_t row = rows.i[k], tokens = generated.i[row], own_limit = limits.i[row];
        int64_t age = tokens < 0 ? 0 : tokens < bucket.len ? tokens : bucket.len - 1;
        int64_t capped = own_limit < 0 ? 0 : own_limit < bucket.len ? own_limit : bucket.len - 1;
        cell.out_i[row] = decoding.b[row] ? slot.i[row] * ages + bucket.i[age] : -1;
        group.out_i[row] = class_slot.i[row] * (ages + 1) + (own_limit == NO_LIMIT ? ages : bucket.i[capped]);
        held_tokens.out[row] = (double)(tokens + prompt.i[row]);
        limit.out_i[row] = own_limit < HIGHEST_LIMIT ? own_limit : HIGHEST_LIMIT;
        if (slot.i[row] > most)
            most = slot.i[row];
    }
    release(&held);
    return PyLong_FromLongLong(most);
failed:
    release(&held);
    return NULL;
}

/* One group's histogram, as the Python object holds it. */
typedef struct {
    int64_t group, ages, total, limits;
    Array counts, held, squares;
} Histogram;

static int get_attribute(PyObject *from, const char *name, int64_t *value)
{
    PyObject *attribute = PyObject_GetAttrString(from, name);
    if (!attribute)
        return -1;
    int failed = get_integer(attribute, value);
    Py_DECREF(attribute);
    return failed;
}

static int set_attribute(PyObject *to, const char *name, int64_t value)
{
    PyObject *number = PyLong_FromLongLong(value);
    if (!number)
        return -1;
    int failed = PyObject_SetAttrString(to, name, number);
    Py_DECREF(number);
    return failed;
}

static int get_matrix(Held *held, PyObject *from, const char *name, int access, Array *array)
{
    PyObject *attribute = PyObject_GetAttrString(from, name);
    if (!attribute)
        return -1;
    int failed = get(held, attribute, name, 'd', 2, access, array);
    Py_DECREF(attribute); /* the buffer keeps it alive */
    return failed;
}

/* The caller releases `held` when it is done with this histogram, or on failure. */
static int get_histogram(Held *held, PyObject *from, int access, int64_t ages, Histogram *histogram)
{
    if (get_attribute(from, "group", &histogram->group) < 0 || get_attribute(from, "ages", &histogram->ages) < 0 ||
        get_attribute(from, "total", &histogram->total) < 0 ||
        get_attribute(from, "limits", &histogram->limits) < 0 ||
        get_matrix(held, from, "counts", access, &histogram->counts) < 0 ||
        get_matrix(held, from, "held", access, &histogram->held) < 0 ||
        get_matrix(held, from, "squares", access, &histogram->squares) < 0)
        return -1;
    if (histogram->counts.columns != ages || histogram->held.columns != ages || histogram->squares.columns != ages ||
        histogram->held.len != histogram->counts.len || histogram->squares.len != histogram->counts.len ||
        histogram->ages < 0 || histogram->ages > ages) {
        PyErr_SetString(PyExc_ValueError, "histogram: its matrices must have one shape, and a column for each age");
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(count_group_doc,
"count_group(rows, sign, wanted, cell, group, held, limit, histogram, ages)\n--\n\n"
"Count the rows of one group in (1) or out (-1) of its histogram; rows with a negative cell are not counted. Returns "
"the next larger group among the rows, -1 if there is none. A `histogram` of None counts nothing.");

static PyObject *count_group(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Held held = {.count = 0};
    Array rows, cell, group, held_tokens, limit;
    Histogram histogram;
    int64_t sign, wanted, ages, next = INT64_MAX;
    if (expect_arguments(count, 9) < 0 || get(&held, given[0], "rows", 'q', 1, READ, &rows) < 0 ||
        get_integer(given[1], &sign) < 0 || get_integer(given[2], &wanted) < 0 ||
        get(&held, given[3], "cell", 'q', 1, READ, &cell) < 0 ||
        get(&held, given[4], "group", 'q', 1, READ, &group) < 0 ||
        get(&held, given[5], "held", 'd', 1, READ, &held_tokens) < 0 ||
        get(&held, given[6], "limit", 'q', 1, READ, &limit) < 0 || get_integer(given[8], &ages) < 0 ||
        expect_within("rows", &rows, cell.len) < 0 || expect_within("rows", &rows, group.len) < 0 ||
        expect_within("rows", &rows, held_tokens.len) < 0 || expect_within("rows", &rows, limit.len) < 0)
        goto failed;
    if (sign != 1 && sign != -1) {
        PyErr_SetString(PyExc_ValueError, "sign: must be 1 or -1");
        goto failed;
    }
    int counting = given[7] != Py_None;
    if (counting && (ages < 1 || get_histogram(&held, given[7], WRITE, ages, &histogram) < 0)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "ages: must be 1 or more");
        goto failed;
    }
    for (Py_ssize_t k = 0; k < rows.len; k++) { /* nothing is counted before all is checked */
        int64_t row = rows.i[k];
        if (cell.i[row] < 0)
            continue;
        if (group.i[row] > wanted && group.i[row] < next)
            next = group.i[row];
        if (counting && group.i[row] == wanted && cell.i[row] >= histogram.counts.len) {
            PyErr_SetString(PyExc_IndexError, "cell: is beyond the histogram");
            goto failed;
        }
    }
    if (counting) {
        int64_t oldest = histogram.ages, counted = 0, limits = 0;
        for (Py_ssize_t k = 0; k < rows.len; k++) {
            int64_t row = rows.i[k], index = cell.i[row];
            if (index < 0 || group.i[row] != wanted)
                continue;
            double tokens = held_tokens.f[row], signed_tokens = (double)sign * tokens;
            histogram.counts.out[index] += (double)sign;
            histogram.held.out[index] += signed_tokens;
            histogram.squares.out[index] += signed_tokens * tokens;
            counted++;
            limits += limit.i[row];
            if (sign > 0 && index % ages >= oldest)
                oldest = index % ages + 1;
        }
        if (set_attribute(given[7], "total", histogram.total + sign * counted) < 0 ||
            set_attribute(given[7], "limits", histogram.limits + sign * limits) < 0 ||
            set_attribute(given[7], "ages", oldest) < 0)
            goto failed;
    }
    release(&held);
    return PyLong_FromLongLong(next == INT64_MAX ? -1 : next);
failed:
    release(&held);
    return NULL;
}

/* --- the projected load of the candidates (policies/placement/projection.py) ------------------------------------- */

/* By time and candidate, (TIMES, candidates): requests, tokens, and the variance of the tokens. */
typedef struct {
    double *requests, *tokens, *variance;
} Load;

/* For one row of a histogram, by time: factors of its requests' count, tokens and squared tokens. */
typedef struct {
    double alive[LANES], ended[LANES];
} Row;

/* The same for pending requests, whose growth differs from row to row: alive, alive x grown, ended, 2 ended x grown,
 * ended x grown squared. */
typedef struct {
    double alive[LANES], alive_grown[LANES], ended[LANES], ended_grown[LANES], ended_squared[LANES];
} PendingRow;

/* What one candidate has in the rows of a histogram that are not empty. */
typedef struct {
    double count, held, square;
    int64_t row;
} Cell;

/* Sums over cells of count and held times alive, of count, held and square times ended (`sum_decoding`); of requests,
 * tokens and variance (`sum_pending`). Several passes, each with its sums in registers. */
#define SUMS(SUFFIX, VECTOR, TARGET)                                                                                   \
    TARGET static void sum_decoding##SUFFIX(Py_ssize_t cells, const Cell *cell, const Row *table,                      \
                                            double sums[5][LANES])                                                     \
    {                                                                                                                  \
        enum { VECTORS = LANES * sizeof(double) / sizeof(VECTOR) };                                                    \
        VECTOR a[VECTORS] = {{0}}, b[VECTORS] = {{0}};                                                                 \
        for (Py_ssize_t c = 0; c < cells; c++) {                                                                       \
            const VECTOR *alive = (const VECTOR *)table[cell[c].row].alive;                                            \
            for (int v = 0; v < VECTORS; v++) {                                                                        \
                a[v] += cell[c].count * alive[v];                                                                      \
                b[v] += cell[c].held * alive[v];                                                                       \
            }                                                                                                          \
        }                                                                                                              \
        memcpy(sums[0], a, sizeof a);                                                                                  \
        memcpy(sums[1], b, sizeof b);                                                                                  \
        VECTOR d[VECTORS] = {{0}}, e[VECTORS] = {{0}}, f[VECTORS] = {{0}};                                             \
        for (Py_ssize_t c = 0; c < cells; c++) {                                                                       \
            const VECTOR *ended = (const VECTOR *)table[cell[c].row].ended;                                            \
            for (int v = 0; v < VECTORS; v++) {                                                                        \
                d[v] += cell[c].count * ended[v];                                                                      \
                e[v] += cell[c].held * ended[v];                                                                       \
            }                                                                                                          \
        }                                                                                                              \
        for (Py_ssize_t c = 0; c < cells; c++) {                                                                       \
            const VECTOR *ended = (const VECTOR *)table[cell[c].row].ended;                                            \
            for (int v = 0; v < VECTORS; v++)                                                                          \
                f[v] += cell[c].square * ended[v];                                                                     \
        }                                                                                                              \
        memcpy(sums[2], d, sizeof d);                                                                                  \
        memcpy(sums[3], e, sizeof e);                                                                                  \
        memcpy(sums[4], f, sizeof f);                                                                                  \
    }                                                                                                                  \
    TARGET static void sum_pending##SUFFIX(Py_ssize_t cells, const Cell *cell, const PendingRow *table,                \
                                           double sums[3][LANES])                                                      \
    {                                                                                                                  \
        enum { VECTORS = LANES * sizeof(double) / sizeof(VECTOR) };                                                    \
        VECTOR a[VECTORS] = {{0}}, b[VECTORS] = {{0}}, d[VECTORS] = {{0}};                                             \
        for (Py_ssize_t c = 0; c < cells; c++) {                                                                       \
            const PendingRow *row = &table[cell[c].row];                                                               \
            const VECTOR *alive = (const VECTOR *)row->alive, *alive_grown = (const VECTOR *)row->alive_grown;         \
            for (int v = 0; v < VECTORS; v++) {                                                                        \
                a[v] += cell[c].count * alive[v];                                                                      \
                b[v] += cell[c].held * alive[v] + cell[c].count * alive_grown[v];                                      \
            }                                                                                                          \
        }                                                                                                              \
        for (Py_ssize_t c = 0; c < cells; c++) {                                                                       \
            const PendingRow *row = &table[cell[c].row];                                                               \
            const VECTOR *ended = (const VECTOR *)row->ended, *once = (const VECTOR *)row->ended_grown;                \
            const VECTOR *twice = (const VECTOR *)row->ended_squared;                                                  \
            for (int v = 0; v < VECTORS; v++)                                                                          \
                d[v] += cell[c].square * ended[v] + cell[c].held * once[v] + cell[c].count * twice[v];                 \
        }                                                                                                              \
        memcpy(sums[0], a, sizeof a);                                                                                  \
        memcpy(sums[1], b, sizeof b);                                                                                  \
        memcpy(sums[2], d, sizeof d);                                                                                  \
    }

SUMS(_by_pairs, pair, )

#ifdef QUADS
SUMS(_by_quads, quad, __attribute__((target("avx2"))))

/* Whether processor and operating system have AVX2. */
static int has_quads(void)
{
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & (1u << 27 | 1u << 28)) != (1u << 27 | 1u << 28))
        return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 6) == 6 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (1u << 5));
}
#endif

static void (*sum_decoding)(Py_ssize_t, const Cell *, const Row *, double[5][LANES]) = sum_decoding_by_pairs;
static void (*sum_pending)(Py_ssize_t, const Cell *, const PendingRow *, double[3][LANES]) = sum_pending_by_pairs;

static void add_decoding(const Load *load, const Array *slots, const Histogram *histogram, int64_t ages,
                         const Row *table, const double *grown, Cell *cells)
{
    Py_ssize_t n = slots->len;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (slots->i[i] >= histogram->counts.rows)
            continue;
        Py_ssize_t first = slots->i[i] * ages, used = 0;
        for (int64_t age = 0; age < histogram->ages; age++) {
            cells[used] = (Cell){histogram->counts.f[first + age], histogram->held.f[first + age],
                                 histogram->squares.f[first + age], age};
            used += cells[used].count != 0.0;
        }
        if (!used)
            continue;
        double sums[5][LANES];
        sum_decoding(used, cells, table, sums);
        for (int t = 0; t < TIMES; t++) {
            load->requests[t * n + i] += sums[0][t];
            load->tokens[t * n + i] += sums[1][t] + grown[t] * sums[0][t];
            load->variance[t * n + i] += sums[4][t] + grown[t] * (2.0 * sums[3][t] + grown[t] * sums[2][t]);
        }
    }
}

typedef struct {
    Array slot, prompt, limit, decoding, handoff_at_s, group;
} Flights;

static int get_flights(Held *held, PyObject *const *from, Flights *flights)
{
    if (get(held, from[0], "slot", 'q', 1, READ, &flights->slot) < 0 ||
        get(held, from[1], "prompt_tokens", 'q', 1, READ, &flights->prompt) < 0 ||
        get(held, from[2], "limit_tokens", 'q', 1, READ, &flights->limit) < 0 ||
        get(held, from[3], "decoding", '?', 1, READ, &flights->decoding) < 0 ||
        get(held, from[4], "handoff_at_s", 'd', 1, READ, &flights->handoff_at_s) < 0 ||
        get(held, from[5], "groups", 'q', 1, READ, &flights->group) < 0)
        return -1;
    Py_ssize_t rows = flights->decoding.len;
    if (expect_length("slot", &flights->slot, rows) < 0 || expect_length("prompt_tokens", &flights->prompt, rows) < 0 ||
        expect_length("limit_tokens", &flights->limit, rows) < 0 ||
        expect_length("handoff_at_s", &flights->handoff_at_s, rows) < 0 ||
        expect_length("groups", &flights->group, rows) < 0)
        return -1;
    return 0;
}

/* A pending request: its candidate (-1: none of them), its group, and the row of its delay. */
typedef struct {
    int64_t group;
    int32_t candidate, row;
    double held, limit;
} Pending;

/* `log_bucket` of a delay, the highest row for all later ones: the exponent, and the eighths of the mantissa. */
static int32_t delay_row(double late_s)
{
    static const double eighths[] = {1.0905077326652577, 1.189207115002721,  1.2968395546510096, 1.4142135623730951,
                                     1.5422108254079407, 1.6817928305074292, 1.8340080864093424};
    double position = larger(late_s, 0.0) * (1.0 / FIRST_DELAY_S) + 1.0;
    if (!(position < 256.0))
        return DELAYS - 1;
    int exponent;
    double mantissa = 2.0 * frexp(position, &exponent);
    int32_t row = (exponent - 1) * STEPS_PER_DOUBLING;
    for (int k = 0; k < 7; k++)
        row += mantissa >= eighths[k];
    return row < DELAYS - 1 ? row : DELAYS - 1;
}

static void fill_pending(PendingRow *table, int used, const Tables *tables, const Array *delay_of_row,
                         const double *delays_s, double tokens_per_s, int64_t class, double cap)
{
    double newborn = survival_within(tables, 0.0, class);
    memset(table, 0, (size_t)used * sizeof *table);
    for (int k = 0; k < used; k++)
        for (int t = 0; t < TIMES; t++) {
            PendingRow *row = &table[k];
            double wait_s = delay_of_row->f[k], grown = larger(delays_s[t] - wait_s, 0.0) * tokens_per_s;
            double alive = delays_s[t] >= wait_s ? conditional(tables, 0.0, newborn, grown, class, cap) : 0.0;
            double ended = alive * (1.0 - alive);
            row->alive[t] = alive;
            row->alive_grown[t] = alive * grown;
            row->ended[t] = ended;
            row->ended_grown[t] = 2.0 * (ended * grown);
            row->ended_squared[t] = ended * grown * grown;
        }
}

static int add_pending(const Load *load, Py_ssize_t n, const Flights *flights, const int32_t *candidate_of,
                       Py_ssize_t capacity, const Tables *tables, const Array *delay_of_row, int64_t ages,
                       const double *delays_s, double now_s, double tokens_per_s)
{
    Py_ssize_t rows = flights->decoding.len, found = 0;
    int64_t *waiting = malloc((size_t)(rows + 1) * sizeof *waiting);
    Pending *pending = NULL;
    Cell *cells = NULL;
    int32_t *next = NULL; /* by candidate, where its next cell goes: after all are placed, where its cells end */
    int answer = -1;
    if (!waiting)
        goto no_memory;
    for (Py_ssize_t k = 0; k < rows; k++) { /* without a branch: none could be predicted */
        waiting[found] = k;
        found += !flights->decoding.b[k];
    }
    if (!found) {
        answer = 0;
        goto done;
    }
    pending = malloc((size_t)found * sizeof *pending);
    if (!pending)
        goto no_memory;
    int32_t used = 0;
    for (Py_ssize_t k = 0; k < found; k++) {
        int64_t row = waiting[k], slot = flights->slot.i[row];
        pending[k] = (Pending){
            .group = flights->group.i[row],
            .candidate = slot >= 0 && slot < capacity ? candidate_of[slot] : -1,
            .row = delay_row(flights->handoff_at_s.f[row] - now_s),
            .held = (double)flights->prompt.i[row],
            .limit = (double)flights->limit.i[row],
        };
        if (pending[k].row >= used)
            used = pending[k].row + 1;
    }
    cells = malloc((size_t)found * sizeof *cells);
    next = malloc((size_t)n * sizeof *next);
    if (!cells || !next)
        goto no_memory;
    Py_ssize_t from = 0; /* those before it have been added */
    while (from < found) {
        int64_t group = pending[from].group, class = group / (ages + 1);
        if (group < 0 || class >= tables->end.len) {
            PyErr_SetString(PyExc_IndexError, "groups: has a class without a survival curve");
            goto done;
        }
        double limits = 0.0;
        memset(next, 0, (size_t)n * sizeof *next);
        Py_ssize_t begin = from;
        for (Py_ssize_t k = from; k < found; k++) { /* those of this group move to the front */
            if (pending[k].group != group)
                continue;
            Pending one = pending[k];
            pending[k] = pending[from];
            pending[from++] = one;
            limits += one.limit;
            if (one.candidate >= 0)
                next[one.candidate]++;
        }
        int32_t before = 0;
        for (Py_ssize_t i = 0; i < n; i++) {
            int32_t of_candidate = next[i];
            next[i] = before;
            before += of_candidate;
        }
        for (Py_ssize_t k = begin; k < from; k++)
            if (pending[k].candidate >= 0)
                cells[next[pending[k].candidate]++] =
                    (Cell){1.0, pending[k].held, pending[k].held * pending[k].held, pending[k].row};
        PendingRow table[DELAYS];
        fill_pending(table, used, tables, delay_of_row, delays_s, tokens_per_s, class,
                     group % (ages + 1) != ages ? limits / (double)(from - begin) : INFINITY);
        for (Py_ssize_t i = 0; i < n; i++) {
            int32_t first = i ? next[i - 1] : 0;
            if (next[i] == first)
                continue;
            double sums[3][LANES];
            sum_pending(next[i] - first, cells + first, table, sums);
            for (int t = 0; t < TIMES; t++) {
                load->requests[t * n + i] += sums[0][t];
                load->tokens[t * n + i] += sums[1][t];
                load->variance[t * n + i] += sums[2][t];
            }
        }
    }
    answer = 0;
    goto done;
no_memory:
    PyErr_NoMemory();
done:
    free(waiting);
    free(pending);
    free(cells);
    free(next);
    return answer;
}

/* --- ballast (policies/placement/ballast.py) --------------------------------------------------------------------- */

/* The value of this rank among `n` of them, which it reorders. Equal values cost no more passes. */
static double ranked(double *values, Py_ssize_t n, Py_ssize_t rank)
{
    Py_ssize_t low = 0, high = n - 1;
    while (low < high) {
        double pivot = values[low + (high - low) / 2];
        Py_ssize_t less = low, more = high, k = low;
        while (k <= more) {
            double value = values[k];
            if (value < pivot) {
                values[k++] = values[less];
                values[less++] = value;
            } else if (value > pivot) {
                values[k] = values[more];
                values[more--] = value;
            } else
                k++;
        }
        if (rank < less)
            high = less - 1;
        else if (rank > more)
            low = more + 1;
        else
            break;
    }
    return values[rank];
}

static double median(double *values, Py_ssize_t n)
{
    double upper = ranked(values, n, n / 2);
    if (n % 2)
        return upper;
    return (upper + ranked(values, n, n / 2 - 1)) / 2.0;
}

/* Columns by candidate. */
typedef struct {
    double *kv, *per_kv, *slope, *floor_4, *read, *host, *overhead, *foreign, *foreign_tokens;
} Columns;

/* G, and the step time, with `more` requests and `added` tokens. */
static void burden_s(Py_ssize_t n, const Columns *of_candidate, const double *restrict requests,
                     const double *restrict held, double more, double added, double typical_s,
                     double *restrict burden, double *restrict step)
{
    const double *restrict per_kv = of_candidate->per_kv, *restrict slope = of_candidate->slope;
    const double *restrict floor_4 = of_candidate->floor_4, *restrict read = of_candidate->read;
    const double *restrict host = of_candidate->host, *restrict overhead = of_candidate->overhead;
    double per_typical = 1.0 / typical_s;
    for (Py_ssize_t i = 0; i < n; i++) {
        double tokens = held[i] + added, over = tokens * per_kv[i];
        double share = 1.0 / (over > 1.0 ? over : 1.0);
        double running = (requests[i] + more) * share;
        double seconds = weights_and_matmul_s(slope[i], floor_4[i], running) + read[i] * (tokens * share);
        seconds += host[i] * running;
        seconds += overhead[i];
        double slow = seconds * per_typical;
        step[i] = seconds;
        burden[i] = running * seconds * (slow * slow * slow);
    }
}

static double mean_excess(double mean, double spread)
{
    double sure = larger(spread, 1.0), z = mean / sure;
    if (z <= -2.0)
        return 0.0; /* the logistic's error is larger than what is left */
    z = smaller(larger(z, -8.0), 8.0);
    double density = exp(-0.5 * z * z) * (1.0 / sqrt(2.0 * 3.14159265358979323846));
    return larger(mean / (1.0 + exp(-1.702 * z)) + sure * density, 0.0);
}

/* The level at which so many requests have been placed, each at its cheapest (policies/placement/waterline.py): from
 * all candidates downwards, those above the level are left out until none is. `scratch`: 2 n. */
static double waterline(Py_ssize_t n, const double *costs, const double *slopes, double requests, double *scratch)
{
    double *cost = scratch, *room = scratch + n, lowest = INFINITY;
    for (Py_ssize_t i = 0; i < n; i++) {
        cost[i] = costs[i];
        room[i] = 1.0 / larger(slopes[i], LEAST_SLOPE);
        lowest = smaller(lowest, costs[i]);
    }
    if (!(requests > 0.0))
        return lowest;
    double level = lowest;
    for (Py_ssize_t active = n; active;) {
        double rooms = 0.0, filled = 0.0;
        for (Py_ssize_t i = 0; i < active; i++) {
            rooms += room[i];
            filled += room[i] * cost[i];
        }
        level = (requests + filled) / rooms;
        Py_ssize_t kept = 0;
        for (Py_ssize_t i = 0; i < active; i++)
            if (!(cost[i] >= level)) {
                cost[kept] = cost[i];
                room[kept++] = room[i];
            }
        if (kept == active)
            break;
        active = kept;
    }
    return level;
}

static inline double to_the_fourth(double seconds)
{
    double squares = seconds * seconds;
    return squares * squares;
}

/* What a decision on decode is made from. */
typedef struct {
    Array out, slots, hardware, steps, requests, foreign, tokens, matched, middles, age_of_bucket, delay_of_row;
    Prefills prefills;
    Tables tables;
    Flights flights;
    PyObject *histograms;
    double now_s, handoff_s, prompt, piece_tokens;
    int prefills_here;
} Decision;

static int get_decision(Held *held, PyObject *const *given, Decision *one)
{
    Py_ssize_t length;
    if (get(held, given[0], "out", 'd', 1, WRITE, &one->out) < 0 ||
        get(held, given[1], "slots", 'q', 1, READ, &one->slots) < 0 ||
        expect_length("out", &one->out, one->slots.len) < 0 ||
        get_matched(held, given[2], one->slots.len, &one->matched) < 0 || get_double(given[3], &one->prompt) < 0 ||
        get_double(given[4], &one->now_s) < 0 || get_prefills(held, given + 5, &one->prefills, &length) < 0 ||
        get_profiles(held, given[11], "hardware", &one->hardware) < 0 ||
        get_profiles(held, given[12], "step times", &one->steps) < 0 ||
        get(held, given[13], "requests", 'q', 1, READ, &one->requests) < 0 ||
        get(held, given[14], "foreign", 'q', 1, READ, &one->foreign) < 0 ||
        get(held, given[15], "tokens", 'q', 1, READ, &one->tokens) < 0)
        return -1;
    one->prefills_here = given[16] == Py_None;
    if (!one->prefills_here && get_double(given[16], &one->handoff_s) < 0)
        return -1;
    if (get(held, given[17], "middles", 'd', 1, READ, &one->middles) < 0 ||
        get_double(given[18], &one->piece_tokens) < 0 ||
        get_tables(held, given + 19, &one->tables) < 0 ||
        get(held, given[26], "age_of_bucket", 'd', 1, READ, &one->age_of_bucket) < 0 ||
        get(held, given[27], "delay_of_row", 'd', 1, READ, &one->delay_of_row) < 0 ||
        get_flights(held, given + 28, &one->flights) < 0)
        return -1;
    one->histograms = given[25];
    if (PyList_Size(one->histograms) < 0) {
        PyErr_SetString(PyExc_TypeError, "histograms: must be a list");
        return -1;
    }
    if (one->middles.len != PIECES) {
        PyErr_Format(PyExc_ValueError, "middles: must have %d entries, not %zd", PIECES, one->middles.len);
        return -1;
    }
    if (expect_length("age_of_bucket", &one->age_of_bucket, 1) < 0 ||
        expect_length("delay_of_row", &one->delay_of_row, DELAYS) < 0)
        return -1;
    Py_ssize_t others[] = {one->hardware.columns, one->steps.columns, one->requests.len, one->foreign.len,
                           one->tokens.len};
    for (int k = 0; k < 5; k++)
        if (others[k] < length)
            length = others[k];
    return expect_within("slots", &one->slots, length);
}

/* The load of every candidate at each time. -1 with an exception. */
static int project(const Decision *one, const double *delays_s, double tokens_per_s, const Load *load)
{
    Py_ssize_t n = one->slots.len, capacity = one->requests.len;
    int64_t ages = one->age_of_bucket.len;
    int32_t *candidate_of = malloc((size_t)capacity * sizeof *candidate_of);
    Row *table = malloc((size_t)ages * sizeof *table);
    Cell *cells = malloc((size_t)(ages + 1) * sizeof *cells);
    int answer = -1;
    if (!candidate_of || !table || !cells) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t k = 0; k < capacity; k++)
        candidate_of[k] = -1;
    for (Py_ssize_t i = 0; i < n; i++)
        candidate_of[one->slots.i[i]] = (int32_t)i;
    double grown[TIMES];
    for (int t = 0; t < TIMES; t++)
        grown[t] = delays_s[t] * tokens_per_s;
    for (Py_ssize_t k = 0; k < PyList_Size(one->histograms); k++) {
        Held held = {.count = 0};
        Histogram histogram;
        PyObject *item = PyList_GetItem(one->histograms, k);
        if (!item)
            goto done;
        Py_INCREF(item);
        int failed = get_histogram(&held, item, READ, ages, &histogram);
        Py_DECREF(item);
        if (failed) {
            release(&held);
            goto done;
        }
        int64_t class = histogram.group / (ages + 1);
        if (histogram.group < 0 || class >= one->tables.end.len) {
            PyErr_SetString(PyExc_IndexError, "histogram: has a class without a survival curve");
            release(&held);
            goto done;
        }
        int limited = histogram.group % (ages + 1) != ages;
        double cap = limited ? (double)histogram.limits / (double)histogram.total : INFINITY;
        for (int64_t age = 0; age < histogram.ages; age++) {
            double from = larger(one->age_of_bucket.f[age], 0.0);
            double now = survival_within(&one->tables, from, class);
            for (int t = 0; t < TIMES; t++) {
                double alive = conditional(&one->tables, from, now, from + grown[t], class, cap);
                table[age].alive[t] = alive;
                table[age].ended[t] = alive * (1.0 - alive);
            }
            for (int t = TIMES; t < LANES; t++)
                table[age].alive[t] = table[age].ended[t] = 0.0;
        }
        add_decoding(load, &one->slots, &histogram, ages, table, grown, cells);
        release(&held);
    }
    answer = add_pending(load, n, &one->flights, candidate_of, capacity, &one->tables, &one->delay_of_row, ages,
                         delays_s, one->now_s, tokens_per_s);
done:
    free(candidate_of);
    free(table);
    free(cells);
    return answer;
}

static double typical_step_s(const Decision *one, const Columns *of_candidate, double *scratch)
{
    Py_ssize_t n = one->slots.len;
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t slot = one->slots.i[i];
        double requests = (double)(one->requests.i[slot] + one->foreign.i[slot] + 1);
        double tokens = (double)one->tokens.i[slot] + one->prompt;
        double share = 1.0 / larger(tokens / of_candidate->kv[i], 1.0);
        double seconds = weights_and_matmul_s(of_candidate->slope[i], of_candidate->floor_4[i], requests * share) +
                         of_candidate->read[i] * (tokens * share);
        seconds += of_candidate->host[i] * (requests * share);
        scratch[i] = seconds + of_candidate->overhead[i];
    }
    return median(scratch, n);
}

/* Writes the costs to `one->out`. -1 with an exception. */
static int weigh(const Decision *one)
{
    Py_ssize_t n = one->slots.len, cells = n * TIMES;
    double *restrict out = one->out.out;
    double *memory = malloc((size_t)(20 * n + 6 * cells + 1) * sizeof *memory);
    if (!memory) {
        PyErr_NoMemory();
        return -1;
    }
    double *next = memory;
    Columns columns;
    double **by_candidate[] = {&columns.kv, &columns.per_kv, &columns.slope, &columns.floor_4, &columns.read,
                               &columns.host, &columns.overhead, &columns.foreign, &columns.foreign_tokens};
    for (int k = 0; k < 9; k++, next += n)
        *by_candidate[k] = next;
    double *queued_s = next, *own_s = next + n, *scratch = next + 2 * n; /* scratch: 2 n */
    double *before = next + 4 * n, *one_more = next + 5 * n, *two_more = next + 6 * n, *step = next + 7 * n;
    double *slopes = next + 8 * n, *first_step = next + 9 * n, *worst = next + 10 * n;
    next += 11 * n;
    Load load = {next, next + cells, next + 2 * cells};
    double *marginal = next + 3 * cells, *with_step = next + 4 * cells, *stalled = next + 5 * cells;
    memset(next, 0, (size_t)(3 * cells) * sizeof *next);
    int answer = -1;

    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t slot = one->slots.i[i];
        columns.kv[i] = of(&one->hardware, KV, slot);
        columns.per_kv[i] = 1.0 / columns.kv[i];
        columns.slope[i] = of(&one->steps, SLOPE, slot);
        columns.floor_4[i] = of(&one->steps, FLOOR_4, slot);
        columns.read[i] = of(&one->steps, READ_S, slot);
        columns.host[i] = of(&one->steps, HOST, slot);
        columns.overhead[i] = of(&one->steps, OVERHEAD, slot);
        columns.foreign[i] = (double)one->foreign.i[slot]; /* each is taken to hold what one of ours does */
        columns.foreign_tokens[i] =
            columns.foreign[i] * ((double)one->tokens.i[slot] / larger((double)one->requests.i[slot], 1.0));
        double cached = matched_of(&one->matched, i);
        own_s[i] = own_prefill_s(&one->prefills, slot, one->prompt - cached, cached);
        queued_s[i] = prefill_wait_s(&one->prefills, slot, one->now_s) + own_s[i];
    }
    double typical_s = typical_step_s(one, &columns, scratch);
    double handoff_s = one->handoff_s;
    if (one->prefills_here) {
        handoff_s = INFINITY;
        for (Py_ssize_t i = 0; i < n; i++)
            handoff_s = smaller(handoff_s, queued_s[i]);
    }
    double ages[TIMES] = {0.0}, delays_s[TIMES], weights[TIMES];
    memcpy(ages + 1, one->middles.f, PIECES * sizeof *ages);
    for (int t = 0; t < TIMES; t++) {
        delays_s[t] = handoff_s + ages[t] * typical_s;
        weights[t] = t < 2 ? one->piece_tokens * 0.5 : one->piece_tokens;
    }
    if (project(one, delays_s, 1.0 / typical_s, &load) < 0)
        goto done;

    double all_requests = 0.0, all_held = 0.0, alive[TIMES];
    for (int t = 0; t < TIMES; t++) {
        alive[t] = 0.0;
        double *restrict requests = load.requests + t * n, *restrict held = load.tokens + t * n;
        double *restrict spread = load.variance + t * n;
        for (Py_ssize_t i = 0; i < n; i++) {
            requests[i] += columns.foreign[i];
            held[i] += columns.foreign_tokens[i];
            spread[i] = sqrt(larger(spread[i], 0.0));
        }
        double tokens = 0.0;
        for (Py_ssize_t i = 0; i < n; i++) {
            alive[t] += requests[i];
            tokens += held[i];
        }
        all_held += tokens;
        all_requests += alive[t];
    }
    double mean = all_held / larger(all_requests, 1.0);
    if (mean == 0.0)
        mean = one->prompt;

    int stalls = 0;
    for (int t = 0; t < TIMES && !stalls; t++)
        for (Py_ssize_t i = 0; i < n; i++)
            if (!(load.tokens[t * n + i] + (one->prompt + ages[t]) - columns.kv[i] <=
                  -2.0 * larger(load.variance[t * n + i], 1.0))) {
                stalls = 1;
                break;
            }

    for (Py_ssize_t i = 0; i < n; i++)
        out[i] = 0.0;
    for (int t = 0; t < TIMES; t++) {
        const double *requests = load.requests + t * n, *held = load.tokens + t * n, *spread = load.variance + t * n;
        double own = one->prompt + ages[t], *cost = marginal + t * n, *with_s = with_step + t * n;
        burden_s(n, &columns, requests, held, 0.0, 0.0, typical_s, before, step);
        burden_s(n, &columns, requests, held, 1.0, own, typical_s, cost, with_s);
        burden_s(n, &columns, requests, held, 1.0, mean, typical_s, one_more, step);
        burden_s(n, &columns, requests, held, 2.0, 2.0 * mean, typical_s, two_more, step);
        for (Py_ssize_t i = 0; i < n; i++) {
            cost[i] -= before[i];
            slopes[i] = two_more[i] - 2.0 * one_more[i] + before[i];
        }
        if (stalls)
            for (Py_ssize_t i = 0; i < n; i++) {
                double with_it = held[i] + own;
                double overflow =
                    mean_excess(with_it - columns.kv[i], spread[i]) - mean_excess(held[i] - columns.kv[i], spread[i]);
                double *waits = &stalled[t * n + i];
                *waits = overflow * (requests[i] + 1.0) / with_it;
                cost[i] += *waits * with_s[i];
            }
        double level = waterline(n, cost, slopes, larger(alive[0] - alive[t], 0.0), scratch);
        for (Py_ssize_t i = 0; i < n; i++)
            out[i] += weights[t] * larger(cost[i], level);
    }
    memcpy(first_step, with_step, (size_t)n * sizeof *first_step);

    if (stalls)
        for (Py_ssize_t i = 0; i < n; i++) {
            double context = 0.0;
            worst[i] = -INFINITY;
            for (int t = 0; t < TIMES; t++) {
                double requests = load.requests[t * n + i] + 1.0;
                context += (load.tokens[t * n + i] + (one->prompt + ages[t])) / requests;
                worst[i] = larger(worst[i], stalled[t * n + i] * requests);
            }
            out[i] += worst[i] * own_prefill_s(&one->prefills, one->slots.i[i], context / TIMES, 0.0);
        }
    for (Py_ssize_t i = 0; i < n; i++) {
        double held = load.tokens[i], requests = load.requests[i], kv = columns.kv[i];
        double missing = held + one->prompt + UNREPORTED_TOKENS * (requests + 1.0) - kv;
        if (missing > 0.0) {
            double life_s = PIECES * one->piece_tokens * first_step[i];
            double freed = larger(missing, held / larger(requests, 1.0));
            out[i] += freed * life_s / kv * larger(life_s / own_s[i], 1.0);
        }
    }
    if (one->prefills_here) {
        for (Py_ssize_t i = 0; i < n; i++)
            scratch[i] = PIECES * one->piece_tokens * first_step[i];
        double life = median(scratch, n), cubed = life * life * life;
        for (Py_ssize_t i = 0; i < n; i++) {
            int64_t slot = one->slots.i[i];
            double held_up_s = PIECES * one->piece_tokens * first_step[i] + queued_s[i] - own_s[i];
            double caused_s = (to_the_fourth(held_up_s + own_s[i]) - to_the_fourth(held_up_s)) / cubed;
            out[i] += queued_s[i] + (double)(one->requests.i[slot] + one->foreign.i[slot]) * caused_s;
        }
    }
    answer = 0;
done:
    free(memory);
    return answer;
}

PyDoc_STRVAR(ballast_doc,
"ballast(out, slots, matched_tokens, prompt_tokens, now_s, *prefills, hardware, step_times, requests, foreign, tokens, "
"handoff_s, middles, piece_tokens, *tables, histograms, age_of_bucket, delay_of_row, *flights)\n--\n\n"
"The costs of `Ballast` at the decode stage.");

static PyObject *ballast(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Held held = {.count = 0};
    Decision one;
    int failed = expect_arguments(count, 34) < 0 || get_decision(&held, given, &one) < 0;
    if (!failed && one.slots.len)
        failed = weigh(&one) < 0;
    release(&held);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* --- the module -------------------------------------------------------------------------------------------------- */

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, name##_doc}

static PyMethodDef functions[] = {
    FUNCTION(prefill_s), FUNCTION(least_uncached_tokens), FUNCTION(choose), FUNCTION(classify),
    FUNCTION(count_group), FUNCTION(ballast), {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module)
{
#ifdef QUADS
    if (has_quads()) {
        sum_decoding = sum_decoding_by_quads;
        sum_pending = sum_pending_by_quads;
    }
#endif
    return PyModule_AddIntConstant(module, "VERSION", VERSION);
}

static PyModuleDef_Slot slots_of_module[] = {{Py_mod_exec, execute}, {0, NULL}};

static PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_kernel",
    .m_doc = "The arithmetic of a decision, compiled.",
    .m_methods = functions,
    .m_slots = slots_of_module,
};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&definition); }
