/* What `_kernel.c` uses of Python's stable ABI. These layouts and names are the same in every CPython from 3.11 on.
 *
 * Python.h is not used, also where it is installed: the one of 3.12 and 3.13.0 leaves out the reference count of None,
 * which is immortal there, and an extension that was built with it would free None in 3.11. */

#include <stddef.h>
#include <sys/types.h>

typedef ssize_t Py_ssize_t;
#define PY_SSIZE_T_MAX ((Py_ssize_t)(((size_t)-1) >> 1))

typedef struct _object PyObject;

typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} Py_buffer;

#define PyBUF_WRITABLE 0x0001
#define PyBUF_FORMAT 0x0004
#define PyBUF_C_CONTIGUOUS (0x0020 | 0x0010 | 0x0008)

typedef PyObject *(*PyCFunction)(PyObject *, PyObject *);

typedef struct {
    const char *ml_name;
    PyCFunction ml_meth;
    int ml_flags;
    const char *ml_doc;
} PyMethodDef;

#define METH_FASTCALL 0x0080

typedef struct {
    int slot;
    void *value;
} PyModuleDef_Slot;

#define Py_mod_exec 2

typedef struct {
    struct {
        Py_ssize_t references;
        void *type;
        PyObject *(*m_init)(void);
        Py_ssize_t m_index;
        PyObject *m_copy;
    } m_base;
    const char *m_name, *m_doc;
    Py_ssize_t m_size;
    PyMethodDef *m_methods;
    PyModuleDef_Slot *m_slots;
    void *m_traverse, *m_clear, *m_free;
} PyModuleDef;

/* clang-format off */
#define PyModuleDef_HEAD_INIT {1, NULL, NULL, 0, NULL}
/* clang-format on */
#define PyMODINIT_FUNC __attribute__((visibility("default"))) PyObject *
#define PyDoc_STRVAR(name, text) static const char name[] = text

extern PyObject _Py_NoneStruct;
extern PyObject *PyExc_TypeError, *PyExc_ValueError, *PyExc_IndexError, *PyExc_SystemError;

void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);
int PyObject_CheckBuffer(PyObject *);
int PyObject_GetBuffer(PyObject *, Py_buffer *, int);
void PyBuffer_Release(Py_buffer *);
typedef void (*PyCapsule_Destructor)(PyObject *);
PyObject *PyCapsule_New(void *, const char *, PyCapsule_Destructor);
void *PyCapsule_GetPointer(PyObject *, const char *);
double PyFloat_AsDouble(PyObject *);
long long PyLong_AsLongLong(PyObject *);
PyObject *PyLong_FromLongLong(long long);
PyObject *PyLong_FromSsize_t(Py_ssize_t);
PyObject *PyBool_FromLong(long);
void PyErr_SetString(PyObject *, const char *);
PyObject *PyErr_Format(PyObject *, const char *, ...);
PyObject *PyErr_NoMemory(void);
PyObject *PyErr_Occurred(void);
int PyModule_AddIntConstant(PyObject *, const char *, long);
PyObject *PyModuleDef_Init(PyModuleDef *);

#define Py_INCREF Py_IncRef
#define Py_DECREF Py_DecRef
#define Py_None (&_Py_NoneStruct)
#define Py_RETURN_NONE return Py_IncRef(Py_None), Py_None
