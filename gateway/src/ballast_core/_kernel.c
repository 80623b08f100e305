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
#define WIDER
#include <cpuid.h>
#ifndef __clang__ /* some of its releases have 512 bits only under a name of their own, which the others do not know */
#define WIDEST
#endif
#endif
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What callers and kernel agree on; raised with every change of a function's arguments or formulas. */
#define VERSION 4

#define TIMES 9       /* times at which `ballast` weighs a request: the hand-off and eight pieces of its life */
#define LANES 8       /* of those, the first ones: whole vectors. The ninth time is summed by itself */
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
typedef double oct __attribute__((vector_size(64), aligned(8), may_alias));

static inline double larger(double a, double b) { return a > b ? a : b; }
static inline double smaller(double a, double b) { return a < b ? a : b; }
static inline int64_t smaller_integer(int64_t a, int64_t b) { return a < b ? a : b; }

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
        unsigned char *out_b;
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

/* The arrays by slot that every decision reads. Their values change between calls; their shapes do not. */
typedef struct {
    Held held;
    Prefills prefills;
    Array hardware, steps, requests, foreign, tokens;
    Py_ssize_t slots; /* that all of them have */
} Fleet;

static const char FLEET[] = "ballast fleet";

static void free_fleet(PyObject *capsule)
{
    Fleet *fleet = PyCapsule_GetPointer(capsule, FLEET);
    release(&fleet->held);
    free(fleet);
}

PyDoc_STRVAR(fleet_doc,
"fleet(prefill_profiles, prefill_factors, prefill_requests, uncached_tokens, uncached_pairs, prefilling_since_s, "
"hardware, step_times, requests, foreign, tokens)\n--\n\n"
"These arrays, prepared for many calls: until one of them is replaced by another array.");

static PyObject *fleet(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    if (expect_arguments(count, 11) < 0)
        return NULL;
    Fleet *one = malloc(sizeof *one);
    if (!one)
        return PyErr_NoMemory();
    one->held.count = 0;
    PyObject *capsule = NULL;
    if (get_prefills(&one->held, given, &one->prefills, &one->slots) < 0 ||
        get_profiles(&one->held, given[6], "hardware", &one->hardware) < 0 ||
        get_profiles(&one->held, given[7], "step times", &one->steps) < 0 ||
        get(&one->held, given[8], "requests", 'q', 1, READ, &one->requests) < 0 ||
        get(&one->held, given[9], "foreign", 'q', 1, READ, &one->foreign) < 0 ||
        get(&one->held, given[10], "tokens", 'q', 1, READ, &one->tokens) < 0)
        goto failed;
    Py_ssize_t others[] = {one->hardware.columns, one->steps.columns, one->requests.len, one->foreign.len,
                           one->tokens.len};
    for (int k = 0; k < 5; k++)
        if (others[k] < one->slots)
            one->slots = others[k];
    capsule = PyCapsule_New(one, FLEET, free_fleet);
    if (capsule)
        return capsule;
failed:
    release(&one->held);
    free(one);
    return NULL;
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

/* What is asked of every candidate: an array for the answer, their slots, and the request's prompt. */
typedef struct {
    Array out, slots, matched;
    double prompt;
} Asked;

static int get_asked(Held *held, PyObject *const *given, PyObject *fleet_capsule, Asked *asked, const Fleet **fleet)
{
    *fleet = PyCapsule_GetPointer(fleet_capsule, FLEET);
    if (!*fleet || get(held, given[0], "out", 'd', 1, WRITE, &asked->out) < 0 ||
        get(held, given[1], "slots", 'q', 1, READ, &asked->slots) < 0 ||
        expect_length("out", &asked->out, asked->slots.len) < 0 ||
        get_matched(held, given[2], asked->slots.len, &asked->matched) < 0 ||
        get_double(given[3], &asked->prompt) < 0)
        return -1;
    return expect_within("slots", &asked->slots, (*fleet)->slots);
}

PyDoc_STRVAR(prefill_s_doc,
"prefill_s(out, slots, matched_tokens, prompt_tokens, now_s, fleet)\n--\n\n"
"Expected seconds to prefill a request on each candidate, its queue there included: `View.prefill_s`.");

static PyObject *prefill_s(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Held held = {.count = 0};
    Asked asked;
    const Fleet *of_fleet;
    double now_s;
    if (expect_arguments(count, 6) < 0 || get_asked(&held, given, given[5], &asked, &of_fleet) < 0 ||
        get_double(given[4], &now_s) < 0) {
        release(&held);
        return NULL;
    }
    for (Py_ssize_t k = 0; k < asked.slots.len; k++) {
        double cached = matched_of(&asked.matched, k);
        asked.out.out[k] = prefill_wait_s(&of_fleet->prefills, asked.slots.i[k], now_s) +
                           own_prefill_s(&of_fleet->prefills, asked.slots.i[k], asked.prompt - cached, cached);
    }
    release(&held);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(least_uncached_tokens_doc,
"least_uncached_tokens(out, slots, matched_tokens, prompt_tokens, fleet)\n--\n\n"
"The costs of `LeastUncachedTokens`.");

static PyObject *least_uncached_tokens(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Held held = {.count = 0};
    Asked asked;
    const Fleet *of_fleet;
    if (expect_arguments(count, 5) < 0 || get_asked(&held, given, given[4], &asked, &of_fleet) < 0) {
        release(&held);
        return NULL;
    }
    const Prefills *prefills = &of_fleet->prefills;
    for (Py_ssize_t k = 0; k < asked.slots.len; k++) {
        int64_t slot = asked.slots.i[k];
        double tokens = (double)prefills->uncached_tokens.i[slot] + asked.prompt - matched_of(&asked.matched, k);
        asked.out.out[k] = tokens / (1.0 / (prefills->factors.f[slot] * of(&prefills->profiles, CHUNK_TOKEN, slot)));
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

/* --- capacity (directing/capacity.py) ---------------------------------------------------------------------------- */

PyDoc_STRVAR(all_have_room_doc,
"all_have_room(slots, requests, most_requests, tokens, least_tokens)\n--\n\n"
"Whether every slot has fewer requests than its most, or fewer tokens than its least; the last two may be None.");

static PyObject *all_have_room(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Held held = {.count = 0};
    Array slots, requests, most, tokens, least;
    int timed = count == 5 && given[3] != Py_None;
    if (expect_arguments(count, 5) < 0 || get(&held, given[0], "slots", 'q', 1, READ, &slots) < 0 ||
        get(&held, given[1], "requests", 'q', 1, READ, &requests) < 0 ||
        get(&held, given[2], "most_requests", 'q', 1, READ, &most) < 0 ||
        expect_within("slots", &slots, requests.len) < 0 || expect_within("slots", &slots, most.len) < 0 ||
        (timed && (get(&held, given[3], "tokens", 'q', 1, READ, &tokens) < 0 ||
                   get(&held, given[4], "least_tokens", 'd', 1, READ, &least) < 0 ||
                   expect_within("slots", &slots, tokens.len) < 0 || expect_within("slots", &slots, least.len) < 0))) {
        release(&held);
        return NULL;
    }
    Py_ssize_t k = 0;
    for (; k < slots.len; k++) {
        int64_t slot = slots.i[k];
        if (requests.i[slot] >= most.i[slot] && !(timed && (double)tokens.i[slot] < least.f[slot]))
            break;
    }
    int all = k == slots.len;
    release(&held);
    return PyBool_FromLong(all);
}

/* --- survival curves (beliefs/survival_tables.py) ---------------------------------------------------------------- */

/* The tables of every class, one row after the other. */
typedef struct {
    Held held;
    Array survival, drop, intercept, area, end, at_end, hazard;
    double step, per_token;
    int64_t last; /* index of the last boundary of a row */
} Curves;

static const char CURVES[] = "ballast curves";

static void free_curves(PyObject *capsule)
{
    Curves *curves = PyCapsule_GetPointer(capsule, CURVES);
    release(&curves->held);
    free(curves);
}

PyDoc_STRVAR(curves_doc,
"curves(survival, drop, intercept, area, end, at_end, hazard, step, count)\n--\n\n"
"The arrays of a `SurvivalTables`, prepared for many calls.");

static PyObject *curves(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    if (expect_arguments(count, 9) < 0)
        return NULL;
    Curves *one = malloc(sizeof *one);
    if (!one)
        return PyErr_NoMemory();
    one->held.count = 0;
    static const char *const names[] = {"survival", "drop", "intercept", "area", "end", "at_end", "hazard"};
    Array *arrays[] = {&one->survival, &one->drop, &one->intercept, &one->area, &one->end, &one->at_end, &one->hazard};
    int64_t step;
    for (int k = 0; k < 7; k++)
        if (get(&one->held, given[k], names[k], 'd', 1, READ, arrays[k]) < 0)
            goto failed;
    if (get_integer(given[7], &step) < 0 || get_integer(given[8], &one->last) < 0)
        goto failed;
    if (step < 1 || one->last < 1 || one->last > (INT64_C(1) << 32)) {
        PyErr_SetString(PyExc_ValueError, "buckets: step and count must be 1 or more");
        goto failed;
    }
    one->step = (double)step;
    one->per_token = 1.0 / one->step;
    for (int k = 0; k < 7; k++)
        if (expect_length(names[k], arrays[k], k < 4 ? one->end.len * (one->last + 1) : one->end.len) < 0)
            goto failed;
    PyObject *capsule = PyCapsule_New(one, CURVES, free_curves);
    if (capsule)
        return capsule;
failed:
    release(&one->held);
    free(one);
    return NULL;
}

static int expect_class(const Curves *of_curves, int64_t class)
{
    if (class >= 0 && class < of_curves->end.len)
        return 0;
    PyErr_Format(PyExc_IndexError, "class %lld has no survival curve", (long long)class);
    return -1;
}

static inline double survival_within(const Curves *of_curves, double tokens, int64_t class)
{
    double position = tokens * of_curves->per_token;
    int64_t bucket = position < (double)of_curves->last ? (int64_t)position : of_curves->last;
    bucket += class * (of_curves->last + 1);
    return of_curves->drop.f[bucket] * position + of_curves->intercept.f[bucket];
}

/* P(running at `later` | running at `age`), both 0 or more; 0 from the cap on. `alive`: `survival_within` the age. */
static inline double conditional(const Curves *of_curves, double age, double alive, double later, int64_t class,
                                 double cap)
{
    later = larger(later, age);
    if (later >= cap)
        return 0.0;
    double ratio = survival_within(of_curves, later, class) / alive;
    double end = of_curves->end.f[class];
    if (later > end)
        ratio *= exp(-of_curves->hazard.f[class] * (later - larger(age, end)));
    return ratio;
}

/* Expected tokens of a new request up to this age: `expected_remaining` at age 0 with a cap. */
static double expected_until(const Curves *of_curves, int64_t class, double age)
{
    double end = of_curves->end.f[class], inside = smaller(age, end), beyond = age - inside;
    double hazard = of_curves->hazard.f[class];
    double position = inside * of_curves->per_token;
    int64_t bucket = 0, first = class * (of_curves->last + 1);
    if (position > 0.0)
        bucket = position < (double)of_curves->last ? (int64_t)position : of_curves->last;
    position -= (double)bucket;
    bucket += first;
    double left = of_curves->survival.f[bucket], alive = of_curves->drop.f[bucket] * position + left;
    double area = of_curves->area.f[bucket] - (left + alive) * position * (of_curves->step / 2.0);
    double tokens = of_curves->area.f[first] - area;
    if (beyond > 0.0) {
        tokens -= of_curves->at_end.f[class] * expm1(-hazard * beyond) / hazard;
        alive *= exp(-hazard * beyond);
    }
    tokens += 0.5;
    tokens -= 0.5 * alive;
    return smaller(tokens, age);
}

/* `SurvivalTables.life_nodes`: the ages; returns the expected tokens of each. `limit` below 0: none. */
static double life_nodes(const Curves *of_curves, int64_t class, int64_t limit, int count, double *nodes)
{
    double most = limit < 0 ? (double)of_curves->last * of_curves->step : (double)limit;
    double all = expected_until(of_curves, class, smaller((double)of_curves->last * of_curves->step, most));
    for (int q = 0; q < count; q++) {
        double wanted = ((double)q + 0.5) / (double)count * all;
        int64_t low = 1, high = of_curves->last + 1; /* the first boundary at which more is expected */
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (expected_until(of_curves, class, smaller((double)middle * of_curves->step, most)) > wanted)
                high = middle;
            else
                low = middle + 1;
        }
        double before = smaller((double)(low - 1) * of_curves->step, most);
        nodes[q] = before;
        if (low > of_curves->last)
            continue;
        double after = smaller((double)low * of_curves->step, most);
        double until_before = expected_until(of_curves, class, before);
        double until_after = expected_until(of_curves, class, after);
        nodes[q] = (after - before) / (until_after - until_before) * (wanted - until_before) + before;
    }
    return all / (double)count;
}

PyDoc_STRVAR(tabulate_doc,
"tabulate(survival, drop, intercept, area, end, at_end, hazard, step, floor, longest_tail)\n--\n\n"
"`SurvivalTables._build`: from the curves in `survival` (classes, boundaries), which it cleans, to all other arrays.");

static PyObject *tabulate(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Held held = {.count = 0};
    static const char *const names[] = {"survival", "drop", "intercept", "area", "end", "at_end", "hazard"};
    Array arrays[7];
    double step, floor_, longest;
    if (expect_arguments(count, 10) < 0)
        return NULL;
    for (int k = 0; k < 7; k++)
        if (get(&held, given[k], names[k], 'd', k < 4 ? 2 : 1, WRITE, &arrays[k]) < 0 ||
            expect_length(names[k], &arrays[k], k < 4 ? arrays[0].len : arrays[0].rows) < 0)
            goto failed;
    if (get_double(given[7], &step) < 0 || get_double(given[8], &floor_) < 0 || get_double(given[9], &longest) < 0)
        goto failed;
    Py_ssize_t boundaries = arrays[0].columns, last = boundaries - 1;
    if (last < 1) {
        PyErr_SetString(PyExc_ValueError, "survival: must have 2 boundaries or more");
        goto failed;
    }
    for (Py_ssize_t k = 0; k < arrays[0].len; k++)
        if (isnan(arrays[0].f[k])) {
            PyErr_SetString(PyExc_ValueError, "survival: must not hold NaN");
            goto failed;
        }
    for (Py_ssize_t row = 0; row < arrays[0].rows; row++) {
        double *survival = arrays[0].out + row * boundaries, *drop = arrays[1].out + row * boundaries;
        double *intercept = arrays[2].out + row * boundaries, *area = arrays[3].out + row * boundaries;
        double lowest = smaller(larger(survival[0], 0.0), 1.0);
        survival[0] = 1.0;
        Py_ssize_t end = last;
        for (Py_ssize_t k = 1; k < boundaries; k++) {
            lowest = smaller(lowest, smaller(larger(survival[k], 0.0), 1.0));
            survival[k] = lowest;
            if (lowest < floor_ && end == last && k < last)
                end = k;
        }
        double at_end = larger(survival[end], floor_);
        for (Py_ssize_t k = end; k < boundaries; k++) {
            survival[k] = at_end;
            area[k] = 0.0;
        }
        double right = 0.0;
        for (Py_ssize_t k = end - 1; k >= 0; k--)
            area[k] = right += step * (survival[k] + survival[k + 1]) / 2.0;
        for (Py_ssize_t k = 0; k < last; k++) {
            drop[k] = survival[k + 1] - survival[k];
            intercept[k] = survival[k] - drop[k] * (double)k;
        }
        drop[last] = 0.0;
        intercept[last] = survival[last];
        double quarter = at_end + (1.0 - at_end) / 4.0;
        Py_ssize_t start = 0;
        while (start < last && survival[start + 1] >= quarter)
            start++;
        double deaths = survival[start] - at_end, excess = deaths > 1e-9 ? area[start] / deaths : longest;
        arrays[4].out[row] = (double)end * step;
        arrays[5].out[row] = at_end;
        arrays[6].out[row] = 1.0 / smaller(larger(excess, step), longest);
    }
    release(&held);
    Py_RETURN_NONE;
failed:
    release(&held);
    return NULL;
}

PyDoc_STRVAR(kaplan_meier_doc,
"kaplan_meier(out, parent, at_risk, deaths, prior)\n--\n\n"
"`CensoringAwareSurvival.survival`: the curve at the boundaries.");

static PyObject *kaplan_meier(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Held held = {.count = 0};
    Array out, parent, at_risk, deaths;
    double prior;
    if (expect_arguments(count, 5) < 0 || get(&held, given[0], "out", 'd', 1, WRITE, &out) < 0 ||
        expect_length("out", &out, 1) < 0 || get(&held, given[1], "parent", 'd', 1, READ, &parent) < 0 ||
        expect_length("parent", &parent, out.len) < 0 || get(&held, given[2], "at_risk", 'd', 1, READ, &at_risk) < 0 ||
        expect_length("at_risk", &at_risk, out.len - 1) < 0 ||
        get(&held, given[3], "deaths", 'd', 1, READ, &deaths) < 0 ||
        expect_length("deaths", &deaths, out.len - 1) < 0 || get_double(given[4], &prior) < 0) {
        release(&held);
        return NULL;
    }
    double alive = out.out[0] = 1.0;
    for (Py_ssize_t k = 0; k + 1 < out.len; k++) {
        double unknown = 1.0 / ((double)k + 2.0);
        double of_parent = 1.0 - (parent.f[k] > 1e-9 ? parent.f[k + 1] / parent.f[k] : 1.0 - unknown);
        double weight = at_risk.f[k] + prior;
        double hazard = weight > 1e-12 ? (deaths.f[k] + prior * of_parent) / weight : of_parent;
        out.out[k + 1] = alive *= 1.0 - smaller(larger(hazard, 0.0), 1.0);
    }
    release(&held);
    Py_RETURN_NONE;
}

/* --- the census of the requests in flight (state/census.py) ------------------------------------------------------ */

#define MOST_AGES 128
#define MOST_SLOTS (INT64_C(1) << 24)
#define MOST_CLASSES (INT64_C(1) << 32)

/* Sums over the decoding requests of one group, slot and age: how many, their tokens, and the squares of those. */
typedef struct {
    double count, held, square;
} Tally;

/* The ages of one group and slot; `used` marks those with requests. */
typedef struct {
    uint64_t used[MOST_AGES / 64];
    Tally tally[];
} Ages;

/* The decoding requests of one class and about one limit (`AgeHistogram`). */
typedef struct {
    int64_t group, total, limits;
    int64_t by_age[MOST_AGES];
    int64_t slots;
    Ages *of_slot[]; /* NULL where none of its requests has been */
} Group;

/* How a row of the flights was counted. */
typedef struct {
    int64_t group, limit;
    double held; /* tokens; of a pending request those of its prompt */
    double handoff_at_s;
    int32_t slot, age; /* slot -1: not counted; age -1: pending */
} Known;

typedef struct {
    int64_t ages, oldest; /* the last entry of `bucket_of_age` */
    unsigned char *bucket_of_age;
    double *age_of_bucket;
    Known *rows;
    uint64_t *pending; /* a bit for each row */
    Py_ssize_t counted, room, waiting;
    Group **groups; /* by number */
    Py_ssize_t number_of_groups, room_for_groups;
    char *scratch; /* of a decision, kept: to give memory back and ask for it anew would cost more than the decision */
    size_t scratch_room, scratch_used;
} Census;

static const char CENSUS[] = "ballast census";

static void free_group(Group *group)
{
    for (int64_t slot = 0; slot < group->slots; slot++)
        free(group->of_slot[slot]);
    free(group);
}

static void free_census(PyObject *capsule)
{
    Census *census = PyCapsule_GetPointer(capsule, CENSUS);
    for (Py_ssize_t k = 0; k < census->number_of_groups; k++)
        free_group(census->groups[k]);
    free(census->groups);
    free(census->scratch);
    free(census->rows);
    free(census->pending);
    free(census->bucket_of_age);
    free(census->age_of_bucket);
    free(census);
}

PyDoc_STRVAR(census_doc,
"census(bucket_of_age, age_of_bucket)\n--\n\n"
"An empty census, which `recount` fills.");

static PyObject *census(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Held held = {.count = 0};
    Array bucket, age;
    PyObject *capsule = NULL;
    if (expect_arguments(count, 2) < 0 || get(&held, given[0], "bucket_of_age", 'q', 1, READ, &bucket) < 0 ||
        get(&held, given[1], "age_of_bucket", 'd', 1, READ, &age) < 0 ||
        expect_length("bucket_of_age", &bucket, 1) < 0 || expect_length("age_of_bucket", &age, 1) < 0 ||
        expect_within("bucket_of_age", &bucket, age.len < MOST_AGES ? age.len : MOST_AGES) < 0)
        goto done;
    if (age.len > MOST_AGES) {
        PyErr_Format(PyExc_ValueError, "age_of_bucket: must have %d entries at most, not %zd", MOST_AGES, age.len);
        goto done;
    }
    Census *one = calloc(1, sizeof *one);
    if (!one) {
        PyErr_NoMemory();
        goto done;
    }
    capsule = PyCapsule_New(one, CENSUS, free_census);
    if (!capsule) {
        free(one);
        goto done;
    }
    one->ages = age.len;
    one->oldest = bucket.len - 1;
    one->bucket_of_age = malloc((size_t)bucket.len);
    one->age_of_bucket = malloc((size_t)age.len * sizeof(double));
    if (!one->bucket_of_age || !one->age_of_bucket) {
        Py_DECREF(capsule);
        capsule = PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t k = 0; k < bucket.len; k++)
        one->bucket_of_age[k] = (unsigned char)bucket.i[k];
    memcpy(one->age_of_bucket, age.f, (size_t)age.len * sizeof(double));
done:
    release(&held);
    return capsule;
}

/* Have room for so many bytes of scratch, in at most sixteen parts. Gives up all parts. -1 with an exception. */
static int begin_scratch(Census *of_census, size_t bytes)
{
    bytes += 16 * 64;
    of_census->scratch_used = 0;
    if (bytes <= of_census->scratch_room)
        return 0;
    free(of_census->scratch);
    of_census->scratch_room = 0;
    of_census->scratch = malloc(2 * bytes);
    if (!of_census->scratch) {
        PyErr_NoMemory();
        return -1;
    }
    of_census->scratch_room = 2 * bytes;
    return 0;
}

/* The next part of the scratch, of `count` values of `size` bytes each. */
static void *scratch_of(Census *of_census, Py_ssize_t count, size_t size)
{
    void *part = of_census->scratch + of_census->scratch_used;
    of_census->scratch_used += ((size_t)count * size + 63) / 64 * 64;
    return part;
}

/* Where the group is, or belongs, in the census's order. */
static Py_ssize_t place_of_group(const Census *of_census, int64_t group)
{
    Py_ssize_t low = 0, high = of_census->number_of_groups;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (of_census->groups[middle]->group < group)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The group with a table for this slot, made where it is missing; NULL without memory. */
static Group *group_with_slot(Census *of_census, int64_t number, int64_t slot)
{
    Py_ssize_t at = place_of_group(of_census, number);
    Group *group = NULL;
    if (at < of_census->number_of_groups && of_census->groups[at]->group == number)
        group = of_census->groups[at];
    if (!group || slot >= group->slots) {
        int64_t before = group ? group->slots : 0, slots = slot + 1 > 2 * before ? slot + 1 : 2 * before;
        if (!group && of_census->number_of_groups == of_census->room_for_groups) {
            Py_ssize_t room = 2 * of_census->room_for_groups + 4;
            Group **more = realloc(of_census->groups, (size_t)room * sizeof *more);
            if (!more)
                return NULL;
            of_census->groups = more;
            of_census->room_for_groups = room;
        }
        Group *grown = realloc(group, sizeof *grown + (size_t)slots * sizeof *grown->of_slot);
        if (!grown)
            return NULL;
        if (!group) {
            memset(grown, 0, sizeof *grown);
            grown->group = number;
            for (Py_ssize_t k = of_census->number_of_groups++; k > at; k--)
                of_census->groups[k] = of_census->groups[k - 1];
        }
        for (int64_t k = before; k < slots; k++)
            grown->of_slot[k] = NULL;
        grown->slots = slots;
        of_census->groups[at] = group = grown;
    }
    if (!group->of_slot[slot])
        group->of_slot[slot] = calloc(1, sizeof(Ages) + (size_t)of_census->ages * sizeof(Tally));
    return group->of_slot[slot] ? group : NULL;
}

static void count_out(Census *of_census, Py_ssize_t row)
{
    Known *known = &of_census->rows[row];
    if (known->slot < 0)
        return;
    if (known->age < 0) {
        of_census->pending[row / 64] &= ~(UINT64_C(1) << row % 64);
        of_census->waiting--;
        return;
    }
    Py_ssize_t at = place_of_group(of_census, known->group);
    Group *group = of_census->groups[at];
    Ages *ages = group->of_slot[known->slot];
    Tally *tally = &ages->tally[known->age];
    tally->count -= 1.0;
    tally->held -= known->held;
    tally->square -= known->held * known->held;
    if (tally->count == 0.0)
        ages->used[known->age / 64] &= ~(UINT64_C(1) << known->age % 64);
    group->by_age[known->age]--;
    group->total--;
    group->limits -= smaller_integer(known->limit, HIGHEST_LIMIT);
    if (!group->total) { /* its memory goes, as there may be many groups in the course of a day */
        free_group(group);
        of_census->number_of_groups--;
        for (Py_ssize_t k = at; k < of_census->number_of_groups; k++)
            of_census->groups[k] = of_census->groups[k + 1];
    }
}

/* -1 without memory; the row is not counted then. */
static int count_in(Census *of_census, Py_ssize_t row)
{
    Known *known = &of_census->rows[row];
    if (known->age < 0) {
        of_census->pending[row / 64] |= UINT64_C(1) << row % 64;
        of_census->waiting++;
        return 0;
    }
    Group *group = group_with_slot(of_census, known->group, known->slot);
    if (!group) {
        known->slot = -1;
        return -1;
    }
    Ages *ages = group->of_slot[known->slot];
    Tally *tally = &ages->tally[known->age];
    tally->count += 1.0;
    tally->held += known->held;
    tally->square += known->held * known->held;
    ages->used[known->age / 64] |= UINT64_C(1) << known->age % 64;
    group->by_age[known->age]++;
    group->total++;
    group->limits += smaller_integer(known->limit, HIGHEST_LIMIT);
    return 0;
}

static int make_room(Census *of_census, Py_ssize_t rows)
{
    if (rows <= of_census->room)
        return 0;
    Py_ssize_t room = 2 * rows + 64;
    Known *more = realloc(of_census->rows, (size_t)room * sizeof *more);
    if (more)
        of_census->rows = more;
    uint64_t *bits = realloc(of_census->pending, (size_t)(room / 64 + 1) * sizeof *bits);
    if (bits)
        of_census->pending = bits;
    if (!more || !bits)
        return -1;
    for (Py_ssize_t k = of_census->room; k < room; k++)
        more[k].slot = -1;
    Py_ssize_t before = of_census->room ? of_census->room / 64 + 1 : 0;
    memset(bits + before, 0, (size_t)(room / 64 + 1 - before) * sizeof *bits);
    of_census->room = room;
    return 0;
}

/* The first marked row from `row` on, `count` if there is none. */
static inline Py_ssize_t next_marked(const Array *marks, Py_ssize_t row, Py_ssize_t count)
{
    uint64_t eight;
    while (row < count) {
        if (row + 8 <= count) {
            memcpy(&eight, marks->b + row, sizeof eight);
            if (!eight) {
                row += 8;
                continue;
            }
        }
        if (marks->b[row])
            break;
        row++;
    }
    return row;
}

/* The flights' columns, whole; the first `count` rows are in use. */
typedef struct {
    Array slot, prompt, limit, generated, class, decoding, handoff_at_s, first_token_at_s, progress_at_s, changed;
    Py_ssize_t count;
} Flights;

static int get_flights(Held *held, PyObject *const *given, Flights *flights)
{
    int64_t rows;
    if (get_integer(given[0], &rows) < 0 || get(held, given[1], "slot", 'q', 1, READ, &flights->slot) < 0 ||
        get(held, given[2], "prompt_tokens", 'q', 1, READ, &flights->prompt) < 0 ||
        get(held, given[3], "limit_tokens", 'q', 1, READ, &flights->limit) < 0 ||
        get(held, given[4], "generated_tokens", 'q', 1, READ, &flights->generated) < 0 ||
        get(held, given[5], "class_slot", 'q', 1, READ, &flights->class) < 0 ||
        get(held, given[6], "decoding", '?', 1, READ, &flights->decoding) < 0 ||
        get(held, given[7], "handoff_at_s", 'd', 1, READ, &flights->handoff_at_s) < 0 ||
        get(held, given[8], "first_token_at_s", 'd', 1, READ, &flights->first_token_at_s) < 0 ||
        get(held, given[9], "progress_at_s", 'd', 1, READ, &flights->progress_at_s) < 0 ||
        get(held, given[10], "changed", '?', 1, WRITE, &flights->changed) < 0)
        return -1;
    const Array *all[] = {&flights->slot,     &flights->prompt,       &flights->limit,
                          &flights->generated, &flights->class,        &flights->decoding,
                          &flights->handoff_at_s, &flights->first_token_at_s, &flights->progress_at_s,
                          &flights->changed};
    for (int k = 0; k < 10; k++)
        if (rows < 0 || all[k]->len < rows) {
            PyErr_Format(PyExc_ValueError, "count: %lld rows are more than the columns have", (long long)rows);
            return -1;
        }
    flights->count = (Py_ssize_t)rows;
    for (Py_ssize_t row = next_marked(&flights->changed, 0, rows); row < rows;
         row = next_marked(&flights->changed, row + 1, rows)) {
        int64_t slot = flights->slot.i[row], class = flights->class.i[row];
        if (slot < 0 || slot >= MOST_SLOTS || class < 0 || class >= MOST_CLASSES) {
            PyErr_Format(PyExc_IndexError, "row %zd: there is no slot %lld, or no class slot %lld", row,
                         (long long)slot, (long long)class);
            return -1;
        }
    }
    return 0;
}

static inline int64_t bucket_of(const Census *of_census, int64_t tokens)
{
    return of_census->bucket_of_age[tokens < 0 ? 0 : smaller_integer(tokens, of_census->oldest)];
}

PyDoc_STRVAR(recount_doc,
"recount(census, count, slot, prompt_tokens, limit_tokens, generated_tokens, class_slot, decoding, handoff_at_s, "
"first_token_at_s, progress_at_s, changed)\n--\n\n"
"Bring a census up to date with the flights: count the marked rows anew, and clear their marks.");

static PyObject *recount(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Held held = {.count = 0};
    Flights flights;
    Census *of_census;
    int failed = 0;
    if (expect_arguments(count, 12) < 0 || !(of_census = PyCapsule_GetPointer(given[0], CENSUS)) ||
        get_flights(&held, given + 1, &flights) < 0) {
        release(&held);
        return NULL;
    }
    if (make_room(of_census, flights.count) < 0) {
        release(&held);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t row = flights.count; row < of_census->counted; row++) {
        count_out(of_census, row);
        of_census->rows[row].slot = -1;
    }
    of_census->counted = flights.count;
    for (Py_ssize_t row = next_marked(&flights.changed, 0, flights.count); row < flights.count;
         row = next_marked(&flights.changed, row + 1, flights.count)) {
        count_out(of_census, row);
        Known *known = &of_census->rows[row];
        int64_t limit = flights.limit.i[row], prompt = flights.prompt.i[row], tokens = flights.generated.i[row];
        int decodes = flights.decoding.b[row];
        known->group = flights.class.i[row] * (of_census->ages + 1) +
                       (limit == NO_LIMIT ? of_census->ages : bucket_of(of_census, limit));
        known->limit = limit;
        known->held = decodes ? (double)(tokens + prompt) : (double)prompt;
        known->handoff_at_s = flights.handoff_at_s.f[row];
        known->slot = (int32_t)flights.slot.i[row];
        known->age = decodes ? (int32_t)bucket_of(of_census, tokens) : -1;
        if (count_in(of_census, row) < 0)
            failed = 1;
        flights.changed.out_b[row] = 0;
    }
    release(&held);
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(tallies_doc,
"tallies(census, group, counts, held, squares)\n--\n\n"
"Add what a census has counted of one group to matrices (slots, ages) as those of an `AgeHistogram`; returns how many "
"requests there are.");

static PyObject *tallies(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Held held = {.count = 0};
    Census *of_census;
    Array sums[3];
    int64_t number, total = 0;
    static const char *const names[] = {"counts", "held", "squares"};
    if (expect_arguments(count, 5) < 0 || !(of_census = PyCapsule_GetPointer(given[0], CENSUS)) ||
        get_integer(given[1], &number) < 0)
        return NULL;
    for (int k = 0; k < 3; k++)
        if (get(&held, given[2 + k], names[k], 'd', 2, WRITE, &sums[k]) < 0 ||
            expect_length(names[k], &sums[k], sums[0].len) < 0)
            goto failed;
    if (sums[0].columns != of_census->ages) {
        PyErr_Format(PyExc_ValueError, "counts: must have %lld columns", (long long)of_census->ages);
        goto failed;
    }
    Py_ssize_t at = place_of_group(of_census, number);
    if (at < of_census->number_of_groups && of_census->groups[at]->group == number) {
        const Group *group = of_census->groups[at];
        total = group->total;
        for (int64_t slot = 0; slot < group->slots && slot < sums[0].rows; slot++)
            for (int64_t age = 0; group->of_slot[slot] && age < of_census->ages; age++) {
                const Tally *tally = &group->of_slot[slot]->tally[age];
                sums[0].out[slot * of_census->ages + age] += tally->count;
                sums[1].out[slot * of_census->ages + age] += tally->held;
                sums[2].out[slot * of_census->ages + age] += tally->square;
            }
    }
    release(&held);
    return PyLong_FromLongLong(total);
failed:
    release(&held);
    return NULL;
}

/* --- the projected load of the candidates (policies/placement/projection.py) ------------------------------------- */

/* By time and candidate, (TIMES, candidates): requests, tokens, and the variance of the tokens. */
typedef struct {
    double *requests, *tokens, *variance;
} Load;

/* For the requests of one age, by time: factors of their count, tokens and squared tokens. `last`: those of the ninth
 * time, alive twice and ended twice. */
typedef struct {
    double alive[LANES], ended[LANES], last[LANES];
} __attribute__((aligned(64))) Row;

/* The same for pending requests, whose growth differs from row to row: alive, alive x grown, ended, 2 ended x grown,
 * ended x grown squared; `last`: the same five of the ninth time. */
typedef struct {
    double alive[LANES], alive_grown[LANES], ended[LANES], ended_grown[LANES], ended_squared[LANES], last[LANES];
} __attribute__((aligned(64))) PendingRow;

/* A pending request of one candidate. */
typedef struct {
    double held;
    int64_t row;
} Cell;

/* Sums over ages of count and held times alive, of count, held and square times ended (`sum_decoding`); over cells of
 * requests, tokens and variance (`sum_pending`). All sums of a candidate stay in registers. */
#define SUMS(SUFFIX, VECTOR, TARGET)                                                                                   \
    TARGET static void sum_decoding##SUFFIX(Py_ssize_t used, const unsigned char *ages, const Tally *tally,            \
                                            const Row *table, double sums[5][TIMES])                                   \
    {                                                                                                                  \
        enum { VECTORS = LANES * sizeof(double) / sizeof(VECTOR) };                                                    \
        VECTOR a[VECTORS] = {{0}}, b[VECTORS] = {{0}}, d[VECTORS] = {{0}}, e[VECTORS] = {{0}}, f[VECTORS] = {{0}};     \
        quad last = {0};                                                                                               \
        double rest = 0.0;                                                                                             \
        for (Py_ssize_t k = 0; k < used; k++) {                                                                        \
            const Row *row = &table[ages[k]];                                                                          \
            const VECTOR *alive = (const VECTOR *)row->alive, *ended = (const VECTOR *)row->ended;                     \
            double count = tally[ages[k]].count, held = tally[ages[k]].held, square = tally[ages[k]].square;           \
            for (int v = 0; v < VECTORS; v++) {                                                                        \
                a[v] += count * alive[v];                                                                              \
                b[v] += held * alive[v];                                                                               \
                d[v] += count * ended[v];                                                                              \
                e[v] += held * ended[v];                                                                               \
                f[v] += square * ended[v];                                                                             \
            }                                                                                                          \
            last += (quad){count, held, count, held} * *(const quad *)row->last;                                       \
            rest += square * row->last[3];                                                                             \
        }                                                                                                              \
        memcpy(sums[0], a, sizeof a);                                                                                  \
        memcpy(sums[1], b, sizeof b);                                                                                  \
        memcpy(sums[2], d, sizeof d);                                                                                  \
        memcpy(sums[3], e, sizeof e);                                                                                  \
        memcpy(sums[4], f, sizeof f);                                                                                  \
        for (int k = 0; k < 4; k++)                                                                                    \
            sums[k][LANES] = last[k];                                                                                  \
        sums[4][LANES] = rest;                                                                                         \
    }                                                                                                                  \
    TARGET static void sum_pending##SUFFIX(Py_ssize_t cells, const Cell *cell, const PendingRow *table,                \
                                           double sums[3][TIMES])                                                      \
    {                                                                                                                  \
        enum { VECTORS = LANES * sizeof(double) / sizeof(VECTOR) };                                                    \
        VECTOR a[VECTORS] = {{0}}, b[VECTORS] = {{0}}, d[VECTORS] = {{0}};                                             \
        double last_a = 0.0, last_b = 0.0, last_d = 0.0;                                                               \
        for (Py_ssize_t c = 0; c < cells; c++) {                                                                       \
            const PendingRow *row = &table[cell[c].row];                                                               \
            const VECTOR *alive = (const VECTOR *)row->alive, *alive_grown = (const VECTOR *)row->alive_grown;         \
            const VECTOR *ended = (const VECTOR *)row->ended, *once = (const VECTOR *)row->ended_grown;                \
            const VECTOR *twice = (const VECTOR *)row->ended_squared;                                                  \
            double held = cell[c].held, square = held * held;                                                          \
            for (int v = 0; v < VECTORS; v++) {                                                                        \
                a[v] += alive[v];                                                                                      \
                b[v] += held * alive[v] + alive_grown[v];                                                              \
                d[v] += square * ended[v] + held * once[v] + twice[v];                                                 \
            }                                                                                                          \
            last_a += row->last[0];                                                                                    \
            last_b += held * row->last[0] + row->last[1];                                                              \
            last_d += square * row->last[2] + held * row->last[3] + row->last[4];                                      \
        }                                                                                                              \
        memcpy(sums[0], a, sizeof a);                                                                                  \
        memcpy(sums[1], b, sizeof b);                                                                                  \
        memcpy(sums[2], d, sizeof d);                                                                                  \
        sums[0][LANES] = last_a;                                                                                       \
        sums[1][LANES] = last_b;                                                                                       \
        sums[2][LANES] = last_d;                                                                                       \
    }

SUMS(_by_pairs, pair, )

#ifdef WIDER
SUMS(_by_quads, quad, __attribute__((target("avx2"))))
#ifdef WIDEST
SUMS(_by_octs, oct, __attribute__((target("avx512f"))))
#endif

/* How many doubles one instruction of this processor, under this operating system, takes: 2, 4 (AVX2) or 8 (AVX-512). */
static int widest(void)
{
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & (1u << 27 | 1u << 28)) != (1u << 27 | 1u << 28))
        return 2;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & 1u << 5))
        return 2;
    return (low & 0xe6) == 0xe6 && (b & 1u << 16) ? 8 : 4;
}
#endif

static void (*sum_decoding)(Py_ssize_t, const unsigned char *, const Tally *, const Row *,
                            double[5][TIMES]) = sum_decoding_by_pairs;
static void (*sum_pending)(Py_ssize_t, const Cell *, const PendingRow *, double[3][TIMES]) = sum_pending_by_pairs;

static void add_decoding(const Load *load, const Array *slots, const Group *group, const Row *table,
                         const double *grown)
{
    Py_ssize_t n = slots->len;
    for (Py_ssize_t i = 0; i < n; i++) {
        const Ages *ages = slots->i[i] < group->slots ? group->of_slot[slots->i[i]] : NULL;
        if (!ages)
            continue;
        unsigned char listed[MOST_AGES];
        Py_ssize_t used = 0;
        for (int word = 0; word < MOST_AGES / 64; word++)
            for (uint64_t left = ages->used[word]; left; left &= left - 1)
                listed[used++] = (unsigned char)(64 * word + __builtin_ctzll(left));
        if (!used)
            continue;
        double sums[5][TIMES];
        sum_decoding(used, listed, ages->tally, table, sums);
        for (int t = 0; t < TIMES; t++) {
            load->requests[t * n + i] += sums[0][t];
            load->tokens[t * n + i] += sums[1][t] + grown[t] * sums[0][t];
            load->variance[t * n + i] += sums[4][t] + grown[t] * (2.0 * sums[3][t] + grown[t] * sums[2][t]);
        }
    }
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
    uint64_t bits; /* of 1.0 or more: its exponent, and its mantissa from 1 to below 2 */
    memcpy(&bits, &position, sizeof bits);
    int32_t row = ((int32_t)(bits >> 52) - 1023) * STEPS_PER_DOUBLING;
    bits = (bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1023) << 52;
    double mantissa;
    memcpy(&mantissa, &bits, sizeof mantissa);
    for (int k = 0; k < 7; k++)
        row += mantissa >= eighths[k];
    return row < DELAYS - 1 ? row : DELAYS - 1;
}

static void fill_pending(PendingRow *table, int used, const Curves *of_curves, const double *delay_of_row,
                         const double *delays_s, double tokens_per_s, int64_t class, double cap)
{
    double newborn = survival_within(of_curves, 0.0, class);
    for (int k = 0; k < used; k++)
        for (int t = 0; t < TIMES; t++) {
            PendingRow *row = &table[k];
            double wait_s = delay_of_row[k], grown = larger(delays_s[t] - wait_s, 0.0) * tokens_per_s;
            double alive = delays_s[t] >= wait_s ? conditional(of_curves, 0.0, newborn, grown, class, cap) : 0.0;
            double ended = alive * (1.0 - alive);
            double factors[] = {alive, alive * grown, ended, 2.0 * (ended * grown), ended * grown * grown};
            if (t == LANES) {
                memcpy(row->last, factors, sizeof factors);
                continue;
            }
            row->alive[t] = factors[0];
            row->alive_grown[t] = factors[1];
            row->ended[t] = factors[2];
            row->ended_grown[t] = factors[3];
            row->ended_squared[t] = factors[4];
        }
}

static int add_pending(const Load *load, Py_ssize_t n, Census *of_census, const int32_t *candidate_of,
                       Py_ssize_t capacity, const Curves *of_curves, const double *delay_of_row,
                       const double *delays_s, double now_s, double tokens_per_s)
{
    Py_ssize_t waiting = of_census->waiting, found = 0;
    if (!waiting)
        return 0;
    Pending *pending = scratch_of(of_census, waiting, sizeof *pending);
    Cell *cells = scratch_of(of_census, waiting, sizeof *cells);
    int32_t *next = scratch_of(of_census, n, sizeof *next); /* by candidate, where its next cell goes */
    int32_t used = 0;
    for (Py_ssize_t word = 0; found < waiting; word++)
        for (uint64_t left = of_census->pending[word]; left; left &= left - 1, found++) {
            const Known *known = &of_census->rows[64 * word + __builtin_ctzll(left)];
            pending[found] = (Pending){
                .group = known->group,
                .candidate = known->slot < capacity ? candidate_of[known->slot] : -1,
                .row = delay_row(known->handoff_at_s - now_s),
                .held = known->held,
                .limit = (double)known->limit,
            };
            if (pending[found].row >= used)
                used = pending[found].row + 1;
        }
    Py_ssize_t from = 0; /* those before it have been added */
    while (from < found) {
        int64_t group = pending[from].group, class = group / (of_census->ages + 1);
        if (expect_class(of_curves, class) < 0)
            return -1;
        double limits = 0.0;
        memset(next, 0, (size_t)n * sizeof *next);
        Py_ssize_t begin = from;
        for (Py_ssize_t k = from; k < found; k++) { /* those of this group move to the front */
            if (pending[k].group != group)
                continue;
            Pending one = pending[k];
            if (k != from) {
                pending[k] = pending[from];
                pending[from] = one;
            }
            from++;
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
                    (Cell){pending[k].held, pending[k].row};
        PendingRow table[DELAYS];
        fill_pending(table, used, of_curves, delay_of_row, delays_s, tokens_per_s, class,
                     group % (of_census->ages + 1) != of_census->ages ? limits / (double)(from - begin) : INFINITY);
        for (Py_ssize_t i = 0; i < n; i++) {
            int32_t first = i ? next[i - 1] : 0;
            if (next[i] == first)
                continue;
            double sums[3][TIMES];
            sum_pending(next[i] - first, cells + first, table, sums);
            for (int t = 0; t < TIMES; t++) {
                load->requests[t * n + i] += sums[0][t];
                load->tokens[t * n + i] += sums[1][t];
                load->variance[t * n + i] += sums[2][t];
            }
        }
    }
    return 0;
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

/* Whether all candidates have room for so many more tokens. */
static int all_fit(Py_ssize_t n, const Columns *of_candidate, const double *held, double added)
{
    int over = 0; /* no early end: this loop is a few vectors */
    for (Py_ssize_t i = 0; i < n; i++)
        over |= !((held[i] + added) * of_candidate->per_kv[i] <= 1.0);
    return !over;
}

/* G, and the step time, with `more` requests and `added` tokens. `fit`: on no candidate a request waits for KV. */
static void burden_s(Py_ssize_t n, const Columns *of_candidate, const double *restrict requests,
                     const double *restrict held, double more, double added, int fit, double typical_s,
                     double *restrict burden, double *restrict step)
{
    const double *restrict per_kv = of_candidate->per_kv, *restrict slope = of_candidate->slope;
    const double *restrict floor_4 = of_candidate->floor_4, *restrict read = of_candidate->read;
    const double *restrict host = of_candidate->host, *restrict overhead = of_candidate->overhead;
    double per_typical = 1.0 / typical_s;
    for (Py_ssize_t i = 0; fit && i < n; i++) {
        double running = requests[i] + more;
        double seconds = weights_and_matmul_s(slope[i], floor_4[i], running) + read[i] * (held[i] + added);
        seconds += host[i] * running;
        seconds += overhead[i];
        double slow = seconds * per_typical;
        step[i] = seconds;
        burden[i] = running * seconds * (slow * slow * slow);
    }
    for (Py_ssize_t i = 0; !fit && i < n; i++) {
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

#define PER_ROOT_OF_TWO_PI (1.0 / sqrt(2.0 * 3.14159265358979323846))

/* What `mean_excess` computes from z = 8, set when the module is made. */
static struct {
    double chances, density;
} beyond_doubt;

static double mean_excess(double mean, double spread)
{
    double sure = larger(spread, 1.0), z = mean / sure;
    if (z <= -2.0)
        return 0.0; /* the logistic's error is larger than what is left */
    if (z >= 8.0) /* most that are above -2 */
        return larger(mean / beyond_doubt.chances + sure * beyond_doubt.density, 0.0);
    return larger(mean / (1.0 + exp(-1.702 * z)) + sure * (exp(-0.5 * z * z) * PER_ROOT_OF_TWO_PI), 0.0);
}

/* The level at which so many requests have been placed, each at its cheapest (policies/placement/waterline.py): from
 * all candidates downwards, those above the level are left out until none is. `scratch`: 2 n. */
static double waterline(Py_ssize_t n, const double *costs, const double *slopes, double requests, double *scratch)
{
    double *cost = scratch, *room = scratch + n, lowest = INFINITY;
    for (Py_ssize_t i = 0; i < n; i++)
        lowest = smaller(lowest, costs[i]);
    if (!(requests > 0.0))
        return lowest;
    for (Py_ssize_t i = 0; i < n; i++) {
        cost[i] = costs[i];
        room[i] = 1.0 / larger(slopes[i], LEAST_SLOPE);
    }
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
    Asked asked;
    const Fleet *fleet;
    const Curves *curves;
    Census *census;
    Array delay_of_row, risks;
    double now_s, handoff_s, short_life_tokens;
    int64_t class, limit; /* a limit below 0: none */
    int prefills_here;
} Decision;

static int get_decision(Held *held, PyObject *const *given, Decision *one)
{
    if (get_asked(held, given, given[5], &one->asked, &one->fleet) < 0 || get_double(given[4], &one->now_s) < 0)
        return -1;
    one->prefills_here = given[6] == Py_None;
    if (!one->prefills_here && get_double(given[6], &one->handoff_s) < 0)
        return -1;
    one->limit = -1;
    if (get_integer(given[7], &one->class) < 0 || (given[8] != Py_None && get_integer(given[8], &one->limit) < 0))
        return -1;
    one->curves = PyCapsule_GetPointer(given[9], CURVES);
    one->census = one->curves ? PyCapsule_GetPointer(given[10], CENSUS) : NULL;
    if (!one->census || get(held, given[11], "delay_of_row", 'd', 1, READ, &one->delay_of_row) < 0 ||
        expect_length("delay_of_row", &one->delay_of_row, DELAYS) < 0 ||
        get(held, given[12], "risks", 'd', 1, READ, &one->risks) < 0 ||
        expect_length("risks", &one->risks, one->census->ages) < 0 || get_double(given[13], &one->short_life_tokens) < 0)
        return -1;
    return expect_class(one->curves, one->class);
}

/* m of term (7): requests count by their age, those in prefill and others' as new ones. */
static double at_risk(const Decision *one, int64_t slot)
{
    const Census *of_census = one->census;
    double requests = (double)(one->fleet->requests.i[slot] + one->fleet->foreign.i[slot]);
    for (Py_ssize_t k = 0; k < of_census->number_of_groups; k++) {
        const Group *group = of_census->groups[k];
        const Ages *there = slot < group->slots ? group->of_slot[slot] : NULL;
        for (int word = 0; there && word < MOST_AGES / 64; word++)
            for (uint64_t left = there->used[word]; left; left &= left - 1) {
                int age = 64 * word + __builtin_ctzll(left);
                requests += there->tally[age].count * (one->risks.f[age] - 1.0);
            }
    }
    return requests;
}

/* The load of every candidate at each time. -1 with an exception. */
static int project(const Decision *one, const double *delays_s, double tokens_per_s, const Load *load)
{
    Census *of_census = one->census;
    Py_ssize_t n = one->asked.slots.len, capacity = one->fleet->slots;
    int32_t *candidate_of = scratch_of(of_census, capacity, sizeof *candidate_of);
    for (Py_ssize_t k = 0; k < capacity; k++)
        candidate_of[k] = -1;
    for (Py_ssize_t i = 0; i < n; i++)
        candidate_of[one->asked.slots.i[i]] = (int32_t)i;
    double grown[TIMES];
    for (int t = 0; t < TIMES; t++)
        grown[t] = delays_s[t] * tokens_per_s;
    Row table[MOST_AGES];
    for (Py_ssize_t k = 0; k < of_census->number_of_groups; k++) {
        const Group *group = of_census->groups[k];
        int64_t class = group->group / (of_census->ages + 1);
        if (expect_class(one->curves, class) < 0)
            return -1;
        int limited = group->group % (of_census->ages + 1) != of_census->ages;
        double cap = limited ? (double)group->limits / (double)group->total : INFINITY;
        for (int64_t age = 0; age < of_census->ages; age++) {
            if (!group->by_age[age])
                continue;
            double from = larger(of_census->age_of_bucket[age], 0.0);
            double now = survival_within(one->curves, from, class);
            for (int t = 0; t < TIMES; t++) {
                double alive = conditional(one->curves, from, now, from + grown[t], class, cap);
                double ended = alive * (1.0 - alive);
                if (t < LANES) {
                    table[age].alive[t] = alive;
                    table[age].ended[t] = ended;
                } else {
                    table[age].last[0] = table[age].last[1] = alive;
                    table[age].last[2] = table[age].last[3] = ended;
                }
            }
        }
        add_decoding(load, &one->asked.slots, group, table, grown);
    }
    return add_pending(load, n, of_census, candidate_of, capacity, one->curves, one->delay_of_row.f, delays_s,
                       one->now_s, tokens_per_s);
}

static double typical_step_s(const Decision *one, const Columns *of_candidate, double *scratch)
{
    Py_ssize_t n = one->asked.slots.len;
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t slot = one->asked.slots.i[i];
        double requests = (double)(one->fleet->requests.i[slot] + one->fleet->foreign.i[slot] + 1);
        double tokens = (double)one->fleet->tokens.i[slot] + one->asked.prompt;
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
    Py_ssize_t n = one->asked.slots.len, cells = n * TIMES;
    double *restrict out = one->asked.out.out;
    Py_ssize_t doubles = 20 * n + 6 * cells, waiting = one->census->waiting;
    if (begin_scratch(one->census, (size_t)doubles * sizeof(double) +
                                       (size_t)(one->fleet->slots + n) * sizeof(int32_t) +
                                       (size_t)waiting * (sizeof(Pending) + sizeof(Cell))) < 0)
        return -1;
    double *next = scratch_of(one->census, doubles, sizeof *next);
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

    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t slot = one->asked.slots.i[i];
        columns.kv[i] = of(&one->fleet->hardware, KV, slot);
        columns.per_kv[i] = 1.0 / columns.kv[i];
        columns.slope[i] = of(&one->fleet->steps, SLOPE, slot);
        columns.floor_4[i] = of(&one->fleet->steps, FLOOR_4, slot);
        columns.read[i] = of(&one->fleet->steps, READ_S, slot);
        columns.host[i] = of(&one->fleet->steps, HOST, slot);
        columns.overhead[i] = of(&one->fleet->steps, OVERHEAD, slot);
        columns.foreign[i] = (double)one->fleet->foreign.i[slot]; /* each is taken to hold what one of ours does */
        columns.foreign_tokens[i] =
            columns.foreign[i] * ((double)one->fleet->tokens.i[slot] / larger((double)one->fleet->requests.i[slot], 1.0));
        double cached = matched_of(&one->asked.matched, i);
        own_s[i] = own_prefill_s(&one->fleet->prefills, slot, one->asked.prompt - cached, cached);
        queued_s[i] = prefill_wait_s(&one->fleet->prefills, slot, one->now_s) + own_s[i];
    }
    double typical_s = typical_step_s(one, &columns, scratch);
    double handoff_s = one->handoff_s;
    if (one->prefills_here) {
        handoff_s = INFINITY;
        for (Py_ssize_t i = 0; i < n; i++)
            handoff_s = smaller(handoff_s, queued_s[i]);
    }
    double ages[TIMES] = {0.0}, delays_s[TIMES], weights[TIMES];
    double piece_tokens = life_nodes(one->curves, one->class, one->limit, PIECES, ages + 1);
    for (int t = 0; t < TIMES; t++) {
        delays_s[t] = handoff_s + ages[t] * typical_s;
        weights[t] = t < 2 ? piece_tokens * 0.5 : piece_tokens;
    }
    if (project(one, delays_s, 1.0 / typical_s, &load) < 0)
        return -1;

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
        mean = one->asked.prompt;

    int stalls = 0;
    for (int t = 0; t < TIMES && !stalls; t++)
        for (Py_ssize_t i = 0; i < n; i++)
            if (!(load.tokens[t * n + i] + (one->asked.prompt + ages[t]) - columns.kv[i] <=
                  -2.0 * larger(load.variance[t * n + i], 1.0))) {
                stalls = 1;
                break;
            }

    for (Py_ssize_t i = 0; i < n; i++)
        out[i] = 0.0;
    for (int t = 0; t < TIMES; t++) {
        const double *requests = load.requests + t * n, *held = load.tokens + t * n, *spread = load.variance + t * n;
        double own = one->asked.prompt + ages[t], *cost = marginal + t * n, *with_s = with_step + t * n;
        double placed = larger(alive[0] - alive[t], 0.0);
        int fit = all_fit(n, &columns, held, larger(own, 2.0 * mean));
        burden_s(n, &columns, requests, held, 0.0, 0.0, fit, typical_s, before, step);
        burden_s(n, &columns, requests, held, 1.0, own, fit, typical_s, cost, with_s);
        for (Py_ssize_t i = 0; i < n; i++)
            cost[i] -= before[i];
        if (placed > 0.0) { /* else the waterline needs no slopes */
            burden_s(n, &columns, requests, held, 1.0, mean, fit, typical_s, one_more, step);
            burden_s(n, &columns, requests, held, 2.0, 2.0 * mean, fit, typical_s, two_more, step);
            for (Py_ssize_t i = 0; i < n; i++)
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
        double level = waterline(n, cost, slopes, placed, scratch);
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
                context += (load.tokens[t * n + i] + (one->asked.prompt + ages[t])) / requests;
                worst[i] = larger(worst[i], stalled[t * n + i] * requests);
            }
            out[i] += worst[i] * own_prefill_s(&one->fleet->prefills, one->asked.slots.i[i], context / TIMES, 0.0);
        }
    for (Py_ssize_t i = 0; i < n; i++) {
        double held = load.tokens[i], requests = load.requests[i], kv = columns.kv[i];
        double missing = held + one->asked.prompt + UNREPORTED_TOKENS * (requests + 1.0) - kv;
        if (missing > 0.0) {
            double life_s = PIECES * piece_tokens * first_step[i];
            double freed = larger(missing, held / larger(requests, 1.0));
            out[i] += freed * life_s / kv * larger(life_s / own_s[i], 1.0);
        }
    }
    if (one->prefills_here) {
        for (Py_ssize_t i = 0; i < n; i++)
            scratch[i] = one->short_life_tokens * first_step[i];
        double life = median(scratch, n), cubed = life * life * life;
        for (Py_ssize_t i = 0; i < n; i++) {
            double held_up_s = one->short_life_tokens * first_step[i] + queued_s[i] - own_s[i];
            double caused_s = (to_the_fourth(held_up_s + own_s[i]) - to_the_fourth(held_up_s)) / cubed;
            out[i] += queued_s[i] + at_risk(one, one->asked.slots.i[i]) * caused_s;
        }
    }
    return 0;
}

PyDoc_STRVAR(ballast_doc,
"ballast(out, slots, matched_tokens, prompt_tokens, now_s, fleet, handoff_s, class_slot, limit_tokens, curves, census, "
"delay_of_row, risks, short_life_tokens)\n--\n\n"
"The costs of `Ballast` at the decode stage.");

static PyObject *ballast(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Held held = {.count = 0};
    Decision one;
    int failed = expect_arguments(count, 14) < 0 || get_decision(&held, given, &one) < 0;
    if (!failed && one.asked.slots.len)
        failed = weigh(&one) < 0;
    release(&held);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* --- sibyl (policies/placement/sibyl.py, state/growth.py) -------------------------------------------------------- */

/* The columns of `Growth` for one request, and what else of its row is read. */
typedef struct {
    double age, held, own_rate, start_share, reciprocal, handoff_at_s, limit;
    int64_t class;
    int32_t slot;
    int32_t decoding;
} Grown;

typedef struct {
    Grown *rows;
    Py_ssize_t count, room;
} Growth;

static const char GROWTH[] = "ballast growth";

static void free_growth(PyObject *capsule)
{
    Growth *of_growth = PyCapsule_GetPointer(capsule, GROWTH);
    free(of_growth->rows);
    free(of_growth);
}

PyDoc_STRVAR(growth_doc, "growth()\n--\n\nAn empty `Growth`, which `regrow` fills.");

static PyObject *growth(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    if (expect_arguments(count, 0) < 0)
        return NULL;
    Growth *one = calloc(1, sizeof *one);
    if (!one)
        return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(one, GROWTH, free_growth);
    if (!capsule)
        free(one);
    return capsule;
}

PyDoc_STRVAR(regrow_doc,
"regrow(growth, curves, all_rows, count, slot, prompt_tokens, limit_tokens, generated_tokens, class_slot, decoding, "
"handoff_at_s, first_token_at_s, progress_at_s, changed)\n--\n\n"
"`Growth.update`: write the marked rows anew and clear their marks; with `all_rows`, look up the curves for all.");

static PyObject *regrow(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Held held = {.count = 0};
    Flights flights;
    Growth *of_growth;
    const Curves *of_curves;
    int64_t all;
    if (expect_arguments(count, 14) < 0 || !(of_growth = PyCapsule_GetPointer(given[0], GROWTH)) ||
        !(of_curves = PyCapsule_GetPointer(given[1], CURVES)) || get_integer(given[2], &all) < 0 ||
        get_flights(&held, given + 3, &flights) < 0)
        goto failed;
    Py_ssize_t classes = of_curves->end.len;
    for (Py_ssize_t row = next_marked(&flights.changed, 0, flights.count); row < flights.count;
         row = next_marked(&flights.changed, row + 1, flights.count))
        if (expect_class(of_curves, classes > 1 ? flights.class.i[row] : 0) < 0)
            goto failed;
    if (flights.count > of_growth->room) {
        Py_ssize_t room = 2 * flights.count;
        Grown *more = realloc(of_growth->rows, (size_t)room * sizeof *more);
        if (!more) {
            PyErr_NoMemory();
            goto failed;
        }
        memset(more + of_growth->room, 0, (size_t)(room - of_growth->room) * sizeof *more);
        of_growth->rows = more;
        of_growth->room = room;
    }
    of_growth->count = flights.count;
    for (Py_ssize_t row = next_marked(&flights.changed, 0, flights.count); row < flights.count;
         row = next_marked(&flights.changed, row + 1, flights.count)) {
        Grown *one = &of_growth->rows[row];
        double weight =
            1.0 / (larger(flights.progress_at_s.f[row] - flights.first_token_at_s.f[row], 0.0) + 1.0);
        one->age = (double)flights.generated.i[row];
        one->held = one->age + (double)flights.prompt.i[row];
        one->own_rate = larger(one->age - 1.0, 0.0) * weight;
        one->start_share = weight;
        one->handoff_at_s = flights.handoff_at_s.f[row];
        one->limit = (double)flights.limit.i[row];
        one->class = flights.class.i[row];
        one->slot = (int32_t)flights.slot.i[row];
        one->decoding = flights.decoding.b[row];
        one->reciprocal = 1.0 / survival_within(of_curves, larger(one->age, 0.0), classes > 1 ? one->class : 0);
        flights.changed.out_b[row] = 0;
    }
    if (all)
        for (Py_ssize_t row = 0; row < of_growth->count; row++) {
            Grown *one = &of_growth->rows[row];
            int64_t class = classes > 1 ? one->class : 0;
            if (expect_class(of_curves, class) < 0)
                goto failed;
            one->reciprocal = 1.0 / survival_within(of_curves, larger(one->age, 0.0), class);
        }
    release(&held);
    Py_RETURN_NONE;
failed:
    release(&held);
    return NULL;
}

PyDoc_STRVAR(sibyl_doc,
"sibyl(out, slots, capacity, now_s, handoff_s, start_tokens_per_s, growth, curves, prob_at_one, without_type_one, "
"without_type_two, without_type_three)\n--\n\n"
"The costs of `Sibyl` at the decode stage, of candidates with slots below `capacity`. `handoff_s`: one number, or an "
"array with that of each.");

static PyObject *sibyl(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Held held = {.count = 0};
    Array out, slots, handoff_s = {.len = 0};
    const Growth *of_growth;
    const Curves *of_curves;
    int64_t capacity, certain, without[3];
    double now_s, common_s = 0.0, start_rate;
    int32_t *candidate_of = NULL;
    PyObject *answer = NULL;
    if (expect_arguments(count, 12) < 0 || get(&held, given[0], "out", 'd', 1, WRITE, &out) < 0 ||
        get(&held, given[1], "slots", 'q', 1, READ, &slots) < 0 || expect_length("out", &out, slots.len) < 0 ||
        get_integer(given[2], &capacity) < 0 || get_double(given[3], &now_s) < 0 ||
        get_double(given[5], &start_rate) < 0 || !(of_growth = PyCapsule_GetPointer(given[6], GROWTH)) ||
        !(of_curves = PyCapsule_GetPointer(given[7], CURVES)) || get_integer(given[8], &certain) < 0 ||
        get_integer(given[9], &without[0]) < 0 || get_integer(given[10], &without[1]) < 0 ||
        get_integer(given[11], &without[2]) < 0)
        goto done;
    int each = PyObject_CheckBuffer(given[4]);
    if (each ? get(&held, given[4], "handoff_s", 'd', 1, READ, &handoff_s) < 0 ||
                   expect_length("handoff_s", &handoff_s, slots.len) < 0
             : get_double(given[4], &common_s) < 0)
        goto done;
    if (capacity < 0 || capacity > MOST_SLOTS) {
        PyErr_SetString(PyExc_ValueError, "capacity: there are no so many slots");
        goto done;
    }
    if (expect_within("slots", &slots, (Py_ssize_t)capacity) < 0)
        goto done;
    candidate_of = malloc((size_t)(capacity + 1) * sizeof *candidate_of);
    if (!candidate_of) {
        PyErr_NoMemory();
        goto done;
    }
    for (int64_t k = 0; k < capacity; k++)
        candidate_of[k] = -1;
    for (Py_ssize_t i = 0; i < slots.len; i++) {
        candidate_of[slots.i[i]] = (int32_t)i;
        out.out[i] = 0.0;
    }
    Py_ssize_t classes = of_curves->end.len;
    if (classes < 1) {
        expect_class(of_curves, 0);
        goto done;
    }
    for (Py_ssize_t row = 0; row < of_growth->count; row++) {
        const Grown *one = &of_growth->rows[row];
        int32_t i = one->slot < capacity ? candidate_of[one->slot] : -1;
        if (i < 0)
            continue;
        double ahead_s = each ? handoff_s.f[i] : common_s;
        double elapsed_s = smaller(now_s + ahead_s - one->handoff_at_s, ahead_s);
        int early = elapsed_s >= 0.0;
        if (one->decoding ? without[0] : early ? without[1] : without[2])
            continue;
        double grown = (one->start_share * start_rate + one->own_rate) * elapsed_s;
        double load = larger(one->held + grown, 0.0);
        if (!certain) {
            int64_t class = classes > 1 && one->class < classes ? one->class : 0;
            double later = larger(grown + one->age, 0.0);
            double alive = survival_within(of_curves, later, class) * one->reciprocal;
            if (later > of_curves->end.f[class]) {
                double age = larger(one->age, 0.0);
                alive = conditional(of_curves, age, survival_within(of_curves, age, class), later, class, INFINITY);
            }
            load *= later < one->limit ? alive : 0.0;
        }
        out.out[i] += load;
    }
    answer = Py_None;
    Py_INCREF(answer);
done:
    free(candidate_of);
    release(&held);
    return answer;
}

/* --- the module -------------------------------------------------------------------------------------------------- */

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, name##_doc}

static PyMethodDef functions[] = {
    FUNCTION(fleet), FUNCTION(prefill_s), FUNCTION(least_uncached_tokens), FUNCTION(choose), FUNCTION(all_have_room),
    FUNCTION(curves), FUNCTION(tabulate), FUNCTION(kaplan_meier),
    FUNCTION(census), FUNCTION(recount), FUNCTION(tallies), FUNCTION(ballast),
    FUNCTION(growth), FUNCTION(regrow), FUNCTION(sibyl), {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module)
{
    beyond_doubt.chances = 1.0 + exp(-1.702 * 8.0);
    beyond_doubt.density = exp(-0.5 * 8.0 * 8.0) * PER_ROOT_OF_TWO_PI;
#ifdef WIDER
    int width = widest();
    if (width > 2) {
        sum_decoding = sum_decoding_by_quads;
        sum_pending = sum_pending_by_quads;
    }
#ifdef WIDEST
    if (width > 4) {
        sum_decoding = sum_decoding_by_octs;
        sum_pending = sum_pending_by_octs;
    }
#endif
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
